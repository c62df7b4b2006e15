"""A variant of the ledger that charges a fee, and what must come of it."""
