"""Where records enter: decoding, event time, watermarks. Positions are the runtime's (L5)."""
