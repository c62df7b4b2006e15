"""The first of two services: reads orders and sends them by account over an edge."""

import os

import msgspec
import penstock as ps


class Order(msgspec.Struct, frozen=True):
    id: int
    account: str
    amount: int


service = ps.Service("split", app=os.environ["BENCH_APP"])

service.source("orders", topic=os.environ["BENCH_SOURCE"], value=Order).to_edge(
    "by-account", key=lambda order: order.account
)
