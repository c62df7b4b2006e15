"""Transfers, variant b: the debtor pays a fee, which is credited to the account ``fees``.

It takes the place of services/ledger/transfers.py; the uids are the same, so it takes its state.
"""

import penstock as ps
from ledger.model import Book, Posting, Transfer

from ledger_ab.fee import FEES, fee_of


class Debit(ps.KeyedProcess):
    """Books a transfer and its fee on the debtor's account."""

    book = ps.ValueState(Book, Book())

    def process(self, transfer: Transfer, ctx: ps.Context) -> None:
        fee = fee_of(transfer.amount)
        amount = -transfer.amount - fee
        posting = self.book.get().post(transfer, transfer.debtor, "debit", amount)
        self.book.set(Book.after(posting))
        ctx.emit(posting)
        ctx.emit_to("to-credit", transfer)
        if fee:
            ctx.emit_to("to-credit", Transfer(transfer.id, transfer.debtor, FEES, fee))


service = ps.Service("transfers", app="ledger")

debits = (
    service.source("transfers", topic="transfers", value=Transfer)
    .key_by("by-debtor", lambda transfer: transfer.debtor)
    .process("debit", Debit, returns=Posting)
)
debits.sink("debits", topic="postings", key=lambda posting: posting.account)
debits.side_output("to-credit", Transfer).to_edge("credits", key=lambda transfer: transfer.creditor)
