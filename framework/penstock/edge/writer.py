"""The writing end of an edge: routes records to partitions and packs them into frames.

Invariants: sequence numbers of a partition are contiguous from 0 within the attempt (L9); a control
record leaves after every record that was written before it, on every lane (L6).
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import msgspec

from penstock.edge.frame import Kind, Rows, encode_frame, encode_groups
from penstock.edge.routing import UnusableKey, partition_of
from penstock.graph import EdgeOutputSpec
from penstock.ids import Attempt, CheckpointId
from penstock.record import MIN_WATERMARK, OperatorFailed, described

FRAME_ROWS = 500
"""Rows of one bucket in a frame; a frame of several buckets holds up to LANE_ROWS."""
LANE_ROWS = 4000
FRAME_BYTES = 256 * 1024
FLUSH_MS = 5
CACHED_KEYS = 200_000
UNKEYED = "None"
"""The key type of an edge whose records have no key."""
_PLAIN = frozenset({str, int, bytes, bool, float, type(None)})

Send = Callable[[str, int, bytes], None]
"""``send(edge, partition, frame)``: keeps the order within a partition."""


class EdgeWriter:
    """One subtask's writing end of one edge, in the life of one attempt.

    Args:
        edge: what is written, and over how many partitions.
        attempt: stands in every frame; readers drop the frames of other attempts (L10).
        upstream: this subtask's number among all upstream subtasks of the edge, in plan order.
        send: takes each finished frame.
        max_parallelism: number of key groups of the application.
        key: declared type of the keys; Any means that only plain scalars may pass.
        lanes: bucket -> the partition whose frames carry it; None: its own. The buckets of one
            reader share a lane, so that a flush or a barrier costs one message a reader, not one a
            bucket (decision 0008).
    """

    def __init__(
        self,
        edge: EdgeOutputSpec,
        attempt: Attempt,
        upstream: int,
        send: Send,
        *,
        max_parallelism: int = 128,
        key: Any = Any,
        lanes: Sequence[int] | None = None,
    ) -> None:
        self.edge = edge
        self.frames_sent = 0
        self.bytes_sent = 0
        self._name = edge.name
        self._partitions = edge.partitions
        self._attempt = int(attempt)
        self._upstream = upstream
        self._send = send
        self._max_parallelism = max_parallelism
        self._key = key
        self._keyed = edge.key != UNKEYED
        self._buffers: list[list[Any]] = [[] for _ in range(edge.partitions)]
        of_lane: dict[int, list[int]] = {}
        for bucket, lane in enumerate(range(edge.partitions) if lanes is None else lanes):
            of_lane.setdefault(lane, []).append(bucket)
        self._lanes = [
            (lane, [(bucket, self._buffers[bucket]) for bucket in buckets])
            for lane, buckets in sorted(of_lane.items())
        ]
        self._sequences = dict.fromkeys(of_lane, 0)
        self._appends: dict[Any, Callable[[Any], None]] = {}
        widest = max(map(len, of_lane.values()))
        self._most_rows = self._rows_per_frame = min(LANE_ROWS, FRAME_ROWS * widest)
        self._turn = upstream % edge.partitions
        self._waiting_since: int | None = None
        self._waiting = False
        self._watermark = MIN_WATERMARK

    def write(self, keys: list[Any] | None, values: list[Any], times: list[int]) -> None:
        """Route a batch; full frames leave at once. Raises OperatorFailed for an unusable key."""
        if keys is None:
            # Without keys a batch stays together; the next one goes to the next partition.
            self._turn = (self._turn + 1) % self._partitions
            self._buffers[self._turn].extend(zip(repeat(None), values, times))
        else:
            self._route(keys, values, times)
        self._waiting = True
        limit = self._rows_per_frame
        for lane, buffers in self._lanes:
            if sum([len(rows) for _, rows in buffers]) >= limit:
                self._send_lane(lane, buffers)

    def flush_due(self, now_ms: int) -> bool:
        """Send what has waited for FLUSH_MS; True when frames left. ``now_ms`` may be any clock."""
        if not self._waiting:
            return False
        if self._waiting_since is None:
            self._waiting_since = now_ms
            return False
        if now_ms - self._waiting_since < FLUSH_MS:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        """Send everything that waits, now."""
        if self._waiting:
            for lane, buffers in self._lanes:
                self._send_lane(lane, buffers)
        self._waiting = False
        self._waiting_since = None

    def barrier(self, checkpoint: CheckpointId) -> None:
        """End checkpoint ``checkpoint``'s records on every lane (L6)."""
        self._control(Kind.BARRIER, int(checkpoint))

    def watermark(self, watermark_ms: int) -> None:
        """Tell every lane that event time has reached ``watermark_ms``; never goes back."""
        if watermark_ms > self._watermark:
            self._watermark = watermark_ms
            self._control(Kind.WATERMARK, watermark_ms)

    def idle(self, is_idle: bool) -> None:
        """Tell every lane that this channel holds back no watermark, or does again."""
        self._control(Kind.STATUS, int(is_idle))

    def end(self) -> None:
        """Tell every lane that nothing follows."""
        self._control(Kind.END, 0)

    def _route(self, keys: list[Any], values: list[Any], times: list[int]) -> None:
        rows = zip(keys, values, times, strict=False)
        appends = self._appends
        written = iter(rows)
        while True:
            row = None
            try:
                for row in written:
                    appends[row[0]](row)
                return
            except KeyError:
                # The first record of a key: find its partition, then go on behind it.
                assert row is not None
                self._admit(row[0], keys)(row)
            except TypeError as error:
                assert row is not None
                raise self._refused(row[0], keys, described(error)) from error

    def _admit(self, key: Any, keys: list[Any]) -> Callable[[Any], None]:
        try:
            if self._key is not Any:
                msgspec.convert(key, self._key)
            elif type(key) not in _PLAIN:
                raise UnusableKey(
                    f"a {type(key).__name__} does not come back as one from an edge without a key "
                    "type; declare it: key_by(..., key=...) or to_edge(..., key_type=...)"
                )
            partition = partition_of(key, self._partitions, self._max_parallelism)
        except (UnusableKey, ValueError, TypeError, msgspec.MsgspecError) as error:
            raise self._refused(key, keys, str(error)) from error
        if len(self._appends) >= CACHED_KEYS:
            self._appends.clear()
        append = self._appends[key] = self._buffers[partition].append
        return append

    def _refused(self, key: Any, keys: list[Any], reason: str) -> OperatorFailed:
        index = next((i for i, other in enumerate(keys) if other is key), None)
        return OperatorFailed(
            self._name, index, f"edge {self._name!r} cannot take the key {key!r:.200}: {reason}"
        )

    def _send_lane(self, lane: int, buffers: list[tuple[int, Rows]]) -> None:
        """Everything that waits for a lane, in frames of bounded size."""
        groups: list[tuple[int, Rows]] = []
        count = 0
        for bucket, rows in buffers:
            limit = self._rows_per_frame
            for start in range(0, len(rows), limit):
                part = rows[start : start + limit]
                if groups and count + len(part) > limit:
                    self._send_groups(lane, groups)
                    groups, count = [], 0
                groups.append((bucket, part))
                count += len(part)
            rows.clear()
        if groups:
            self._send_groups(lane, groups)

    def _send_groups(self, lane: int, groups: list[tuple[int, Rows]]) -> None:
        """One frame, or several when the rows are larger than the last ones were."""
        try:
            data = encode_groups(
                self._attempt, self._upstream, self._sequences[lane], groups, self._keyed
            )
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise self._unencodable([row for _, rows in groups for row in rows], error) from error
        count = sum(len(rows) for _, rows in groups)
        if len(data) > FRAME_BYTES and count > 1:
            self._rows_per_frame = max(1, min(self._most_rows, count * FRAME_BYTES // len(data)))
            if len(data) > 2 * FRAME_BYTES:
                for half in _halves(groups):
                    self._send_groups(lane, half)
                return
        elif self._rows_per_frame < self._most_rows and len(data) < FRAME_BYTES // 2:
            self._rows_per_frame = min(self._most_rows, self._rows_per_frame * 2)
        self._sent(lane, data)

    def _unencodable(self, rows: list[Any], error: Exception) -> OperatorFailed:
        for key, value, _ in rows:
            try:
                msgspec.msgpack.encode((key, value))
            except (TypeError, ValueError, msgspec.MsgspecError):
                return OperatorFailed(
                    self._name,
                    None,
                    f"edge {self._name!r} cannot encode the record {value!r:.200} of key "
                    f"{key!r:.100}: {described(error)}; send msgspec types, numbers, strings, "
                    "bytes",
                )
        return OperatorFailed(self._name, None, described(error))

    def _control(self, kind: Kind, value: int) -> None:
        self.flush()
        for lane, sequence in self._sequences.items():
            frame = encode_frame(kind, self._attempt, self._upstream, sequence, value)
            self._sent(lane, frame)

    def _sent(self, lane: int, data: bytes) -> None:
        self._sequences[lane] += 1
        self.frames_sent += 1
        self.bytes_sent += len(data)
        self._send(self._name, lane, data)


def _halves(groups: list[tuple[int, Rows]]) -> tuple[list[tuple[int, Rows]], ...]:
    if len(groups) > 1:
        middle = len(groups) // 2
        return groups[:middle], groups[middle:]
    bucket, rows = groups[0]
    middle = len(rows) // 2
    return [(bucket, rows[:middle])], [(bucket, rows[middle:])]
