"""The reading end of an edge: which frames count (L10), and that none is missing (L9).

Alignment is not done here (see `penstock.barrier`): this says which frame comes next in its
channel.
"""

from collections.abc import Iterable
from typing import Any

from penstock.edge.frame import KINDS, Frame, RowsCodec, decode_header
from penstock.failure import ProtocolViolation
from penstock.ids import Attempt, ChannelId, Position


class EdgeInput:
    """One subtask's reading end of one edge, in the life of one attempt.

    Args:
        edge: the edge's name.
        attempt: frames of every other attempt are dropped (L10).
        upstreams: number of upstream subtasks that write to the edge.
        lanes: the partitions whose frames carry the buckets of this subtask.
        key: type of the keys.
        value: type of the values.
    """

    def __init__(
        self,
        edge: str,
        attempt: Attempt,
        upstreams: int,
        lanes: Iterable[int],
        *,
        key: Any = Any,
        value: Any = Any,
    ) -> None:
        self.edge = edge
        self.dropped = 0
        """Frames of other attempts so far."""
        self._attempt = int(attempt)
        self._upstreams = upstreams
        self._expected: dict[int, list[int]] = {p: [0] * upstreams for p in lanes}
        self._reread_until: dict[int, int] = {}
        self.groups = RowsCodec(edge, key, value).groups
        """``groups(frame) -> [(bucket, keys, values, times)...]`` of a data frame."""

    def channels(self) -> list[ChannelId]:
        """Every channel of this input, in order."""
        return [
            ChannelId(self.edge, partition, upstream)
            for partition in self._expected
            for upstream in range(self._upstreams)
        ]

    def accept(self, partition: int, offset: int, data: bytes) -> Frame | None:
        """The frame in a message, None when it is of another attempt or was accepted before.

        Raises ProtocolViolation on a gap or a repeat (L9), naming channel, expected and found.
        """
        _, kind, attempt, upstream, sequence, value, count = decode_header(
            data, f"edge {self.edge!r}, partition {partition}, offset {offset}"
        )
        if attempt != self._attempt:
            self.dropped += 1
            return None
        expected = self._expected[partition]
        if upstream >= len(expected):
            raise ProtocolViolation(
                f"edge {self.edge!r}, partition {partition}, offset {offset}: upstream "
                f"{upstream} of "
                f"{len(expected)} expected; two deployments share attempt {attempt}"
            )
        if sequence != expected[upstream]:
            if sequence < expected[upstream] and offset < self._reread_until.get(partition, 0):
                return None
            raise ProtocolViolation(
                f"channel {ChannelId(self.edge, partition, upstream)}: expected sequence "
                f"{expected[upstream]}, found {sequence} at offset {offset}: frames were lost or "
                "repeated; the attempt is over and restore follows"
            )
        expected[upstream] = sequence + 1
        return Frame(KINDS[kind], partition, offset, upstream, sequence, value, count, data)

    def skip_below(self, partition: int, until: Position, forgotten: dict[int, int]) -> None:
        """Get ready to read ``partition`` again after a spill (L7).

        Args:
            partition: the partition that will be sought back.
            until: next offset that was never read: before it, frames already accepted are skipped.
            forgotten: upstream -> sequence of its first frame that must be given again.
        """
        self._reread_until[partition] = max(until, self._reread_until.get(partition, 0))
        for upstream, sequence in forgotten.items():
            self._expected[partition][upstream] = sequence
