"""Accounts: credits the transfers that come over the edge ``credits``."""

import penstock as ps

from ledger.model import Book, Posting, Transfer


class Credit(ps.KeyedProcess):
    """Books a transfer on its creditor's account."""

    book = ps.ValueState(Book, Book())

    def process(self, transfer: Transfer, ctx: ps.Context) -> None:
        posting = self.book.get().post(transfer, transfer.creditor, "credit", transfer.amount)
        self.book.set(Book.after(posting))
        ctx.emit(posting)


service = ps.Service("accounts", app="ledger")

(
    service.from_edge("credits", value=Transfer, key=str)
    .process("credit", Credit, returns=Posting)
    .sink("credits-booked", topic="postings", key=lambda posting: posting.account)
)
