"""Who takes what of a savepoint: by uid, wherever the operator stands now."""

import msgspec
import pytest
from penstock.failure import ConfigurationError
from penstock.graph import (
    EdgeInputSpec,
    OperatorSpec,
    ServiceSpec,
    SourceSpec,
    StageSpec,
    StateSpec,
)
from penstock.savepoint.claiming import claims
from penstock.savepoint.manifest import (
    OperatorEntry,
    SavepointManifest,
    SourceEntry,
    StateEntry,
)
from penstock.schema import Field, Schema

STR, INT = Schema("str"), Schema("int")
BALANCE = Schema("struct", name="Balance", fields=(Field("total", INT),))
SAVED = OperatorEntry(
    uid="ledger",
    kind="keyed_process",
    service="old",
    stage="old.by-account",
    parallelism=2,
    ownership="key_group",
    partitions=8,
    states=(
        StateEntry(name="balance", kind="value", key=STR, value=BALANCE),
        StateEntry(name="limits", kind="operator_list", value=INT),
    ),
)
SOURCE = SourceEntry(uid="orders", stage="old.orders", topic="orders", positions={0: 4, 3: 9})
MANIFEST = SavepointManifest(
    savepoint_id="sp",
    app="app",
    checkpoint=3,
    created_at_ms=0,
    created_by="test",
    max_parallelism=64,
    operators=(SAVED,),
    sources=(SOURCE,),
)
EDGE = EdgeInputSpec(uid="new.edge", key="str", value="Order", partitions=16)
TOPIC = SourceSpec(uid="orders", topic="orders", value="Order")
STATES = (
    StateSpec(name="balance", kind="value", type="Balance", key=STR, value=BALANCE),
    StateSpec(name="limits", kind="operator_list", type="int", value=INT),
)


def graph(uid="ledger", states=STATES, entry=EDGE, source=TOPIC, max_parallelism=64):
    operator = OperatorSpec(uid=uid, kind="keyed_process", states=states)
    reading = StageSpec(name="new.orders", input=source, operators=(), edges=(), sinks=())
    keyed = StageSpec(name="new.edge", input=entry, operators=(operator,), edges=(), sinks=())
    stages = (reading, keyed) if entry is EDGE else (msgspec.structs.replace(keyed, input=entry),)
    return [ServiceSpec(name="new", app="b", stages=stages, max_parallelism=max_parallelism)]


def claimed(services, manifest=MANIFEST, partitions=4, **more):
    return claims(manifest, services, lambda topic: partitions, where="s3://b/sp", **more)


def with_operator(**changes) -> SavepointManifest:
    operator = msgspec.structs.replace(SAVED, **changes)
    return msgspec.structs.replace(MANIFEST, operators=(operator,))


def test_an_operator_is_found_in_another_stage_and_service():
    found = claimed(graph())
    assert [(c.state.name, c.stage) for c in found.states] == [
        ("balance", "new.edge"),
        ("limits", "new.edge"),
    ]
    assert [(c.source.uid, c.stage) for c in found.sources] == [("orders", "new.orders")]
    assert found.old_stages("new.edge") == {"old.by-account"}
    assert found.old_stages("new.orders") == {"old.orders"}


@pytest.mark.parametrize(
    ("services", "message"),
    [
        (graph(uid="ledgers"), r"ledger\.balance \(is it 'ledgers' now\?\).*--allow-non-restored"),
        (graph(states=STATES[1:]), r"takes: ledger\.balance;"),
        (
            graph(states=(msgspec.structs.replace(STATES[0], name="balances"), STATES[1])),
            r"ledger\.balance \(is it 'balances' now\?\)",
        ),
        (
            graph(source=msgspec.structs.replace(TOPIC, uid="order")),
            r"positions of source 'orders' \(is it 'order' now\?\)",
        ),
    ],
)
def test_what_nobody_takes_is_refused_unless_it_may_be_dropped(services, message):
    with pytest.raises(ConfigurationError, match=message):
        claimed(services)
    assert len(claimed(services, allow_dropped=True).states) < 3


@pytest.mark.parametrize(
    ("services", "manifest", "message"),
    [
        (graph(max_parallelism=32), MANIFEST, r"64 key groups.*says max_parallelism=32.*Spark"),
        (
            graph(states=(msgspec.structs.replace(STATES[0], value=INT), STATES[1])),
            MANIFEST,
            "'balance' of operator 'ledger'.*was Balance.*is int.*new name",
        ),
        (
            graph(states=(msgspec.structs.replace(STATES[0], key=INT), STATES[1])),
            MANIFEST,
            "keys changed.*was str, is int",
        ),
        (
            graph(states=(msgspec.structs.replace(STATES[0], kind="list"), STATES[1])),
            MANIFEST,
            "was value state, is list state",
        ),
        (
            graph(source=msgspec.structs.replace(TOPIC, topic="orders2")),
            MANIFEST,
            "reads topic 'orders2'.*positions in topic 'orders'",
        ),
        (graph(entry=TOPIC), MANIFEST, "owned by key groups.*partitioned=True"),
        (graph(), with_operator(ownership="partition"), "owned by the partitions of a source"),
        (
            graph(entry=msgspec.structs.replace(TOPIC, partitioned=True)),
            with_operator(ownership="partition"),
            "'orders' has 4 partitions.*owned by 8",
        ),
    ],
)
def test_what_does_not_fit_is_refused_always(services, manifest, message):
    with pytest.raises(ConfigurationError, match=f"(?s){message}"):
        claimed(services, manifest, allow_dropped=True)


def test_another_topic_of_the_same_name_is_noticed():
    with pytest.raises(ConfigurationError, match=r"has 3 partitions.*position of partition 3"):
        claimed(graph(), partitions=3)


def test_partitions_that_own_keys_stay():
    partitioned = msgspec.structs.replace(TOPIC, partitioned=True)
    manifest = with_operator(ownership="partition", partitions=4)
    assert len(claimed(graph(entry=partitioned), manifest).states) == 2


def test_a_new_field_with_a_default_is_no_change():
    wider = msgspec.structs.replace(
        BALANCE, fields=(*BALANCE.fields, Field("orders", INT, required=False, default="0"))
    )
    states = (msgspec.structs.replace(STATES[0], value=wider), STATES[1])
    assert len(claimed(graph(states=states)).states) == 2
