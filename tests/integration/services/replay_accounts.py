"""The ledger's accounts under the application id of a test."""

import os

import penstock as ps
from ledger.accounts import Credit
from ledger.model import Posting, Transfer

APP = os.environ["TEST_APP"]
service = ps.Service("accounts", app=APP)
(
    service.from_edge("credits", value=Transfer, key=str)
    .process("credit", Credit, returns=Posting)
    .sink("credits-booked", topic=f"{APP}.postings", key=lambda posting: posting.account)
)
