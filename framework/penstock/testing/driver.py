"""A test driver for users: services without a broker, a store or a clock of their own.

    >>> import penstock as ps
    >>> from penstock.testing import Driver
    >>> class Count(ps.KeyedProcess):
    ...     seen = ps.ValueState(int, default=0)
    ...     def process(self, word, ctx):
    ...         self.seen.set(self.seen.get() + 1)
    ...         ctx.emit([word, self.seen.get()])
    >>> service = ps.Service("counter", app="words")
    >>> _ = (service.source("words", topic="words", value=str)
    ...      .key_by("by-word", lambda word: word)
    ...      .process("count", Count)
    ...      .sink("counts", topic="counts"))
    >>> driver = Driver(service)
    >>> driver.send("words", "a", "b", "a")
    >>> driver.values("counts")
    [['a', 1], ['b', 1], ['a', 2]]
    >>> checkpoint = driver.checkpoint()
    >>> restored = Driver(service, checkpoint=checkpoint, parallelism=3)
    >>> restored.send("words", "a")
    >>> restored.values("counts")
    [['a', 3]]
    >>> restored.state("count", "seen")
    {'a': 3, 'b': 1}

Edges are connected in memory through the real frames, keyed state is snapshotted and restored by
the real
code, and every checkpoint is checked against the live state: state that was changed in place
without
``set`` is an error here, not a surprise in production.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from penstock.api import Service
from penstock.application import union_specs
from penstock.control import ChunkRef, Deploy, SubtaskSnapshot
from penstock.edge.frame import Kind, RowsCodec
from penstock.edge.writer import EdgeWriter
from penstock.failure import ConfigurationError, PenstockError
from penstock.graph import EdgeOutputSpec
from penstock.ids import Attempt, CheckpointId, SubtaskId, Term
from penstock.plan import Stage
from penstock.snapshot import manifest as manifests
from penstock.snapshot.assign import assign, check_graph
from penstock.snapshot.cells import MapCells
from penstock.testing.driver_subtask import DrivenSubtask, Output


class Checkpoint(NamedTuple):
    """A checkpoint of a driver."""

    key: str
    """The manifest's object."""
    objects: dict[str, bytes]
    """Every object of the store."""

    @property
    def manifest(self) -> manifests.Manifest:
        """What the checkpoint consists of."""
        return manifests.load(self.objects[self.key], self.key)


class Driver:
    """Runs the services of one application in this thread, record by record.

    Args:
        services: one service or several of one application. An edge that none of them reads is
            collected (`edge`); one that none of them writes is fed with `send_edge`.
        parallelism: subtasks of every service, or of each by name.
        partitions: partitions of every source topic.
        checkpoint: where to start from.
        now_ms: the clock.
    """

    def __init__(
        self,
        services: Service | Iterable[Service],
        *,
        parallelism: int | dict[str, int] = 1,
        partitions: int = 4,
        checkpoint: Checkpoint | None = None,
        now_ms: int = 0,
    ) -> None:
        self._services = [services] if isinstance(services, Service) else list(services)
        self._parallelism = {
            s.name: parallelism if isinstance(parallelism, int) else parallelism.get(s.name, 1)
            for s in self._services
        }
        self._app = union_specs((s.spec() for s in self._services), open_edges=True)
        self.now_ms = now_ms
        self._partitions = partitions
        self._objects = {} if checkpoint is None else dict(checkpoint.objects)
        manifest = None if checkpoint is None else checkpoint.manifest
        self._number = 0 if manifest is None else int(manifest.checkpoint)
        self._attempt = Attempt(1 if manifest is None else int(manifest.attempt) + 1)
        self._frames: list[tuple[str, int, bytes]] = []
        self._sequence = 0
        self._turns: dict[str, int] = {}
        self._open: dict[str, list[tuple[Any, Any, int]]] = {}
        self._fed: dict[str, EdgeWriter] = {}
        self._subtasks: list[DrivenSubtask] = []
        if manifest is not None:
            check_graph(manifest, self._app.services)
        for service in self._services:
            for stage in service.stages():
                for index in range(self._parallelism[service.name]):
                    self._subtasks.append(self._subtask(service, stage, index, manifest))
        self._run()

    def send(
        self,
        source: str,
        *values: Any,
        key: Any = None,
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> None:
        """Records for the source with this uid; bytes go in as they are, all else is encoded.

        Without ``partition`` they go to the partitions in turn, or, when the source is partitioned,
        where the key of each belongs.
        """
        owners = [s for s in self._subtasks if s.source == source]
        if not owners:
            known = sorted({s.source for s in self._subtasks if s.source})
            raise ConfigurationError(f"there is no source {source!r}; the sources are {known}")
        time = self.now_ms if timestamp is None else timestamp
        for value in values:
            at = partition
            if at is None:
                turn = self._turns.get(source, 0)
                self._turns[source] = turn + 1
                at = owners[0].partition_for(key, value, turn, self._partitions)
            owner = next(s for s in owners if at in s.state.buckets)
            owner.take(at, key, value, time)
            self._run()

    def send_edge(
        self, edge: str, *values: Any, key: Any = None, timestamp: int | None = None
    ) -> None:
        """Records for an edge that no service of the driver writes."""
        writer = self._fed.get(edge)
        if writer is None:
            raise ConfigurationError(
                f"edge {edge!r} cannot be fed; the open edges are {sorted(self._fed)}"
            )
        time = self.now_ms if timestamp is None else timestamp
        for value in values:
            writer.write([key], [value], [time])
        self._run()

    def advance(self, ms: int) -> None:
        """Let the clock go on by ``ms``: processing timers fire, sources make watermarks."""
        self.now_ms += ms
        for subtask in self._subtasks:
            subtask.clock(self.now_ms)
            self._run()

    def watermark(self, ms: int) -> None:
        """Let event time reach ``ms`` in every input: event timers fire."""
        for writer in self._fed.values():
            writer.watermark(ms)
        for subtask in self._subtasks:
            if subtask.source is not None:
                subtask.chain.on_watermark(ms)
        self._run()

    def outputs(self, sink: str) -> list[Output]:
        """What the sink with this uid wrote so far: key and value as bytes, and the time."""
        found = [s.sinks[sink] for s in self._subtasks if sink in s.sinks]
        if not found:
            known = sorted({uid for s in self._subtasks for uid in s.sinks})
            raise ConfigurationError(f"there is no sink {sink!r}; the sinks are {known}")
        return [output for _, output in sorted(pair for s in found for pair in s.written)]

    def values(self, sink: str, kind: Any = Any) -> list[Any]:
        """What the sink with this uid wrote so far, its JSON values decoded (as ``kind``)."""
        return [msgspec.json.decode(output.value, type=kind) for output in self.outputs(sink)]

    def edge(self, name: str) -> list[tuple[Any, Any, int]]:
        """What was written to an edge that no service of the driver reads: (key, value, time)."""
        if name not in self._open:
            raise ConfigurationError(
                f"edge {name!r} is not open; the open edges are {sorted(self._open)}"
            )
        return list(self._open[name])

    def state(self, operator: str, name: str) -> Any:
        """An operator's state over all subtasks: key -> value, or the elements of a list state.

        A broadcast state is the map, which every subtask has.
        """
        entries: dict[Any, Any] = {}
        elements: list[Any] = []
        known: set[tuple[str, str]] = set()
        keyed = False
        for state in (subtask.state for subtask in self._subtasks):
            for table in state.tables():
                known.add((table.operator, table.name))
                if (table.operator, table.name) == (operator, name):
                    keyed = True
                    for values in table.buckets.values():
                        entries.update(values)
            cells = state.cells()
            known |= cells.keys()
            found = cells.get((operator, name))
            if isinstance(found, MapCells):
                return dict(found.entries)
            if found is not None:
                elements += found.items
        if (operator, name) not in known:
            there = sorted(".".join(pair) for pair in known)
            raise ConfigurationError(f"there is no state {operator}.{name}; there are {there}")
        return dict(sorted(entries.items(), key=lambda kv: repr(kv[0]))) if keyed else elements

    def checkpoint(self, *, complete: bool = True) -> Checkpoint:
        """Cut a barrier through everything; ``complete=False`` makes it one that failed.

        Raises PenstockError when state was changed in place without ``set``, and when the broadcast
        state of two subtasks differs.
        """
        self._number += 1
        number = CheckpointId(self._number)
        for writer in self._fed.values():
            writer.barrier(number)
        for subtask in self._subtasks:
            if subtask.source is not None:
                subtask.barrier(number)
        self._run()
        self._compare_broadcast()
        snapshots = tuple(self._snapshot(subtask, number) for subtask in self._subtasks)
        app = self._app.app
        manifest = manifests.build(app, Term(0), number, self._deploy(), snapshots)
        key = manifests.object_key(app, number, Term(0))
        self._objects[key] = manifests.encode(manifest)
        for subtask in self._subtasks:
            if complete:
                subtask.state.completed(number, key)
            else:
                subtask.state.aborted(number)
        return Checkpoint(key, dict(self._objects))

    def _subtask(
        self, service: Service, stage: Stage, index: int, manifest: manifests.Manifest | None
    ) -> DrivenSubtask:
        parallelism = self._parallelism[service.name]
        if stage.edge and not self._writers(stage.edge) and stage.edge not in self._fed:
            spec = EdgeOutputSpec(
                name=stage.edge, key="Any", value="Any", partitions=stage.partitions
            )
            self._fed[stage.edge] = EdgeWriter(
                spec,
                self._attempt,
                0,
                self._send,
                max_parallelism=service.max_parallelism,
                key=stage.root.key,
            )
        upstream = {
            edge.name: self._writers(edge.name).index(SubtaskId(stage.name, index))
            for edge in stage.spec().edges
        }
        for edge in upstream:
            if not any(s.edge == edge for other in self._services for s in other.stages()):
                self._open.setdefault(edge, [])
        subtask = DrivenSubtask(
            service,
            stage,
            index,
            parallelism,
            app=self._app.app,
            attempt=self._attempt,
            partitions=stage.partitions if stage.edge else self._partitions,
            upstream=upstream,
            upstreams=len(self._writers(stage.edge)) or 1,
            send=self._send,
            order=self._order,
        )
        if manifest is not None:
            share = assign(
                manifest, stage.spec(), index, parallelism, partitions=subtask.partitions
            )
            subtask.restore(share, self._data)
        subtask.chain.on_processing_time(self.now_ms)
        subtask.chain.open(self.now_ms)
        return subtask

    def _writers(self, edge: str) -> list[SubtaskId]:
        """All upstream subtasks of an edge, in plan order."""
        return [
            SubtaskId(stage.name, index)
            for service in self._services
            for stage in service.stages()
            if any(out.name == edge for out in stage.spec().edges)
            for index in range(self._parallelism[service.name])
        ]

    def _send(self, edge: str, partition: int, data: bytes) -> None:
        self._frames.append((edge, partition, data))

    def _order(self) -> int:
        self._sequence += 1
        return self._sequence

    def _run(self) -> None:
        """Everything that is under way arrives."""
        while True:
            for writer in self._fed.values():
                writer.flush()
            for subtask in self._subtasks:
                subtask.flush()
            if not self._frames:
                return
            frames, self._frames = self._frames, []
            for edge, partition, data in frames:
                if edge in self._open:
                    self._collect(edge, data)
                for subtask in self._subtasks:
                    if subtask.reads(edge, partition):
                        subtask.receive(partition, data)

    def _collect(self, edge: str, data: bytes) -> None:
        codec = RowsCodec(edge, Any, Any)
        frame = codec.frame(data)
        if frame.kind is Kind.DATA:
            for _, keys, values, times in codec.groups(frame):
                self._open[edge] += zip(keys or [None] * len(values), values, times, strict=True)

    def _snapshot(self, subtask: DrivenSubtask, number: CheckpointId) -> SubtaskSnapshot:
        state = subtask.state
        while state.is_busy:
            state.advance(64)
            for chunk in state.take_chunk():
                self._objects[chunk.name] = chunk.data
                chunk.stored()
        sealed = state.sealed(number)
        if sealed is None:
            raise PenstockError(f"barrier {number} did not reach {subtask.id}")
        inline = sealed.inline()
        subtask.compare(
            (ref, inline[ref.entry] if ref.entry in inline else self._data(ref))
            for ref in sealed.chain()
        )
        return SubtaskSnapshot(
            subtask=subtask.id,
            buckets=(state.buckets.start, state.buckets.stop),
            positions=subtask.positions(),
            edge_positions={},
            watermark=subtask.chain.watermark,
            chain=sealed.chain(),
            operator_state=sealed.operator_state,
            transactions=(),
            inline=inline,
        )

    def _compare_broadcast(self) -> None:
        """Raise PenstockError where a state that all subtasks share is not the same in all."""
        first: dict[tuple[str, str], MapCells] = {}
        for subtask in self._subtasks:
            for place, cells in subtask.state.cells().items():
                if not isinstance(cells, MapCells):
                    continue
                seen = first.setdefault(place, cells)
                if seen.encode() != cells.encode():
                    raise PenstockError(
                        f"broadcast state {cells.name!r} of operator {cells.operator!r} is "
                        f"{cells.entries!r:.200} in {subtask.id}, {seen.entries!r:.200} before; a "
                        "checkpoint holds that of the first subtask: change it in open(), or in "
                        "the same way in every subtask"
                    )

    def _data(self, ref: ChunkRef) -> bytes:
        data = self._objects[ref.key]
        if ref.entry is None:
            return data
        held = manifests.entry(manifests.load(data, ref.key), ref)
        if held is None:
            raise PenstockError(f"manifest {ref.key!r} holds no chunk {ref.entry!r}")
        return held

    def _deploy(self) -> Deploy:
        return Deploy(
            attempt=self._attempt,
            checkpoint=None,
            manifest=None,
            services=self._app.services,
            parallelism=self._parallelism,
            assignment={},
            edge_starts={},
            pool=0,
        )
