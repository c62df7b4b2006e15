"""Whole services through the test driver: chains, keyed state, timers, watermarks, restore."""

import doctest
from collections import Counter

import msgspec
import penstock as ps
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.failure import ConfigurationError, PenstockError
from penstock.record import OperatorFailed
from penstock.testing import Driver, driver


class Order(msgspec.Struct):
    account: str
    amount: int
    at: int = 0


class Balance(msgspec.Struct):
    account: str
    total: int = 0
    orders: int = 0


class Ledger(ps.KeyedProcess):
    balance = ps.ValueState(Balance)

    def process(self, value: Order, ctx: ps.Context) -> None:
        balance = self.balance.get() or Balance(value.account)
        balance.total += value.amount
        balance.orders += 1
        self.balance.set(balance)
        ctx.emit(balance)


def ledger() -> ps.Service:
    """An order changes the balance of its account."""
    service = ps.Service("ledger", app="payments")
    (
        service.source("orders", topic="orders", value=Order)
        .key_by("by-account", lambda order: order.account)
        .process("ledger", Ledger)
        .sink("balances", topic="balances", key=lambda b: b.account)
    )
    return service


def test_the_docstring_runs():
    assert doctest.testmod(driver).failed == 0


def test_a_state_object_that_is_emitted_is_not_changed_by_the_next_record():
    service = ps.Service("s", app="a")
    stream = service.source("in", topic="t", value=Order, partitioned=True)
    stream.key_by("k", lambda o: o.account).process("p", Ledger).sink("out", topic="o")
    run = Driver(service)
    owner = run._subtasks[0]
    raw = msgspec.json.encode(Order("a", 1))
    owner.chain.push_source(0, [None] * 3, [raw] * 3, [0] * 3)
    assert [b["orders"] for b in run.values("out")] == [1, 2, 3]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.sampled_from("abcdefg"), st.integers(1, 3), st.none()), max_size=40))
def test_no_schedule_of_restores_and_rescales_changes_the_output(steps):
    """L12, L20: a letter is an order, a number restores at that parallelism, None fails one."""
    run = Driver(ledger())
    seen: Counter[str] = Counter()
    for step in steps:
        if step is None:
            run.checkpoint(complete=False)
        elif isinstance(step, int):
            run = Driver(ledger(), checkpoint=run.checkpoint(), parallelism=step)
        else:
            seen[step] += 1
            run.send("orders", Order(step, 2))
            assert run.values("balances")[-1] == {
                "account": step,
                "total": 2 * seen[step],
                "orders": seen[step],
            }
    assert {k: b.orders for k, b in run.state("ledger", "balance").items()} == dict(seen)


def words() -> list[ps.Service]:
    tokenizer = ps.Service("tokenizer", app="words")

    def split(line: str) -> list[str]:
        return line.split()

    tokenizer.source("lines", topic="lines", value=str, serde="string").flat_map(
        "split", split
    ).to_edge("words", key=lambda w: w)
    counter = ps.Service("counter", app="words")
    counter.from_edge("words", value=str, key=str).aggregate(
        "count", ps.Aggregate(lambda: 0, lambda n, _: n + 1, lambda n: n)
    ).sink("counts", topic="counts")
    return [tokenizer, counter]


def test_two_services_over_an_edge():
    run = Driver(words(), parallelism={"tokenizer": 2, "counter": 3})
    run.send("lines", "a b a", "b a", timestamp=5)
    assert run.state("count", "aggregated") == {"a": 3, "b": 2}
    assert sorted((o.key, o.value, o.timestamp) for o in run.outputs("counts")) == [
        (b"a", b"1", 5),
        (b"a", b"2", 5),
        (b"a", b"3", 5),
        (b"b", b"1", 5),
        (b"b", b"2", 5),
    ]


def test_one_service_alone_has_open_edges():
    tokenizer, counter = words()
    run = Driver(tokenizer)
    run.send("lines", "x y", timestamp=3)
    assert sorted(run.edge("words")) == [("x", "x", 3), ("y", "y", 3)]
    alone = Driver(counter)
    alone.send_edge("words", "x", key="x")
    alone.send_edge("words", "x", key="x")
    assert alone.values("counts") == [1, 2]
    with pytest.raises(ConfigurationError, match="open edges are"):
        alone.send_edge("nothing", 1)
    with pytest.raises(ConfigurationError, match="the sinks are"):
        alone.values("nothing")


class Forgetful(ps.KeyedProcess):
    balance = ps.ValueState(Balance)

    def process(self, value: Order, ctx: ps.Context) -> None:
        balance = self.balance.get()
        if balance is None:
            balance = Balance(value.account)
            self.balance.set(balance)
        balance.total += value.amount


def test_a_change_in_place_without_set_is_told():
    service = ps.Service("s", app="a")
    service.source("in", topic="t", value=Order).key_by("k", lambda o: o.account).process(
        "p", Forgetful
    )
    run = Driver(service)
    run.send("in", Order("a", 1))
    run.checkpoint()
    run.send("in", Order("a", 1))
    run.send("in", Order("b", 1))
    with pytest.raises(PenstockError, match=r"key 'a'.*must be set again"):
        run.checkpoint()


class Sessions(ps.KeyedProcess):
    """Emits a key's sum once it was quiet for 10 ms of event time; alarms after 100 ms of clock."""

    total = ps.ReducingState(int, lambda a, b: a + b)
    last = ps.ValueState(int, 0)
    seen = ps.ListState(int)
    tags = ps.MapState(str, int)

    def process(self, value: Order, ctx: ps.Context) -> None:
        if self.last.get():
            ctx.timers.delete_event(self.last.get())
        else:
            ctx.timers.processing(ctx.now_ms + 100)
        self.total.add(value.amount)
        self.seen.add(value.amount)
        self.tags.put(str(value.amount), value.amount)
        self.last.set(value.at + 10)
        ctx.timers.event(value.at + 10)

    def on_timer(self, timer: ps.Timer, ctx: ps.Context) -> None:
        if not timer.is_event:
            ctx.emit_to("alarms", [ctx.key, timer.ms])
            return
        ctx.emit([ctx.key, self.total.get(), list(self.seen.get()), timer.ms, ctx.watermark])
        self.total.clear()
        self.last.clear()
        self.seen.clear()
        self.tags.remove("1")


def sessions() -> ps.Service:
    service = ps.Service("s", app="a")
    done = (
        service.source(
            "in",
            topic="t",
            value=Order,
            timestamp=lambda o: o.at,
            watermark=ps.Watermark(out_of_orderness_ms=5, idle_ms=50),
        )
        .key_by("k", lambda o: o.account)
        .process("sessions", Sessions)
    )
    done.sink("out", topic="o")
    done.side_output("alarms").sink("alarms", topic="p")
    return service


@pytest.mark.parametrize("restore", [False, True])
def test_timers_of_both_clocks_survive_a_restore(restore):
    run = Driver(sessions())
    run.send("in", Order("a", 1, 100), Order("b", 2, 103), Order("a", 3, 105), partition=0)
    if restore:
        run = Driver(sessions(), checkpoint=run.checkpoint(), parallelism=2, now_ms=run.now_ms)
    run.watermark(112)
    assert run.values("out") == []
    run.watermark(120)
    assert run.values("out") == [["b", 2, [2], 113, 120], ["a", 4, [1, 3], 115, 120]] or (
        restore and min(run.values("out")) == ["a", 4, [1, 3], 115, 120]
    )
    assert run.values("alarms") == []
    run.advance(100)
    assert sorted(run.values("alarms")) == [["a", 100], ["b", 100]]
    assert run.state("sessions", "timers") == {}


def test_watermarks_come_from_the_records_and_idle_partitions_do_not_hold_them_back():
    run = Driver(sessions())
    run.advance(1)
    run.send("in", Order("a", 1, 100), partition=0)
    run.send("in", Order("b", 1, 200), partition=1)
    run.advance(1)
    assert run.values("out") == []  # partitions 2 and 3 may still bring anything
    run.advance(50)
    run.send("in", Order("c", 1, 300), partition=1)
    run.advance(50)
    assert [row[0] for row in run.values("out")] == ["a", "b"]


class Batcher(ps.Process):
    """Emits every third value with what it kept; the rest waits in operator state."""

    held = ps.OperatorListState(int)

    def process(self, value: int, ctx: ps.Context) -> None:
        self.held.add(value)
        if len(self.held.get()) == 3:
            ctx.emit(list(self.held.get()))
            self.held.set([])


def test_operator_list_state_is_split_evenly_in_order():
    """L20."""
    service = ps.Service("s", app="a")
    service.source("in", topic="t", value=int).process("p", Batcher).sink("out", topic="o")
    run = Driver(service)
    run.send("in", 1, 2, 3, 4, 5, partition=0)
    assert run.values("out") == [[1, 2, 3]]
    again = Driver(service, checkpoint=run.checkpoint(), parallelism=2)
    assert [s.state.cells()["p", "held"].items for s in again._subtasks] == [[4], [5]]
    assert again.state("p", "held") == [4, 5]


class Owners(ps.Process):
    """Remembers what each subtask owns; after a restore each picks its own out of all of it."""

    owned = ps.UnionListState(str)

    def open(self, ctx: ps.Context) -> None:
        self.found = list(self.owned.get())
        self.owned.set(self.found[:1])

    def process(self, value: str, ctx: ps.Context) -> None:
        self.owned.add(value)


def test_union_list_state_goes_whole_to_every_subtask():
    """L20: each chooses; what all keep would come back from each of them."""
    service = ps.Service("s", app="a")
    service.source("in", topic="t", value=str).process("p", Owners)
    run = Driver(service, parallelism=2)
    for partition, value in enumerate("abcd"):
        run.send("in", value, partition=partition)
    assert run.state("p", "owned") == ["a", "b", "c", "d"]
    again = Driver(service, parallelism=3, checkpoint=run.checkpoint())
    owned = [subtask.state.cells()["p", "owned"].items for subtask in again._subtasks]
    assert owned == [["a"]] * 3, "open() saw all four in each, and kept the first"
    assert again.state("p", "owned") == ["a", "a", "a"]
    once_more = Driver(service, checkpoint=again.checkpoint())
    assert once_more.state("p", "owned") == ["a"]


class Pricing(ps.KeyedProcess):
    """Prices are the same everywhere: every subtask sets them when there are none."""

    prices = ps.BroadcastState(str, float)
    opened = ps.ValueState(bool)

    def open(self, ctx: ps.Context) -> None:
        if not len(self.prices):
            self.prices.put("fee", 0.5)
            self.prices.put("tax", 0.2)
            self.prices.put("old", 9.0)
            self.prices.remove("old")
            self.prices.remove("old")

    def process(self, order: Order, ctx: ps.Context) -> None:
        assert "old" not in self.prices
        assert list(self.prices) == list(self.prices.items()) == ["fee", "tax"]
        if order.account == "odd":
            self.prices.put("odd", 1.0)
            self.prices.clear()
        ctx.emit([order.account, order.amount + (self.prices.get("fee") or 0)])


def pricing() -> ps.Service:
    service = ps.Service("s", app="a")
    stream = service.source("in", topic="t", value=Order, partitioned=True)
    stream.key_by("k", lambda o: o.account).process("p", Pricing).sink("out", topic="o")
    return service


def test_broadcast_state_is_the_same_in_every_subtask_at_any_parallelism():
    """L20: the first subtask's copy is what a checkpoint holds; everybody gets it."""
    checkpoint = None
    for parallelism in (2, 3, 1, 4):
        run = Driver(pricing(), parallelism=parallelism, checkpoint=checkpoint)
        copies = [subtask.state.cells()["p", "prices"].entries for subtask in run._subtasks]
        assert copies == [{"fee": 0.5, "tax": 0.2}] * parallelism
        assert run.state("p", "prices") == copies[0]
        run.send("in", *(Order(account, 1) for account in "abcdefgh"))
        assert {row[1] for row in run.values("out")} == {1.5}
        checkpoint = run.checkpoint()
        held = [part.operator_state for part in checkpoint.manifest.subtasks]
        assert [len(state) for state in held] == [1] + [0] * (parallelism - 1), "stored once"


def test_broadcast_state_that_differs_between_subtasks_is_told_at_the_checkpoint():
    run = Driver(pricing(), parallelism=2)
    run.send("in", Order("odd", 1))
    with pytest.raises(PenstockError, match=r"broadcast state 'prices' of operator 'p' is \{"):
        run.checkpoint()


def test_broadcast_state_of_another_type_is_refused():
    checkpoint = Driver(pricing()).checkpoint()

    class Other(Pricing):
        prices = ps.BroadcastState(str, str)

    service = ps.Service("s", app="a")
    stream = service.source("in", topic="t", value=Order, partitioned=True)
    stream.key_by("k", lambda o: o.account).process("p", Other).sink("out", topic="o")
    with pytest.raises(ConfigurationError, match=r"'prices'.*field 'values' was float, is str"):
        Driver(service, checkpoint=checkpoint)


def test_a_field_with_a_default_may_be_added_and_a_type_not_changed():
    run = Driver(ledger())
    run.send("orders", Order("a", 5))
    checkpoint = run.checkpoint()

    def changed(kind: type) -> ps.Service:
        class New(Ledger):
            balance = ps.ValueState(kind)

        service = ps.Service("ledger", app="payments")
        orders = service.source("orders", topic="orders", value=Order)
        keyed = orders.key_by("by-account", lambda order: order.account)
        keyed.process("ledger", New).sink("balances", topic="balances")
        return service

    fields = [("account", str), ("total", int), ("orders", int)]
    more = msgspec.defstruct("Balance", [*fields, ("note", str, "none")])
    state = Driver(changed(more), checkpoint=checkpoint).state("ledger", "balance")
    assert state["a"] == more("a", 5, 1, "none")
    other = msgspec.defstruct("Balance", [("account", str), ("total", str), ("orders", int)])
    with pytest.raises(ConfigurationError, match=r"'balance'.*field 'total' .*was int"):
        Driver(changed(other), checkpoint=checkpoint)


def chain(step) -> Driver:
    service = ps.Service("s", app="a")
    step(service.source("in", topic="t", value=int, partitioned=True))
    return Driver(service)


def boom(value: int) -> int:
    if value == 7:
        raise ValueError("seven")
    return value


class Boom(ps.Process):
    def process(self, value: int, ctx: ps.Context) -> None:
        for _ in range(value % 3):
            ctx.emit(value)


@pytest.mark.parametrize(
    "step",
    [
        lambda s: s.map("x", boom),
        lambda s: s.filter("x", boom),
        lambda s: s.flat_map("x", lambda v: [boom(v)]),
        lambda s: s.filter("f", lambda v: v % 2).map("x", boom),
        lambda s: s.flat_map("f", lambda v: [v] * (v % 4)).map("x", boom),
        lambda s: s.process("f", Boom).map("x", boom),
        lambda s: s.key_by("x", boom),
        lambda s: s.key_by("k", str, key=str).reduce("r", lambda _, b: b).map("x", boom),
        lambda s: s.filter("f", lambda v: v > 3).flat_map("g", lambda v: [0, v]).map("x", boom),
        lambda s: s.sink("x", topic="o", key=boom),
        lambda s: s.map("m", lambda v: object() if v == 7 else v).sink("x", topic="o"),
    ],
)
def test_a_failure_names_the_record_of_the_pushed_batch(step):
    subtask = chain(step)._subtasks[0]
    values = [3, 1, 5, 2, 4, 7, 8]
    raws = [msgspec.json.encode(value) for value in values]
    with pytest.raises(OperatorFailed) as caught:
        subtask.chain.push_source(0, [None] * 7, raws, [0] * 7)
    assert caught.value.index == 5
    assert caught.value.uid == "x"


@pytest.mark.parametrize("raw", [b'"text"', b"{", b"", None, b"\xff" * 500])
def test_a_wrong_record_is_told_with_type_bytes_and_remedy(raw):
    subtask = chain(lambda s: s.map("m", boom))._subtasks[0]
    with pytest.raises(OperatorFailed, match=r"expected int \(json\), found") as caught:
        subtask.chain.push_source(0, [None] * 3, [b"1", raw, b"2"], [0] * 3)
    assert caught.value.index == 1
    assert len(str(caught.value)) < 900


def test_a_side_output_that_nobody_takes_is_told():
    class Side(ps.Process):
        def process(self, value: int, ctx: ps.Context) -> None:
            ctx.emit_to("late", value)

    with pytest.raises(OperatorFailed, match="'late', which nobody takes"):
        chain(lambda s: s.process("p", Side)).send("in", 1)


def test_a_type_that_an_edge_would_lose_is_told():
    service = ps.Service("s", app="a")
    stream = service.source("in", topic="t", value=int).map("m", lambda v: Order("a", v))
    stream.key_by("k", lambda o: o.account).process("p", Ledger)
    with pytest.raises(ConfigurationError, match="returns=Order"):
        Driver(service).send("in", 1)


def test_a_changed_graph_is_refused():
    point = (run := Driver(ledger())).checkpoint()
    run.send("orders", Order("a", 1))
    point = run.checkpoint()
    renamed = ps.Service("ledger", app="payments")
    stream = renamed.source("orders", topic="orders", value=Order)
    stream.key_by("by-account", lambda o: o.account).process("other", Ledger)
    with pytest.raises(ConfigurationError, match=r"ledger.balance"):
        Driver(renamed, checkpoint=point)
    retyped = ps.Service("ledger", app="payments")
    stream = retyped.source("orders", topic="orders", value=Order)
    stream.key_by("by-account", lambda o: o.account).reduce("ledger", lambda _, b: b)
    with pytest.raises(ConfigurationError, match="nobody takes"):
        Driver(retyped, checkpoint=point)
    moved = ps.Service("ledger", app="payments")
    stream = moved.source("orders", topic="orders", value=Order)
    stream.key_by("by-account", lambda o: o.account, partitions=8).process("ledger", Ledger)
    with pytest.raises(ConfigurationError, match=r"8 partitions.*taken with 16"):
        Driver(moved, checkpoint=point)


def test_what_a_process_emits_has_no_key():
    service = ps.Service("s", app="a")
    keyed = service.source("in", topic="t", value=Order, partitioned=True).key_by(
        "k", lambda o: o.account, key=str
    )
    done = keyed.process("p", Ledger, returns=Balance)
    done.to_edge("plain")
    done.to_edge("keyed", key=lambda b: b.account)
    done.key_by("again", lambda b: b.total, key=int).reduce("r", lambda _, b: b)
    run = Driver(service)
    run.send("in", Order("a", 2))
    assert [row[0] for row in run.edge("plain")] == [None]
    assert [row[0] for row in run.edge("keyed")] == ["a"]
    assert list(run.state("r", "reduced")) == [2]
    assert [stage.name for stage in service.spec().stages] == ["s.in", "s.again"]
