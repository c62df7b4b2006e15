"""The main job: both applications, killed at random and checked by a reader that trusts nobody."""
