"""The held frames of an edge: L7 (held in order, Kafka is the spill), L4 (a snapshot reflects
exactly the records before its barriers), L9 (no frame twice, none missing), L10 (other attempts).

A fake reader stands for Kafka; frames, `EdgeInput`, the alignment machine and the subtask are real.
"""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from penstock.barrier import alignment as barrier
from penstock.control import Deploy
from penstock.edge.frame import Kind, RowsCodec, encode_frame, encode_groups
from penstock.edge.input import EdgeInput
from penstock.failure import ProtocolViolation, UserCodeFailed
from penstock.graph import EdgeInputSpec, StageSpec
from penstock.ids import Attempt, ChannelId, CheckpointId, Position, SubtaskId
from penstock.record import MIN_WATERMARK, OperatorFailed
from penstock.runtime.background import Background
from penstock.runtime.intake import EdgeIntake
from penstock.runtime.ports import EdgeFrame
from penstock.runtime.subtask import Subtask
from penstock.snapshot.state import SubtaskState

ATTEMPT = Attempt(3)
EDGE = "words"


class Topic:
    """An edge topic of a few partitions; every message is a frame."""

    def __init__(self, partitions: int) -> None:
        self.messages: list[list[bytes]] = [[] for _ in range(partitions)]
        self._sequences: dict[tuple[int, int], int] = {}
        self.sent: dict[tuple[int, int], list[Any]] = {}
        """Channel -> what it carries, in order: values, and ("barrier", n)."""

    def data(self, partition: int, upstream: int, *values: Any) -> None:
        rows = [("key", value, 0) for value in values]
        sequence = self._numbered(partition, upstream)
        self.messages[partition].append(
            encode_groups(ATTEMPT, upstream, sequence, [(partition, rows)], True)
        )
        self.sent.setdefault((partition, upstream), []).extend(values)

    def control(self, partition: int, upstream: int, kind: Kind, value: int) -> None:
        sequence = self._numbered(partition, upstream)
        self.messages[partition].append(encode_frame(kind, ATTEMPT, upstream, sequence, value))

    def barrier(self, partition: int, upstream: int, checkpoint: int) -> None:
        self.control(partition, upstream, Kind.BARRIER, checkpoint)
        self.sent.setdefault((partition, upstream), []).append(("barrier", checkpoint))

    def _numbered(self, partition: int, upstream: int) -> int:
        number = self._sequences.get((partition, upstream), 0)
        self._sequences[partition, upstream] = number + 1
        return number


class FakeReader:
    """Hands out the topic in batches of a given shape: (partition, at most so many) each."""

    def __init__(self, topic: Topic, shape: Iterable[tuple[int, int]] = ()) -> None:
        self._topic = topic
        self._shape = iter(shape)
        self.at = [0] * len(topic.messages)
        self.seeks: list[tuple[int, int]] = []
        self.closed = False

    def poll(self, max_frames: int, timeout_s: float) -> list[EdgeFrame]:
        del timeout_s
        found: list[EdgeFrame] = []
        partition, count = next(self._shape, (-1, max_frames))
        order = [partition] if partition >= 0 else range(len(self.at))
        for chosen in order:
            for _ in range(min(count, max_frames - len(found))):
                if self.at[chosen] < len(self._topic.messages[chosen]):
                    offset = self.at[chosen]
                    data = self._topic.messages[chosen][offset]
                    found.append(EdgeFrame(chosen, offset, data))
                    self.at[chosen] += 1
        return found

    @property
    def is_at_end(self) -> bool:
        return all(at == len(m) for at, m in zip(self.at, self._topic.messages, strict=True))

    def seek(self, partition: int, position: Position) -> None:
        self.seeks.append((partition, int(position)))
        self.at[partition] = int(position)

    def close(self) -> None:
        self.closed = True


class Recorder:
    """A stage that remembers what was pushed."""

    def __init__(self) -> None:
        self.watermark = self.resumable_watermark = MIN_WATERMARK
        self.values: list[tuple[int, Any]] = []
        self.idle: list[bool] = []
        self.failing: tuple[Any, ...] | None = None

    def push(self, bucket: int, keys: Any, values: list[Any], times: list[int]) -> None:
        del keys, times
        for index, value in enumerate(map(tuple, values)):
            if value == self.failing:
                raise OperatorFailed("step", index, "ValueError: told to")
            self.values.append((bucket, value))

    def open(self, now_ms: int) -> None: ...
    def on_processing_time(self, now_ms: int) -> None: ...
    def source_watermark(self, now_ms: int) -> None: ...
    def on_watermark(self, ms: int) -> None:
        self.watermark = ms

    def on_idle(self, is_idle: bool) -> None:
        self.idle.append(is_idle)


class Frozen(SubtaskState):
    """A state that remembers how much had been processed at each barrier."""

    def __init__(self, buckets: range, stage: Recorder) -> None:
        super().__init__("app/3/stage-0", buckets)
        self._stage = stage
        self.at: dict[int, int] = {}

    def freeze(self, checkpoint: CheckpointId) -> None:
        assert checkpoint not in self.at
        self.at[checkpoint] = len(self._stage.values)
        super().freeze(checkpoint)


class Receiving:
    """One subtask that reads the edge, with everything around it faked."""

    def __init__(
        self,
        topic: Topic,
        upstreams: int,
        *,
        held_bytes: int = 1 << 20,
        shape: Iterable[tuple[int, int]] = (),
    ) -> None:
        partitions = range(len(topic.messages))
        self.reader = FakeReader(topic, shape)
        self.stage = Recorder()
        self.state = Frozen(partitions, self.stage)
        self.reports: list[Any] = []
        spec = StageSpec(
            name="service.words",
            input=EdgeInputSpec(uid=EDGE, key="str", value="Any", partitions=len(partitions)),
            operators=(), edges=(), sinks=(),
        )  # fmt: skip
        deploy = Deploy(
            attempt=ATTEMPT, checkpoint=None, manifest=None, services=(), parallelism={},
            assignment={}, edge_starts={}, pool=4,
        )  # fmt: skip
        self.subtask = Subtask(
            SubtaskId("service.words", 0), spec, deploy, worker="w", state=self.state,
            buckets=partitions, store=None, work=Background(1, "test"),  # type: ignore[arg-type]
            report=self.reports.append,
        )  # fmt: skip
        self.edge = EdgeInput(EDGE, ATTEMPT, upstreams, partitions, key=str, value=Any)
        self.intake = EdgeIntake(
            self.reader, self.stage, self.edge, f"app.edge.{EDGE}",  # type: ignore[arg-type]
            dict.fromkeys(partitions, Position(0)),
            on_barrier=self.subtask.barrier_arrived, held_bytes=held_bytes,
        )  # fmt: skip
        alignment = barrier.alignment(frozenset(self.edge.channels()), None)
        self.subtask.started(self.stage, self.intake, None, alignment)  # type: ignore[arg-type]

    def turn(self) -> None:
        self.subtask.turn(0.0)

    def drain(self) -> None:
        """Read to the end of the topic and let everything that is held go."""
        for _ in range(10_000):
            if self.reader.is_at_end and not self.intake.held_bytes:
                break
            self.turn()
        self.turn()

    def of_channel(self, partition: int, upstream: int) -> list[Any]:
        return [v for p, v in self.stage.values if p == partition and v[0] == upstream]


def test_what_is_held_comes_after_the_barrier_in_order() -> None:
    """L7, L4: the faster channel waits behind its barrier; nothing of it is in the snapshot."""
    topic = Topic(1)
    topic.data(0, 0, (0, "a"))
    topic.barrier(0, 0, 1)
    topic.data(0, 0, (0, "b"), (0, "c"))
    topic.data(0, 1, (1, "d"))
    topic.barrier(0, 1, 1)
    topic.data(0, 1, (1, "e"))
    run = Receiving(topic, 2)
    run.drain()
    assert [v for _, v in run.stage.values] == [(0, "a"), (1, "d"), (0, "b"), (0, "c"), (1, "e")]
    assert run.state.at == {1: 2}
    assert run.reader.seeks == []


def test_past_the_bound_frames_are_forgotten_and_read_again() -> None:
    """L7: Kafka is the spill; the release comes in the middle of a polled batch."""
    topic = Topic(1)
    topic.barrier(0, 0, 1)
    for n in range(8):
        topic.data(0, 0, (0, n))
    topic.data(0, 1, (1, 0))
    topic.barrier(0, 1, 1)
    topic.data(0, 1, (1, 1))
    topic.data(0, 0, (0, 8))
    run = Receiving(topic, 2, held_bytes=100)
    run.turn()  # one batch holds all of it
    assert run.intake.spills == 1
    assert run.reader.seeks == [(0, 1)]
    assert run.stage.values == [(0, (1, 0))], "what was spilled waits for its second reading"
    run.drain()
    assert run.of_channel(0, 0) == [(0, n) for n in range(9)]
    assert run.of_channel(0, 1) == [(1, 0), (1, 1)]
    assert run.state.at == {1: 1}
    assert run.intake.held_bytes == 0


def test_memory_held_is_bounded() -> None:
    """L7: however far one channel runs ahead, not more than the bound and one frame is held."""
    topic = Topic(2)
    topic.barrier(0, 0, 1)
    for n in range(200):
        topic.data(0, 0, (0, n))
    run = Receiving(topic, 1, held_bytes=1000)
    while not run.reader.is_at_end:
        run.turn()
        assert run.intake.held_bytes <= 1000
    assert run.intake.positions() == {0: 1, 1: 0}, "nothing that is forgotten counts as processed"
    topic.barrier(1, 0, 1)
    run.drain()
    assert run.of_channel(0, 0) == [(0, n) for n in range(200)]


def test_an_abort_lets_go_of_what_is_held() -> None:
    """B3: Abort comes from the decision log, between two batches."""
    topic = Topic(1)
    topic.barrier(0, 0, 1)
    topic.data(0, 0, (0, "a"))
    run = Receiving(topic, 2)
    run.turn()
    assert run.stage.values == []
    run.subtask.aborted(CheckpointId(1))
    run.turn()
    assert run.stage.values == [(0, (0, "a"))]
    assert run.state.at == {}


def test_a_newer_checkpoint_among_the_held_frames_aligns() -> None:
    """B3: barriers 2 are held on two channels when the third says that checkpoint 1 is over.

    The third channel must not stay held behind a checkpoint that has aligned meanwhile.
    """
    topic = Topic(3)
    for partition in (0, 1):
        topic.barrier(partition, 0, 1)
        topic.barrier(partition, 0, 2)
        topic.data(partition, 0, (0, "after"))
    topic.barrier(2, 0, 2)
    topic.data(2, 0, (0, "after"))
    run = Receiving(topic, 1, shape=[(0, 9), (1, 9), (2, 9)])
    for _ in range(4):
        run.turn()
    assert run.state.at == {2: 0}
    assert sorted(run.stage.values) == [(p, (0, "after")) for p in range(3)]


def test_frames_of_other_attempts_are_passed_over() -> None:
    """L10: a paused subtask of an old attempt writes, and nobody listens."""
    topic = Topic(1)
    topic.messages[0].append(
        encode_groups(Attempt(2), 0, 17, [(0, [("key", (0, "old"), 0)])], True)
    )
    topic.data(0, 0, (0, "new"))
    run = Receiving(topic, 1)
    run.drain()
    assert run.stage.values == [(0, (0, "new"))]
    assert run.edge.dropped == 1
    assert run.intake.positions() == {0: 2}


def test_a_gap_ends_the_attempt() -> None:
    """L9: sequence numbers are contiguous; a lost frame is said, never guessed."""
    topic = Topic(1)
    topic.data(0, 0, (0, 1))
    topic.data(0, 0, (0, 2))
    del topic.messages[0][0]
    with pytest.raises(ProtocolViolation, match=r"words\[0\]<-0: expected sequence 0, found 1"):
        Receiving(topic, 1).drain()


def test_a_user_exception_names_topic_partition_and_offset() -> None:
    topic = Topic(1)
    topic.data(0, 0, (0, 1))
    topic.data(0, 0, (0, 2), (0, 3))
    run = Receiving(topic, 1)
    run.stage.failing = (0, 3)
    with pytest.raises(UserCodeFailed) as caught:
        run.drain()
    assert str(caught.value) == (
        "operator 'step': ValueError: told to; record: topic 'app.edge.words', partition 0, "
        "offset 1, record 1 of its frame"
    )


def test_watermarks_are_the_least_over_channels_that_are_not_idle() -> None:
    topic = Topic(1)
    topic.control(0, 0, Kind.WATERMARK, 500)
    topic.control(0, 1, Kind.WATERMARK, 300)
    run = Receiving(topic, 2)
    run.drain()
    assert run.stage.watermark == 300
    topic.control(0, 1, Kind.STATUS, 1)
    run.drain()
    assert run.stage.watermark == 500
    topic.control(0, 0, Kind.STATUS, 1)
    run.drain()
    assert run.stage.idle[-1] is True


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Topic, int, list[Any], int]:
    """An edge with barriers that not every channel got, and how it is read."""
    partitions, upstreams = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    topic = Topic(partitions)
    channels = [(p, u) for p in range(partitions) for u in range(upstreams)]
    checkpoints = draw(st.integers(0, 4))
    plans: dict[tuple[int, int], list[Any]] = {}
    for channel in channels:
        plan: list[Any] = []
        for n in range(1, checkpoints + 1):
            plan += ["data"] * draw(st.integers(0, 4))
            if draw(st.integers(0, 9)):  # else this upstream had seen its abort and sent none
                plan.append(n)
        plans[channel] = plan + ["data"] * draw(st.integers(0, 4))
    number = 0
    while open_channels := [c for c in channels if plans[c]]:
        channel = draw(st.sampled_from(open_channels))
        for _ in range(draw(st.integers(1, 4))):
            if not plans[channel]:
                break
            item = plans[channel].pop(0)
            if item == "data":
                number += 1
                size = draw(st.sampled_from([0, 5, 40]))
                topic.data(*channel, (channel[1], number, "x" * size))
            else:
                topic.barrier(*channel, item)
    moves = st.one_of(
        st.tuples(st.integers(-1, partitions - 1), st.integers(1, 16)),
        st.tuples(st.just("abort"), st.integers(1, max(1, checkpoints))),
    )
    held_bytes = draw(st.sampled_from([0, 60, 150, 400, 1 << 20]))
    return topic, upstreams, draw(st.lists(moves, max_size=40)), held_bytes


@settings(max_examples=150, deadline=None)
@given(worlds())
def test_nothing_is_lost_repeated_or_reordered(
    world: tuple[Topic, int, list[Any], int],
) -> None:
    """L7, L4, L9 for any interleaving, batching, aborts and bound; L24: positions lose nothing."""
    topic, upstreams, moves, held_bytes = world
    shape: list[tuple[int, int]] = []
    run = Receiving(topic, upstreams, held_bytes=held_bytes, shape=_taken(shape))
    for move in moves:
        if move[0] == "abort":
            run.subtask.aborted(CheckpointId(move[1]))
        else:
            shape.append(move)
            run.turn()
        _check_positions(run, topic)
    run.drain()
    for n in range(1, 6):
        run.subtask.aborted(CheckpointId(n))
        run.drain()
    for (partition, upstream), sent in topic.sent.items():
        values = [item for item in sent if item[0] != "barrier"]
        assert run.of_channel(partition, upstream) == values
    for checkpoint, processed in run.state.at.items():
        _check_snapshot(run, topic, checkpoint, processed)


def _taken(shape: list[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    while True:
        yield shape.pop() if shape else (-1, 16)


def _check_snapshot(run: Receiving, topic: Topic, checkpoint: int, processed: int) -> None:
    """L4: what had been processed is what came before the barrier, channel by channel."""
    before = run.stage.values[:processed]
    for (partition, upstream), sent in topic.sent.items():
        assert ("barrier", checkpoint) in sent
        expected = [v for v in sent[: sent.index(("barrier", checkpoint))] if v[0] != "barrier"]
        assert [v for p, v in before if p == partition and v[0] == upstream] == expected


def _check_positions(run: Receiving, topic: Topic) -> None:
    """L24: every data frame that was not processed is at or after its partition's position."""
    columns = RowsCodec(EDGE, str, Any)
    done = {tuple(value) for _, value in run.stage.values}
    for partition, position in run.intake.positions().items():
        for offset, data in enumerate(topic.messages[partition][:position]):
            frame = columns.frame(data)
            if frame.kind is Kind.DATA:
                ((_, _, values, _),) = columns.groups(frame)
                assert all(tuple(value) in done for value in values), (partition, offset)


def test_channels_of_a_new_intake() -> None:
    run = Receiving(Topic(2), 2)
    assert run.edge.channels() == [ChannelId(EDGE, p, u) for p in range(2) for u in range(2)]
    run.intake.close()
    assert run.reader.closed
