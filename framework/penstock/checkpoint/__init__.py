"""The coordinator's machine: who leads, what runs, which checkpoints are complete. Pure."""
