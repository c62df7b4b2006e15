"""Alignment: when a subtask has met barrier n on all of its channels. Pure."""
