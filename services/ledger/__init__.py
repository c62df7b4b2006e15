"""Ledger: transfers between accounts, with the total conserved."""
