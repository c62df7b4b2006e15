"""Manifests, what a subtask takes from one, and what may be deleted (L19, L20, L24)."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.control import ChunkRef, Deploy, SubtaskSnapshot
from penstock.failure import ConfigurationError, CorruptedObject
from penstock.graph import (
    EdgeInputSpec,
    OperatorSpec,
    ServiceSpec,
    SourceSpec,
    StageSpec,
    StateSpec,
)
from penstock.ids import Attempt, CheckpointId, SubtaskId, Term, owned_partitions
from penstock.schema import schema_of
from penstock.snapshot import manifest as manifests
from penstock.snapshot.assign import assign, check_graph
from penstock.snapshot.retention import deletable, orphans

SUM = "0" * 64
STATE = StateSpec(name="total", kind="value", type="int")
EDGE = EdgeInputSpec(uid="e", key="str", value="int", partitions=8)
STAGE = StageSpec(
    name="s.e",
    input=EDGE,
    edges=(),
    sinks=(),
    operators=(OperatorSpec(uid="op", kind="keyed_process", states=(STATE,)),),
)
SERVICE = ServiceSpec(name="s", app="app", stages=(STAGE,))


def ref(key: str, low: int = 0, high: int = 8, entry: str | None = None) -> ChunkRef:
    return ChunkRef(key, 4, SUM, low, high, False, entry)


def snapshot(index: int, of: int, *refs: ChunkRef, **more) -> SubtaskSnapshot:
    owned = owned_partitions(8, of, index)
    fields = {"positions": {}, "edge_positions": {}, "watermark": 5, "operator_state": {}} | more
    return SubtaskSnapshot(
        subtask=SubtaskId("s.e", index),
        buckets=(owned.start, owned.stop),
        chain=refs,
        transactions=(),
        **fields,
    )


def build(*snapshots: SubtaskSnapshot, number: int = 3, service=SERVICE) -> manifests.Manifest:
    deploy = Deploy(
        attempt=Attempt(2),
        checkpoint=None,
        manifest=None,
        services=(service,),
        parallelism={"s": len(snapshots)},
        assignment={},
        edge_starts={},
        pool=2,
    )
    return manifests.build("app", Term(9), CheckpointId(number), deploy, snapshots)


def test_a_manifest_comes_back_and_holds_inline_chunks():
    part = snapshot(0, 1, ref("app/2/s.e-0/1-1.chunk"), ref("", entry="x"), inline={"x": b"1234"})
    made = build(part)
    loaded = manifests.load(manifests.encode(made), "k")
    assert loaded == made
    inline = loaded.subtasks[0].chain[1]
    assert inline.key == "app/manifests/3-9.json"
    assert manifests.entry(loaded, inline) == b"1234"
    assert manifests.entry(loaded, ref("other", entry="y")) is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:-5],
        lambda _: b"",
        lambda _: b"[" * 100_000,
        lambda text: text.replace(b"app/2/s.e-0", b"app/../../etc"),
        lambda text: text.replace(b"app/2/s.e-0", b"other/2/s.e-0"),
        lambda text: text.replace(b"app/2/s.e-0", b"/app/2"),
        lambda text: text.replace(SUM.encode(), b"zz"),
        lambda text: text.replace(b'"size":4', b'"size":-4'),
        lambda text: text.replace(b'"size":4', b'"size":"4"'),
        lambda text: text.replace(b'"buckets":[0,8]', b'"buckets":[8,0]'),
    ],
)
def test_a_damaged_manifest_is_named(spoil: Callable[[bytes], bytes]):
    text = manifests.encode(build(snapshot(0, 1, ref("app/2/s.e-0/1-1.chunk"))))
    with pytest.raises(CorruptedObject, match="'the-key'"):
        manifests.load(spoil(text), "the-key")


def test_a_newer_format_is_refused():
    text = manifests.encode(msgspec.structs.replace(build(snapshot(0, 1)), format=2))
    with pytest.raises(ConfigurationError, match="format 2"):
        manifests.load(text, "k")


@given(st.integers(1, 8), st.integers(1, 8), st.lists(st.binary(max_size=2), max_size=9))
def test_every_bucket_and_element_goes_to_exactly_one_subtask(before, after, elements):
    """L20: chains are narrowed, list state is split evenly and in order."""
    parts = []
    for index in range(before):
        owned = owned_partitions(8, before, index)
        share = owned_partitions(len(elements), before, index)
        parts.append(
            snapshot(
                index,
                before,
                ref(f"app/2/s.e-{index}/1.chunk", owned.start, owned.stop),
                operator_state={"op": {"l": elements[share.start : share.stop]}},
                watermark=index,
            )
        )
    made = build(*parts)
    taken: list[bytes] = []
    owners: dict[int, str] = {}
    sizes = []
    for index in range(after):
        share = assign(made, STAGE, index, after, partitions=8)
        for one in share.chain:
            for bucket in range(one.low, one.high):
                assert bucket not in owners
                assert bucket in owned_partitions(8, after, index)
                owners[bucket] = one.key
        mine = share.operator_state["op"]["l"]
        sizes.append(len(mine))
        taken += mine
    assert sorted(owners) == list(range(8))
    assert taken == elements
    assert max(sizes) - min(sizes) <= 1


def test_a_new_stage_begins_with_nothing():
    other = msgspec.structs.replace(STAGE, name="s.new")
    assert assign(build(snapshot(0, 1)), other, 0, 1, partitions=8).chain == ()


def retyped(kind: str) -> StageSpec:
    state = msgspec.structs.replace(STATE, type=kind)
    operator = msgspec.structs.replace(STAGE.operators[0], states=(state,))
    return msgspec.structs.replace(STAGE, operators=(operator,))


def test_what_does_not_fit_is_refused():
    made = build(snapshot(0, 2), snapshot(1, 2))
    with pytest.raises(ConfigurationError, match=r"'e' has 16 partitions.*with 8"):
        assign(made, STAGE, 0, 1, partitions=16)
    with pytest.raises(ConfigurationError, match=r"'total' of operator 'op'.*of int, is of str"):
        assign(made, retyped("str"), 0, 1, partitions=8)
    with pytest.raises(CorruptedObject, match="partition 0"):
        assign(build(snapshot(1, 2)), STAGE, 0, 1, partitions=8)
    bare = msgspec.structs.replace(SERVICE, stages=())
    with pytest.raises(ConfigurationError, match=r"op.total"):
        check_graph(made, [bare])
    check_graph(made, [bare], allow_dropped=True)
    with pytest.raises(ConfigurationError, match="max_parallelism=64"):
        check_graph(made, [msgspec.structs.replace(SERVICE, max_parallelism=64)])


def stateful(kind: str, value: Any, key: Any = str) -> StageSpec:
    state = StateSpec(name="total", kind=kind, type="T", key=schema_of(key), value=schema_of(value))
    operator = OperatorSpec(uid="op", kind="keyed_process", states=(state,))
    return msgspec.structs.replace(STAGE, operators=(operator,))


def test_schemas_decide_where_both_ends_have_them():
    """A Struct of the same name may have other fields, one of another name the same."""
    before = msgspec.defstruct("T", [("a", int)])
    wider = msgspec.defstruct("U", [("a", int), ("b", int, 0)])
    other = msgspec.defstruct("T", [("a", str)])
    old = stateful("value", before, Any)
    service = msgspec.structs.replace(SERVICE, stages=(old,))
    made = manifests.load(manifests.encode(build(snapshot(0, 1), service=service)), "k")
    assign(made, stateful("value", wider), 0, 1, partitions=8)
    with pytest.raises(ConfigurationError, match=r"checkpoint 3: field 'a' was int, is str"):
        assign(made, stateful("value", other), 0, 1, partitions=8)
    with pytest.raises(ConfigurationError, match=r"it was value of T, is list of T"):
        assign(made, stateful("list", before), 0, 1, partitions=8)
    typed = msgspec.structs.replace(SERVICE, stages=(stateful("value", before, str),))
    with pytest.raises(ConfigurationError, match=r"its keys changed: it was str, is int"):
        assign(
            build(snapshot(0, 1), service=typed), stateful("value", before, int), 0, 1, partitions=8
        )


OLD_STATE = b'{"name":"total","kind":"value","type":"int"}'


def test_a_checkpoint_from_before_schemas_still_loads():
    """Its keys were placed by the unsigned digest: the same place for a power of two of groups."""
    text = manifests.encode(build(snapshot(0, 1)))
    body = msgspec.json.decode(text, type=dict[str, msgspec.Raw])["manifest"]
    old = bytes(body).replace(b"xxh64-42-msgpack-pmod", b"xxh64-42-msgpack")
    old = old.replace(b',"key":null,"value":null', b"")
    assert OLD_STATE in old
    made = manifests.load(manifests.encode(msgspec.json.decode(old, type=manifests.Manifest)), "k")
    assert made.key_hash == "xxh64-42-msgpack"
    check_graph(made, [SERVICE])
    for state in ("int", "str"):
        stage = retyped(state)
        if state == "int":
            assign(made, stage, 0, 1, partitions=8)
        else:
            with pytest.raises(ConfigurationError, match="was of int, is of str"):
                assign(made, stage, 0, 1, partitions=8)
    odd = msgspec.structs.replace(made, max_parallelism=100)
    service = msgspec.structs.replace(SERVICE, max_parallelism=100)
    with pytest.raises(ConfigurationError, match="places keys by 'xxh64-42-msgpack'"):
        check_graph(odd, [service])
    check_graph(msgspec.structs.replace(odd, key_hash=manifests.KEY_HASH), [service])


@given(st.integers(1, 4), st.integers(1, 8), st.lists(st.binary(max_size=2), max_size=9))
def test_union_state_goes_to_everybody_and_broadcast_is_the_first_ones(before, after, elements):
    """L20."""
    parts = []
    for index in range(before):
        share = owned_partitions(len(elements), before, index)
        held = {"op": {"total": elements[share.start : share.stop]}}
        parts.append(snapshot(index, before, operator_state=held))
    made = build(*parts, service=msgspec.structs.replace(SERVICE, stages=()))
    for index in range(after):
        stage = stateful("operator_union", int)
        found = assign(made, stage, index, after, partitions=8).operator_state
        assert found == {"op": {"total": elements}}
        stage = stateful("operator_broadcast", dict[int, int])
        found = assign(made, stage, index, after, partitions=8).operator_state
        assert found == parts[0].operator_state


def test_a_source_may_grow_but_not_change_its_topic():
    source = SourceSpec(uid="in", topic="t", value="int")
    stage = msgspec.structs.replace(STAGE, input=source, operators=())
    service = msgspec.structs.replace(SERVICE, stages=(stage,))
    made = build(snapshot(0, 1, positions={"t": {0: 7, 7: 9}}), service=service)
    share = assign(made, stage, 1, 2, partitions=12)
    assert share.positions == {"t": {7: 9}}
    moved = msgspec.structs.replace(stage, input=msgspec.structs.replace(source, topic="u"))
    with pytest.raises(ConfigurationError, match="'u', but the checkpoint has positions of 't'"):
        assign(made, moved, 0, 1, partitions=8)
    with pytest.raises(ConfigurationError, match="topic 't' has 4 partitions"):
        assign(made, stage, 0, 1, partitions=4)


def test_only_what_nobody_names_is_deletable():
    """L19: shared chunks and manifests that hold somebody's inline chunks stay."""
    shared, gone = ref("app/2/s.e-0/1-1.chunk"), ref("app/2/s.e-0/1-2.chunk")
    inline = ref("", entry="x")
    old = build(snapshot(0, 1, shared, gone, inline, inline={"x": b"1234"}), number=1)
    holder = "app/manifests/1-9.json"
    new = build(snapshot(0, 1, shared, old.subtasks[0].chain[2]), number=2)
    free = build(snapshot(0, 1, shared), number=3)
    assert deletable(old, holder, [("n2", new)]) == [gone.key]
    assert deletable(old, holder, [("n3", free)]) == [gone.key, holder]
    died = "app/imports/17-2/0.chunk"
    running = ["app/3/s.e-0/9-1.chunk", "app/imports/19-3/0.chunk"]
    others = [holder, "app/savepoints/2/data/x.chunk", "app/imports/17-2/manifest.json"]
    stored = [shared.key, gone.key, died, *running, *others]
    assert orphans(stored, [("n3", free)], before_attempt=3) == [gone.key, died]
    kept = build(snapshot(0, 1, shared, ref(died)), number=4)
    assert orphans(stored, [("n3", free), ("n4", kept)], before_attempt=3) == [gone.key]


def test_edge_positions_are_the_least_of_all_readers():
    """L24."""
    made = build(snapshot(0, 2, edge_positions={0: 5, 1: 7}), snapshot(1, 2, edge_positions={4: 2}))
    assert manifests.edge_positions(made) == {"e": {0: 5, 1: 7, 4: 2}}
