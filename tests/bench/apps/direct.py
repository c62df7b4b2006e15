"""The running sum on the source's own partitioning: no edge."""

import os

import msgspec
import penstock as ps


class Order(msgspec.Struct, frozen=True):
    id: int
    account: str
    amount: int


class Total(msgspec.Struct, frozen=True):
    account: str
    total: int


def add(total: Total, order: Order) -> Total:
    return Total(order.account, total.total + order.amount)


SUM = ps.Aggregate(lambda: Total("", 0), add, lambda total: total)

service = ps.Service("totals", app=os.environ["BENCH_APP"])

(
    service.source("orders", topic=os.environ["BENCH_SOURCE"], value=Order, partitioned=True)
    .key_by("by-account", lambda order: order.account)
    .aggregate("sum", SUM)
    .sink("totals", topic=os.environ["BENCH_SINK"], key=lambda total: total.account)
)
