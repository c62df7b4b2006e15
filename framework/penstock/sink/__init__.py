"""The life of a sink's transactions: open -> flushing -> prepared -> committing -> proven. Pure."""
