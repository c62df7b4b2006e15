"""State that outlives a process: live tables, incremental chunks, manifests, retention. Pure."""
