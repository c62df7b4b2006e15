"""The other end of the edge ``words``."""

import os

import penstock as ps

APP = os.environ["TEST_APP"]
VALUE = {"str": str, "int": int}[os.environ.get("TEST_VALUE", "str")]

service = ps.Service(os.environ.get("TEST_NAME", "reader"), app=APP)
(
    service.from_edge("words", value=VALUE, key=str, partitions=4)
    .filter(os.environ.get("TEST_UID", "long"), bool)
    .sink("words-out", topic=f"{APP}.words")
)
