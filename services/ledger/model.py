"""What travels through the ledger."""

from typing import Literal

import msgspec

Side = Literal["debit", "credit"]


class Transfer(msgspec.Struct, frozen=True):
    """``amount`` cents go from ``debtor`` to ``creditor``."""

    id: int
    debtor: str
    creditor: str
    amount: int


class Posting(msgspec.Struct, frozen=True):
    """One side of a transfer, as booked on one account."""

    transfer: int
    account: str
    side: Side
    amount: int
    """Negative on the debit side, so that all postings sum up to zero."""
    total: int
    """Sum of this account's postings on this side, this one included."""
    sequence: int
    """1 for the account's first posting on this side, then 2, 3, …"""


class Book(msgspec.Struct, frozen=True):
    """What an account remembers of one side: the totals so far."""

    total: int = 0
    postings: int = 0

    def post(self, transfer: Transfer, account: str, side: Side, amount: int) -> Posting:
        """The next posting; ``Book.after`` it is what to remember."""
        total, sequence = self.total + amount, self.postings + 1
        return Posting(transfer.id, account, side, amount, total, sequence)

    @staticmethod
    def after(posting: Posting) -> "Book":
        """The book that ends with ``posting``."""
        return Book(posting.total, posting.sequence)
