"""The running sum as a KeyedProcess, on the source's own partitioning: no edge."""

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


class Sum(ps.KeyedProcess):
    total = ps.ValueState(int, 0)

    def process(self, order: Order, ctx: ps.Context) -> None:
        total = self.total.get() + order.amount
        self.total.set(total)
        ctx.emit(Total(order.account, total))


service = ps.Service("totals", app=os.environ["BENCH_APP"])

(
    service.source("orders", topic=os.environ["BENCH_SOURCE"], value=Order, partitioned=True)
    .key_by("by-account", lambda order: order.account)
    .process("sum", Sum, returns=Total)
    .sink("totals", topic=os.environ["BENCH_SINK"], key=lambda total: total.account)
)
