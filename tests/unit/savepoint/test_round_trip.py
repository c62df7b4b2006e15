"""Live state -> checkpoint -> savepoint -> another graph -> live state, the same for every key."""

import datetime as dt
import enum
import uuid
from typing import Any

import msgspec
import penstock as ps
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.failure import ConfigurationError, CorruptedObject
from penstock.savepoint import reading, restoring, writing
from penstock.savepoint.converting import convert
from penstock.schema import Schema
from penstock.snapshot import base
from penstock.snapshot import state as states
from penstock.snapshot.manifest import encode
from penstock.testing import Driver
from penstock.testing.driver import Checkpoint
from penstock.testing.store import SimulatedStore

from tests.unit.savepoint.every_state import Command, brought_in, live, savepoint_of, service


class Place(msgspec.Struct, frozen=True):
    name: str
    floor: int


class Side(enum.Enum):
    LEFT = "l"
    RIGHT = "r"


KEYS = ["a", "b", "c", "anna", "Ω", ""]


def driven(commands, *, partitioned: bool = False, parallelism: int = 2) -> Driver:
    run = Driver(service(partitioned=partitioned), parallelism=parallelism, now_ms=5)
    for command in commands:
        run.send("commands", command)
    return run


COMMANDS = [Command(KEYS[n % 6], number=n) for n in range(40)]


def assert_same(before: Driver, after: Driver) -> None:
    """L20: every key has its state, every subtask all union elements."""
    had, has = live(before), live(after)
    union = sorted(element for elements in had.pop("known") for element in elements)
    for elements in has.pop("known"):
        assert sorted(elements) == union
    for name in had:
        assert has[name] == had[name], name


def test_it_comes_back_in_another_service_with_other_partitions():
    run = driven(COMMANDS)
    savepoint = savepoint_of(run.checkpoint())
    moved = service(partitions=5, name="moved")
    again = Driver(moved, checkpoint=brought_in(savepoint, moved), parallelism=3)
    assert_same(run, again)


def test_state_of_partitions_comes_back():
    run = driven(COMMANDS, partitioned=True)
    savepoint = savepoint_of(run.checkpoint())
    moved = service(partitioned=True, name="moved")
    again = Driver(moved, checkpoint=brought_in(savepoint, moved), parallelism=3)
    assert_same(run, again)


SENT = st.builds(
    Command, st.sampled_from(KEYS), st.sampled_from(["add"] * 4 + ["forget"]), st.integers(1, 25)
)
STEPS = st.lists(
    st.one_of(
        st.lists(SENT, min_size=5, max_size=20),
        st.sampled_from(["checkpoint", "failed"]),
        st.integers(1, 4),  # a restore at this parallelism
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(
    steps=STEPS,
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 9)),
    partitioned=st.booleans(),
    small=st.integers(1, 50),
)
def test_any_history_comes_back_for_every_key(steps, sizes, partitioned, small):
    """L4, L20, L22: bases and deltas, removed keys, files and batches cut anywhere."""
    parallelism, after, partitions = sizes
    with pytest.MonkeyPatch.context() as patch:
        for module in (states, base, restoring):
            patch.setattr(module, "OBJECT_BYTES", small * 20)
        patch.setattr(states, "REBASE_BYTES", 100)
        patch.setattr(states, "REBASE_FACTOR", 1)
        patch.setattr(restoring, "PIECE_BYTES", small * 5)
        patch.setattr(writing, "GROUP_ROWS", small)
        patch.setattr(reading, "BATCH_ROWS", max(1, small // 2))
        patch.setattr(restoring, "FLUSH_ENTRIES", small)
        run = driven([], partitioned=partitioned, parallelism=parallelism)
        for step in steps:
            if isinstance(step, int):
                checkpoint = run.checkpoint()
                again = service(partitioned=partitioned)
                run = Driver(again, checkpoint=checkpoint, parallelism=step, now_ms=run.now_ms)
            elif isinstance(step, str):
                run.checkpoint(complete=step == "checkpoint")
            else:
                run.send("commands", *step)
        savepoint = savepoint_of(run.checkpoint())
        moved = service(partitioned=partitioned, partitions=partitions, name="moved")
        again = Driver(
            moved, checkpoint=brought_in(savepoint, moved), parallelism=after, now_ms=run.now_ms
        )
        assert_same(run, again)
        assert_goes_on_alike(run, again)


def assert_goes_on_alike(before: Driver, after: Driver) -> None:
    """Event time, timers and positions are those of before, too."""
    outputs = []
    for run in (before, after):
        seen = len(run.values("out"))
        run.watermark(1010)
        run.advance(2010)
        for key in ["late", *KEYS]:
            run.send("commands", Command(key, number=3))
            outputs.append(run.state("everything", "account")[key])
        outputs.append(sorted(map(repr, run.values("out")[seen:])))
        outputs.append(sum(sum(s.positions()["commands"].values()) for s in sources(run)))
    half = len(outputs) // 2
    assert outputs[:half] == outputs[half:]


def sources(run: Driver):
    return [subtask for subtask in run._subtasks if subtask.source is not None]


def test_a_key_that_was_removed_since_the_base_stays_away():
    run = driven([Command("a"), Command("b")], parallelism=1)
    run.checkpoint()
    run.send("commands", Command("a", "forget"))
    savepoint = savepoint_of(run.checkpoint())
    assert savepoint.table("everything", "least")["key_value"].to_pylist() == ["b"]
    again = Driver(service(), checkpoint=brought_in(savepoint, service()))
    assert_same(run, again)


def test_an_object_that_two_chains_share_is_narrowed_in_each():
    """One subtask, two, one again: the later part of an old base must not undo a newer delta."""
    run = driven(COMMANDS, parallelism=1)
    run = Driver(service(), checkpoint=run.checkpoint(), parallelism=2)
    for key in ("a", "b", "c"):
        run.send("commands", Command(key, number=3))
    run = Driver(service(), checkpoint=run.checkpoint(), parallelism=1)
    run.send("commands", Command("new"))
    checkpoint = run.checkpoint()
    (part,) = [p for p in checkpoint.manifest.subtasks if p.subtask.stage == "all.by-key"]
    assert len({ref.key for ref in part.chain}) < len(part.chain)
    savepoint = savepoint_of(checkpoint)
    assert_same(run, Driver(service(), checkpoint=brought_in(savepoint, service()), parallelism=3))


def test_event_time_comes_along():
    run = driven(COMMANDS)
    run.watermark(1234)
    savepoint = savepoint_of(run.checkpoint())
    assert {mark.watermark_ms for mark in savepoint.manifest.watermarks} == {1234}
    again = Driver(service(), checkpoint=brought_in(savepoint, service()), parallelism=3)
    assert [subtask.chain.watermark for subtask in again._subtasks] == [1234] * 6


def test_buckets_keep_the_event_time_that_they_had():
    run = driven(COMMANDS)
    checkpoint = run.checkpoint()
    manifest = checkpoint.manifest
    parts = tuple(
        msgspec.structs.replace(part, watermark=100 + part.subtask.index)
        for part in manifest.subtasks
    )
    manifest = msgspec.structs.replace(manifest, subtasks=parts)
    changed = Checkpoint(checkpoint.key, checkpoint.objects | {checkpoint.key: encode(manifest)})
    savepoint = savepoint_of(changed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restoring, "OBJECT_BYTES", 2000)
        made = brought_in(savepoint, service(partitions=16))
    keyed = [p for p in made.manifest.subtasks if p.subtask.stage == "all.by-key"]
    assert [(part.buckets, part.watermark) for part in keyed] == [((0, 8), 100), ((8, 16), 101)]
    for part in keyed:
        ranges = [(ref.low, ref.high) for ref in part.chain]
        assert len(ranges) > 1
        assert all(part.buckets[0] <= low < high <= part.buckets[1] for low, high in ranges)
    again = Driver(service(partitions=16), checkpoint=made, parallelism=4)
    assert_same(run, again)
    marks = [s.chain.watermark for s in again._subtasks if s.source is None]
    assert marks == [100, 100, 101, 101]


@pytest.mark.parametrize(
    ("kind", "keys", "expected"),
    [
        (Any, ["a", "b", "Ω"], Schema("str")),
        (Any, [1, -5, 2**62], Schema("int")),
        (Any, [1, "a", None, 2.5, b"x"], Schema("any")),
        (float, [1.0, 2.5, -3.0], Schema("float")),
        (bool, [True, False], Schema("bool")),
        (tuple[str, int], [("a", 1), ("b", 2)], None),
        (Place, [Place("x", 1), Place("y", 2)], None),
        (Side, [Side.LEFT, Side.RIGHT], None),
        (uuid.UUID, [uuid.UUID(int=5)], Schema("uuid")),
        (dt.date, [dt.date(2026, 2, 3)], Schema("date")),
        (bytes, [b"\x00\xff", b""], Schema("bytes")),
    ],
)
def test_keys_of_many_types_come_back(kind, keys, expected):
    def made() -> ps.Service:
        service = ps.Service("s", app="app")
        stream = service.from_edge("in", value=int, key=kind, partitions=4)
        stream.process("p", Counting).sink("out", topic="out")
        return service

    run = Driver(made())
    for number, key in enumerate(keys):
        run.send_edge("in", number, key=key)
    savepoint = savepoint_of(run.checkpoint())
    if expected is not None:
        assert {state.key for state in savepoint.operator("p").states} == {expected}
    again = Driver(made(), checkpoint=brought_in(savepoint, made()), parallelism=2)
    for name in ("seen", "timers"):
        assert again.state("p", name) == run.state("p", name)
    assert len(run.state("p", "seen")) == len(keys)
    for key in keys:
        assert savepoint.lookup("p", "seen", key).num_rows == 1


class Counting(ps.KeyedProcess):
    seen = ps.ValueState(int)

    def process(self, value: int, ctx: ps.Context) -> None:
        self.seen.set(value)
        ctx.timers.event(10 + value)


def test_a_checkpoint_without_schemas_is_refused():
    checkpoint = driven(COMMANDS[:3]).checkpoint()
    manifest = checkpoint.manifest
    plain = msgspec.to_builtins(manifest)
    for service_ in plain["services"]:
        for stage in service_["stages"]:
            for operator in stage["operators"]:
                for state in operator["states"]:
                    state.pop("key"), state.pop("value")
    old = msgspec.convert(plain, type(manifest))
    target = SimulatedStore()
    with pytest.raises(
        ConfigurationError, match=r"(?s)'account' of operator 'everything'.*next ch"
    ):
        convert(old, lambda ref: b"", target, savepoint_id="x", created_at_ms=0)
    other = msgspec.structs.replace(manifest, key_hash="murmur")
    with pytest.raises(ConfigurationError, match="places keys by 'murmur'"):
        convert(other, lambda ref: b"", target, savepoint_id="x", created_at_ms=0)
    assert target.objects == {}


def test_a_hole_and_a_damaged_chunk_are_named():
    checkpoint = driven(COMMANDS).checkpoint()
    manifest = checkpoint.manifest
    parts = tuple(p for p in manifest.subtasks if str(p.subtask) != "all.by-key/0")
    holed = msgspec.structs.replace(manifest, subtasks=parts)
    with pytest.raises(CorruptedObject, match=r"no subtask of all\.by-key has partition 0"):
        convert(holed, lambda ref: b"", SimulatedStore(), savepoint_id="x", created_at_ms=0)
    with pytest.raises(CorruptedObject, match=r"snapshot object 'app/1/all.*has 1 bytes"):
        convert(manifest, lambda ref: b"x", SimulatedStore(), savepoint_id="x", created_at_ms=0)


def test_a_number_that_no_column_holds_is_named():
    run = driven([Command("big", number=1)])
    for table in (t for s in run._subtasks for t in s.state.tables() if t.name == "least"):
        for bucket, values in table.buckets.items():
            values.update(dict.fromkeys(values, 2**63))
            table.dirty_keys(bucket).update(values)
    with pytest.raises(ConfigurationError, match=r"'least'.*'big'.*9223372036854775808"):
        savepoint_of(run.checkpoint())
