"""The machine of one subtask: at a barrier, a decision, the end of an attempt. Pure."""
