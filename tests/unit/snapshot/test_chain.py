"""The chain of a checkpoint, restored, is the live state at its barrier (L4, L18, L20)."""

import hashlib
import random
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.control import ChunkRef
from penstock.failure import ConfigurationError, CorruptedObject
from penstock.ids import CheckpointId, owned_partitions
from penstock.snapshot import state as states
from penstock.snapshot.chunk import Chunk, decode_chunk
from penstock.snapshot.state import Sealed, SubtaskState

BUCKETS = 4
Live = dict[int, dict[tuple[str, int], list[int]]]


class World:
    """A subtask's state, a store, and what each barrier saw."""

    def __init__(self, prefix: str = "app/1/s.x-0", buckets: range = range(BUCKETS)) -> None:
        self.state = SubtaskState(prefix, buckets)
        self.table = self.state.table("op", "seen", "list", tuple[str, int], list[int])
        self.store: dict[str, bytes] = {}
        self.number = 0
        self.expected: dict[int, Live] = {}

    def put(self, bucket: int, key: tuple[str, int], value: int) -> None:
        self.state.rescue((self.table,), bucket, [key])
        # In place, as a handler does: what was frozen must not see it.
        self.table.bucket(bucket).setdefault(key, []).append(value)
        self.table.dirty_keys(bucket).add(key)

    def drop(self, bucket: int, key: tuple[str, int]) -> None:
        self.state.rescue((self.table,), bucket, [key])
        if self.table.bucket(bucket).pop(key, None) is not None:
            self.table.dirty_keys(bucket).add(key)

    def freeze(self) -> None:
        self.number += 1
        self.expected[self.number] = self.live()
        self.state.freeze(CheckpointId(self.number))

    def live(self) -> Live:
        found = {
            bucket: {key: list(value) for key, value in values.items()}
            for bucket, values in self.table.buckets.items()
        }
        return {bucket: values for bucket, values in found.items() if values}

    def upload(self, fail: bool) -> None:
        for chunk in self.state.take_chunk():
            if fail:
                self.state.upload_failed(chunk)
                continue
            assert chunk.name not in self.store, "an object is written once (L19)"
            self.store[chunk.name] = chunk.data
            chunk.stored()

    def restored(
        self, sealed: Sealed, manifest: str, parallelism: int = 1, low: int = 0, high: int = BUCKETS
    ) -> list["World"]:
        """New subtasks, each from the chain narrowed to [low, high)."""
        inline = sealed.inline()
        worlds = []
        for index in range(parallelism):
            owned = owned_partitions(BUCKETS, parallelism, index)
            world = World(f"app/2/s.x-{index}", owned)
            chunks = []
            for ref in sealed.chain():
                if ref.entry in inline:
                    data = inline[ref.entry]
                    ref = ChunkRef(manifest, ref.size, ref.sha256, low, high, ref.base, ref.entry)
                    self.store[f"{manifest}#{ref.entry}"] = data
                elif ref.entry is not None:
                    data = self.store[f"{ref.key}#{ref.entry}"]
                else:
                    data = self.store[ref.key]
                assert hashlib.sha256(data).hexdigest() == ref.sha256
                chunks.append((ref, data))
            world.state.restore(chunks)
            world.store = dict(self.store)
            worlds.append(world)
        return worlds


def united(worlds: list[World]) -> Live:
    return {bucket: values for world in worlds for bucket, values in world.live().items()}


KEYS = st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 2))
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, BUCKETS - 1), KEYS, st.integers(0, 9)),
        st.tuples(st.just("drop"), st.integers(0, BUCKETS - 1), KEYS),
        st.tuples(st.just("freeze")),
        st.tuples(st.just("slice"), st.integers(1, 6)),
        st.tuples(st.just("finish"), st.booleans()),
        st.tuples(st.just("complete")),
        st.tuples(st.just("abort")),
        st.tuples(st.just("restore"), st.integers(1, BUCKETS)),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(actions=ACTIONS, inline=st.sampled_from([0, 64, 16384]), rebase=st.sampled_from([0, 100]))
def test_any_schedule_restores_to_the_barrier(actions, inline, rebase):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.snapshot.chunk.INLINE_BYTES", inline)
        patch.setattr(states, "REBASE_BYTES", rebase)
        patch.setattr(states, "REBASE_FACTOR", 1)
        patch.setattr(states, "OBJECT_BYTES", 200)
        patch.setattr("penstock.snapshot.base.OBJECT_BYTES", 200)
        play(World(), actions)


@pytest.mark.parametrize("seed", range(40))
def test_long_schedules_with_bases_in_the_making(seed, monkeypatch):
    """Bases are encoded over several epochs while keys change, deltas are given up half-way."""
    monkeypatch.setattr("penstock.snapshot.chunk.INLINE_BYTES", (0, 100)[seed % 2])
    monkeypatch.setattr(states, "REBASE_BYTES", 0)
    monkeypatch.setattr(states, "REBASE_FACTOR", 1)
    monkeypatch.setattr("penstock.snapshot.base.OBJECT_BYTES", 300)
    chance = random.Random(seed)
    world = World()
    bases = given_up = 0
    for _ in range(1200):
        bucket, key = chance.randrange(BUCKETS), (chance.choice("abcdefgh"), chance.randrange(2))
        match chance.choices(("put", "drop", "freeze", "slice", "check"), (50, 12, 7, 28, 3))[0]:
            case "put":
                world.put(bucket, key, chance.randrange(10))
            case "drop":
                world.drop(bucket, key)
            case "freeze":
                given_up += world.state.encoding is not None
                world.freeze()
            case "slice":
                world.state.advance(chance.randint(1, 4))
            case "check" if world.number:
                bases += world.state._base is not None
                check(world, world.number, complete=chance.random() < 0.5, heir=False)
    assert bases > 3
    assert given_up > 3


def play(world: World, actions: list[tuple]) -> None:
    for action in actions:
        match action:
            case ("put", bucket, key, value):
                world.put(bucket, key, value)
            case ("drop", bucket, key):
                world.drop(bucket, key)
            case ("freeze",):
                world.freeze()
            case ("slice", budget):
                world.state.advance(budget)
            case ("finish", fail):
                world.state.advance(1000)
                world.upload(fail)
            case ("complete",):
                check(world, world.number, complete=True)
            case ("abort",):
                world.state.aborted(CheckpointId(world.number))
            case ("restore", parallelism) if parallelism == 1 and world.number:
                world = check(world, world.number, complete=True) or world
            case ("restore", parallelism):
                check(world, world.number, parallelism=parallelism)


def check(
    world: World, number: int, *, complete: bool = False, parallelism: int = 1, heir: bool = True
) -> World | None:
    """Restoring checkpoint ``number`` gives what its barrier saw."""
    world.state.advance(1000)
    world.upload(fail=False)
    sealed = world.state.sealed(CheckpointId(number))
    if sealed is None:
        return None
    assert sealed.is_stored
    manifest = f"app/manifests/{number}.json"
    worlds = world.restored(sealed, manifest, parallelism)
    assert united(worlds) == world.expected[number]
    if complete:
        world.state.completed(CheckpointId(number), manifest)
    if parallelism > 1 or not heir:
        return None
    successor = worlds[0]
    successor.number = number
    successor.state.prefix = f"app/{number}-{len(world.store)}/s.x-0"
    return successor


def test_the_chain_is_rebased_and_stays_short():
    world = World()
    for n in range(200):
        world.put(0, ("a", n % 50), n)
        world.freeze()
        while not world.state.advance(8):
            pass
        world.state.advance(8)
        world.upload(fail=False)
        sealed = world.state.sealed(CheckpointId(world.number))
        assert sealed is not None
        assert len(sealed.chunks) <= states.REBASE_REFS + 8
        world.state.completed(CheckpointId(world.number), f"app/manifests/{n}.json")


def test_a_delta_of_every_key_is_a_base():
    world = World()
    for n in range(3):
        world.put(1, ("a", 0), n)
        world.put(2, ("b", 0), n)
        world.freeze()
        assert world.state.advance(100)
        sealed = world.state.sealed(CheckpointId(world.number))
        assert sealed is not None
        assert [ref.base for ref in sealed.chain()] == [True]


def test_a_failed_upload_is_tried_again_under_its_name(monkeypatch):
    monkeypatch.setattr("penstock.snapshot.chunk.INLINE_BYTES", 0)
    world = World()
    world.put(0, ("a", 0), 1)
    world.put(0, ("b", 0), 1)
    world.freeze()
    world.state.advance()
    (chunk,) = world.state.take_chunk()
    assert world.state.take_chunk() == []
    world.state.upload_failed(chunk)
    world.state.aborted(CheckpointId(1))
    world.put(0, ("a", 0), 2)
    world.freeze()
    world.state.advance()
    sealed = world.state.sealed(CheckpointId(2))
    assert sealed is not None
    assert not sealed.is_stored
    assert [c.name for c in world.state.take_chunk()] == [ref.key for ref in sealed.chain()]
    assert sealed.chunks[0] is chunk


def test_freeze_does_not_look_at_keys():
    """L18: the work at the barrier is per bucket, not per key."""
    state = SubtaskState("app/1/s-0", range(1))
    table = state.table("op", "v", "value", int, int)

    class Counted(set):
        looked = 0

        def __iter__(self):
            type(self).looked += 1
            return super().__iter__()

    table.bucket(0).update({i: i for i in range(1000)})
    table.dirty[0] = Counted(range(1000))
    state.freeze(CheckpointId(1))
    assert Counted.looked == 0


def test_a_value_of_another_type_is_told_before_it_is_stored():
    state = SubtaskState("app/1/s-0", range(1))
    table = state.table("sums", "total", "value", str, int)
    table.bucket(0)["a"] = "many"
    table.dirty_keys(0).add("a")
    state.freeze(CheckpointId(1))
    with pytest.raises(ConfigurationError, match=r"'total' of operator 'sums'.*str -> int"):
        state.advance()


def damaged() -> tuple[bytes, ChunkRef]:
    world = World()
    for n in range(20):
        world.put(n % BUCKETS, ("a", n), n)
    world.freeze()
    world.state.advance(1000)
    sealed = world.state.sealed(CheckpointId(1))
    assert sealed is not None
    chunk = sealed.chunks[0]
    return chunk.data, ChunkRef("app/x.chunk", len(chunk.data), "", 0, BUCKETS)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"NOTACHUNK" + data[9:],
        lambda _: b"",
        lambda data: data[:40],
        lambda data: data[:8] + b"\xdd\xff\xff\xff\xff",
        lambda data: data[:8] + b"\x91" * 50_000,
        lambda data: data[:8] + b"\x91\x96\xa2op\xa4seen\x00\x05\xc4\x01\x80\xc4\x00",
        lambda data: (
            data[:8] + b"\x91\x96\xa2op\xa4seen\x00\x01\xc4\x05\xdf\xff\xff\xff\xff\xc4\x00"
        ),
        lambda data: data[:8] + b"\x91\x96\xa2op\xa4seen\x00\x00\xc4\x01\x80\xc4\x03\xdc\xff\xff",
    ],
)
def test_a_damaged_chunk_is_named(spoil):
    """L19, L21: whatever the bytes are, the answer is one error that names the object."""
    data, ref = damaged()
    data = spoil(data)
    world = World()
    with pytest.raises(CorruptedObject, match=r"app/x\.chunk"):
        world.state.restore([(ChunkRef(ref.key, len(data), "", 0, BUCKETS), data)])


def test_a_chunk_of_another_length_is_named():
    data, ref = damaged()
    with pytest.raises(CorruptedObject, match="expected"):
        World().state.restore([(ref, data[:-1])])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_bit_rot_never_escapes(data):
    good, ref = damaged()
    at = data.draw(st.integers(0, len(good) - 1))
    bad = good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :]
    with suppress(CorruptedObject, ConfigurationError):
        World().state.restore([(ref, bad)])


def test_a_chunk_keeps_no_bytes_once_stored():
    chunk = Chunk("n", [], range(1), base=False)
    assert decode_chunk("n", chunk.data) == []
    chunk.stored()
    assert chunk._data is None
    assert chunk.ref.size > 0
