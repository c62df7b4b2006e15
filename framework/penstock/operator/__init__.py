"""What the user writes: processes, state, timers; and the fused chain that runs it over batches."""
