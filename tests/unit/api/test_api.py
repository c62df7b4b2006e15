"""The API's checks: each mistake gives one error that names the thing and the remedy."""

import msgspec
import penstock as ps
import pytest
from penstock import application
from penstock.failure import ConfigurationError


class Order(msgspec.Struct):
    account: str
    amount: int


class Balance(msgspec.Struct):
    account: str
    total: int = 0


class Ledger(ps.KeyedProcess):
    balance = ps.ValueState(Balance)

    def process(self, value: Order, ctx: ps.Context) -> None:
        balance = self.balance.get() or Balance(value.account)
        balance.total += value.amount
        self.balance.set(balance)
        ctx.emit(balance)


def ledger(name: str = "ledger", app: str = "payments", uid: str = "ledger") -> ps.Service:
    service = ps.Service(name, app=app)
    stream = service.source(f"{uid}-in", topic="orders", value=Order)
    keyed = stream.key_by(f"by-{uid}", lambda order: order.account)
    keyed.process(uid, Ledger).sink(f"{uid}-out", topic="balances")
    return service


def tokenizer(value: type = str, partitions: int = 16, keyed: bool = True) -> ps.Service:
    service = ps.Service("tokenizer", app="payments")
    lines = service.source("lines", topic="lines", value=value, serde="json")
    lines.to_edge("words", key=(lambda w: w) if keyed else None, partitions=partitions)
    return service


def counter(value: type = str, partitions: int = 16) -> ps.Service:
    service = ps.Service("counter", app="payments")
    stream = service.from_edge("words", value=value, key=str, partitions=partitions)
    stream.aggregate("count", ps.Aggregate(lambda: 0, lambda n, _: n + 1, lambda n: n))
    return service


def test_key_by_cuts_a_stage():
    spec = ledger().spec()
    assert [stage.name for stage in spec.stages] == ["ledger.ledger-in", "ledger.by-ledger"]
    assert spec.stages[0].edges[0].name == spec.stages[1].input.uid == "ledger.by-ledger"
    assert [s.kind for s in spec.stages[1].operators[0].states] == ["value", "timers"]
    assert application.union([ledger()]).edges["ledger.by-ledger"].partitions == 16


def test_a_partitioned_source_is_not_cut():
    service = ps.Service("s", app="a")
    stream = service.source("in", topic="t", value=Order, partitioned=True)
    stream.key_by("k", lambda o: o.account).process("p", Ledger).sink("out", topic="o")
    assert [stage.name for stage in service.spec().stages] == ["s.in"]


def test_a_union_joins_edges():
    edge = application.union([tokenizer(), counter()]).edges["words"]
    assert edge.writers == ("tokenizer.lines",)
    assert edge.readers == ("counter.words",)


@pytest.mark.parametrize(
    ("services", "message"),
    [
        (list, "at least one service"),
        (lambda: [ledger(), ledger(uid="other")], "two services are named 'ledger'"),
        (lambda: [ledger(), ledger("b")], "uid 'ledger-in'.*'ledger'.*'b'"),
        (lambda: [ledger(), ledger("b", app="x", uid="u")], "'x'.*'payments'"),
        (lambda: [tokenizer()], "'words' is written by service 'tokenizer' but read by nobody"),
        (lambda: [counter()], "'words' is read by service 'counter' but written by nobody"),
        (lambda: [tokenizer(int), counter(str)], "'tokenizer' writes values of int.*'counter'"),
        (lambda: [tokenizer(partitions=8), counter()], "8 partitions.*'counter' reads 16"),
        (lambda: [tokenizer(keyed=False), counter()], "without a key, but step 'count'"),
    ],
)
def test_a_graph_that_does_not_fit(services, message):
    with pytest.raises(ConfigurationError, match=message):
        application.union(services())


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda s: s.map("in", lambda o: o), "uid 'in' of a map is already"),
        (lambda s: s.map("Bad Name", lambda o: o), "not a valid name"),
        (lambda s: s.process("p", Ledger), "no key; put .key_by"),
        (lambda s: s.key_by("k", len).process("p", Ledger()), "pass the class"),
        (lambda s: s.key_by("k", len).process("p", int), "found 0"),
        (lambda s: s.to_edge("e", partitions=0), "0 partitions"),
        (lambda s: s.sink("o", topic=""), "no topic"),
        (lambda s: s.sink("o", topic="t", serde="avro"), "unknown serde 'avro'"),
    ],
)
def test_a_step_that_is_wrong(mistake, message):
    stream = ps.Service("s", app="a").source("in", topic="t", value=Order)
    with pytest.raises(ConfigurationError, match=message):
        mistake(stream)


def test_a_source_that_is_wrong():
    service = ps.Service("s", app="a")
    with pytest.raises(ConfigurationError, match="start='newest'"):
        service.source("a", topic="t", value=Order, start="newest")
    with pytest.raises(ConfigurationError, match="partitioned=True"):
        service.source("b", topic="t", value=Order, key=str)
    with pytest.raises(ConfigurationError, match="gives str, not Order"):
        service.source("c", topic="t", value=Order, serde="string")
    with pytest.raises(ConfigurationError, match="no type that msgspec can read"):
        service.source("d", topic="t", value=dict[str, 5])
    with pytest.raises(ConfigurationError, match="no input"):
        service.spec()


def test_state_defaults_are_not_shared():
    with pytest.raises(ConfigurationError, match="all keys would share it"):
        ps.ValueState(list, default=[])


def test_a_process_outside_of_an_operator_says_so():
    with pytest.raises(ConfigurationError, match=r"testing.Driver"):
        Ledger().process(Order("a", 1), ps.Context("x"))


SERVICE = 'import penstock as ps\ns = ps.Service("one", app="a")\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no service file"),
        ("x = 1\n", "defines no service"),
        ("1 / 0\n", "cannot be loaded: ZeroDivisionError"),
        (SERVICE + 't = ps.Service("two", app="a")\n', "2 services .'one', 'two'"),
        ("import penstock as ps\nps.Service('A B', app='a')\n", "'A B' is not a valid name"),
    ],
)
def test_a_file_without_one_service(tmp_path, text, message):
    path = tmp_path / "service.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        application.load(path)


def test_a_file_with_a_service(tmp_path):
    path = tmp_path / "service.py"
    path.write_text(SERVICE + "again = s\n")
    assert application.load(str(path)).name == "one"
