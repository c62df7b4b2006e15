"""Transfers: debits the one account and sends the transfer on to be credited to the other."""

import penstock as ps

from ledger.model import Book, Posting, Transfer


class Debit(ps.KeyedProcess):
    """Books a transfer on its debtor's account."""

    book = ps.ValueState(Book, Book())

    def process(self, transfer: Transfer, ctx: ps.Context) -> None:
        posting = self.book.get().post(transfer, transfer.debtor, "debit", -transfer.amount)
        self.book.set(Book.after(posting))
        ctx.emit(posting)
        ctx.emit_to("to-credit", transfer)


service = ps.Service("transfers", app="ledger")

debits = (
    service.source("transfers", topic="transfers", value=Transfer)
    .key_by("by-debtor", lambda transfer: transfer.debtor)
    .process("debit", Debit, returns=Posting)
)
debits.sink("debits", topic="postings", key=lambda posting: posting.account)
debits.side_output("to-credit", Transfer).to_edge("credits", key=lambda transfer: transfer.creditor)
