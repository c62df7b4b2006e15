"""The ledger's transfers under the application id of a test."""

import os

import penstock as ps
from ledger.model import Posting, Transfer
from ledger.transfers import Debit

APP = os.environ["TEST_APP"]
service = ps.Service("transfers", app=APP)
debits = (
    service.source("transfers", topic=f"{APP}.transfers", value=Transfer)
    .key_by("by-debtor", lambda transfer: transfer.debtor)
    .process("debit", Debit, returns=Posting)
)
debits.sink("debits", topic=f"{APP}.postings", key=lambda posting: posting.account)
debits.side_output("to-credit", Transfer).to_edge("credits", key=lambda transfer: transfer.creditor)
