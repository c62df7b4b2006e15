"""Pages about Spark: their blocks run in a session, on a savepoint and a checkpoint in MinIO."""

import contextlib
import io
from typing import Any

import msgspec
import penstock as ps
import pytest
from penstock.runtime.connectors import store_from
from penstock.savepoint.converting import convert
from penstock.snapshot.chain import ChunkReader
from penstock.testing import Driver
from penstock_stack import Stack
from pyspark.sql import SparkSession

from tests.docs.pages import ROOT, Block, matches, read

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

RUN_HERE = "tests/integration/test_spark_pages.py"
PAGE = read(ROOT / "docs" / "howto" / "read-a-savepoint-with-spark.md")
STORE = "s3://penstock"
SAVEPOINT = f"{STORE}/payments/savepoints/before-the-change"


class Order(msgspec.Struct, frozen=True):
    account: str
    amount: int


class Balance(msgspec.Struct, frozen=True):
    account: str
    total: int = 0
    orders: int = 0


class Ledger(ps.KeyedProcess):
    balance = ps.ValueState(Balance)
    history = ps.ListState(int)

    def process(self, order: Order, ctx: ps.Context) -> None:
        old = self.balance.get() or Balance(order.account)
        self.balance.set(Balance(order.account, old.total + order.amount, old.orders + 1))
        self.history.add(order.amount)
        ctx.timers.event(60_000)


ORDERS = [("ann", 10), ("bob", 15), ("cid", 9), ("ann", 6), ("bob", 25), ("ann", 20)]


@pytest.fixture(scope="module")
def payments(stack: Stack) -> None:
    """What the page speaks of: a checkpoint of the application, and the savepoint made of it."""
    if stack.store_url != STORE:
        pytest.skip("needs a store server: this stack has none")
    service = ps.Service("ledger", app="payments")
    orders = service.source("orders", topic="orders", value=Order)
    keyed = orders.key_by("by-account", lambda order: order.account)
    keyed.process("ledger", Ledger).sink("out", topic="out")
    run = Driver(service, partitions=2, parallelism=2)
    for number, (account, amount) in enumerate(ORDERS):
        run.send("orders", Order(account, amount), partition=int(number in (2, 5)))
    made = run.checkpoint()
    store = store_from({**stack.store_env, "PENSTOCK_STORE": STORE})
    for key, data in made.objects.items():
        store.put(key, data)
    target = store_from({**stack.store_env, "PENSTOCK_STORE": SAVEPOINT})
    convert(
        made.manifest, ChunkReader(store), target, savepoint_id="before-the-change", created_at_ms=1
    )


@pytest.mark.usefixtures("payments", "s3a_jars")
def test_how_to_read_a_savepoint(
    spark: SparkSession, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in stack.store_env.items():
        monkeypatch.setenv(name, value)
    names: dict[str, Any] = {}
    printed = ""
    ran = 0
    for block in PAGE.blocks:
        if block.how == "output":
            assert matches(block.text, printed), f"{block.where}: what was printed:\n{printed}"
        elif _is_ours(block):
            printed = _run(block, names)
            ran += 1
    assert ran >= 7
    assert names["spark"] is spark


def test_every_block_of_spark_is_run_here() -> None:
    python = [block for block in PAGE.blocks if block.language == "python"]
    assert [block.where for block in python if not _is_ours(block)] == []


def _is_ours(block: Block) -> bool:
    return block.language == "python" and (block.skip_reason or "").startswith(RUN_HERE)


def _run(block: Block, names: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile("\n" * block.line + block.text, block.where, "exec"), names)
    return out.getvalue()
