"""The fee rule: what the debtor of a larger transfer pays on top."""

FEES = "fees"
"""The account that the fees are credited to."""
_CLASSES = ((75_000, 5), (50_000, 2))
"""(Above so many cents, per mille), the highest class first."""


def fee_of(amount: int) -> int:
    """The fee on a transfer of ``amount`` cents, rounded half up to cents.

    Nothing up to 500.00, 2 per mille up to 750.00, 5 per mille above.
    """
    for above, per_mille in _CLASSES:
        if amount > above:
            return (amount * per_mille + 500) // 1000
    return 0
