"""The API: a service is written as a chain of steps, each with a stable uid.

service = ps.Service("ledger", app="payments")
(service.source("orders", topic="orders", value=Order)
        .key_by("by-account", lambda order: order.account)
        .process("ledger", Ledger)
        .sink("balances", topic="balances", key=lambda balance: balance.account))
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast, overload

from penstock.annotation import element_type, owner_class, returned_type
from penstock.edge.writer import EdgeWriter, Send
from penstock.failure import ConfigurationError
from penstock.graph import ServiceSpec
from penstock.ids import Attempt, InvalidName, checked_name
from penstock.operator.aggregate import Aggregate
from penstock.operator.process import KeyedProcess, Process
from penstock.operator.state import declared
from penstock.plan import Stage, Step, edge_spec
from penstock.record import EdgePort, SinkPort
from penstock.serde import Format, Serde, type_name
from penstock.snapshot.state import SubtaskState
from penstock.source.watermark import Watermark
from penstock.stage import StageChain

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K")
J = TypeVar("J")
Acc = TypeVar("Acc")

EDGE_PARTITIONS = 16


class Service:
    """A deployable microservice: one or more stages that run in the same workers.

    Args:
        name: the service's name, unique in the application.
        app: the application that it is part of.
        max_parallelism: number of key groups; the same in all services, and for ever.
    """

    def __init__(self, name: str, *, app: str, max_parallelism: int = 128) -> None:
        self.name = _named("service", name)
        self.app = _named("app", app)
        if not 1 <= max_parallelism <= 32768:
            raise ConfigurationError(
                f"service {name!r}: max_parallelism {max_parallelism} is not in 1-32768"
            )
        self.max_parallelism = max_parallelism
        self._stages: list[Stage] = []
        self._uids: dict[str, str] = {}

    @overload
    def source(
        self,
        uid: str,
        *,
        topic: str,
        value: type[T],
        partitioned: bool = ...,
        timestamp: Callable[[T], int] | None = ...,
        watermark: Watermark | None = ...,
        start: str = ...,
        serde: Format = ...,
    ) -> "Stream[T]": ...
    @overload
    def source(
        self,
        uid: str,
        *,
        topic: str,
        value: type[T],
        key: type[K],
        partitioned: bool = ...,
        timestamp: Callable[[T], int] | None = ...,
        watermark: Watermark | None = ...,
        start: str = ...,
        serde: Format = ...,
    ) -> "KeyedStream[K, T]": ...
    def source(
        self,
        uid: str,
        *,
        topic: str,
        value: Any,
        key: Any = None,
        partitioned: bool = False,
        timestamp: Callable[[Any], int] | None = None,
        watermark: Watermark | None = None,
        start: str = "earliest",
        serde: Format = "json",
    ) -> "Stream[Any]":
        """Read a topic.

        Args:
            uid: the step's stable name.
            topic: must exist.
            value: type of the values.
            key: type of the record keys, when the topic is partitioned by them: gives a keyed
            stream.
            partitioned: the topic is partitioned by the key that the next ``key_by`` computes; then
                ``key_by`` needs no edge. Every record of a key must be in one partition.
            timestamp: event time of a value, ms since the epoch; None: Kafka's timestamp.
            watermark: how watermarks are made; None: no event time.
            start: ``earliest`` or ``latest``, for partitions without a checkpoint.
            serde: ``json``, ``msgpack``, ``string`` or ``bytes``.
        """
        if start not in ("earliest", "latest"):
            raise ConfigurationError(
                f"source {uid!r}: start={start!r} is unknown; use 'earliest' or 'latest'"
            )
        if key is not None and not partitioned:
            raise ConfigurationError(
                f"source {uid!r}: key= keys the stream by the record keys, which is right only "
                "for a "
                "topic partitioned by them; say partitioned=True, or leave key= out and use key_by"
            )
        if not topic:
            raise ConfigurationError(f"source {uid!r} has no topic; name one")
        Serde(uid, value, serde)
        self._claim(uid, "source")
        root = Step(kind="input", uid=uid, value=value, key=key)
        stage = Stage(
            name=f"{self.name}.{uid}",
            root=root,
            topic=topic,
            start=start,
            partitioned=partitioned,
            source_key=key,
            timestamp=timestamp,
            watermark=watermark,
            serde=serde,
        )
        self._stages.append(stage)
        if key is not None:
            return KeyedStream(self, stage, root)
        return Stream(self, stage, root)

    @overload
    def from_edge(
        self, name: str, *, value: type[T], partitions: int = ...
    ) -> "KeyedStream[Any, T]": ...
    @overload
    def from_edge(
        self, name: str, *, value: type[T], key: type[K], partitions: int = ...
    ) -> "KeyedStream[K, T]": ...
    def from_edge(
        self, name: str, *, value: Any, key: Any = Any, partitions: int = EDGE_PARTITIONS
    ) -> "KeyedStream[Any, Any]":
        """Read what another service of the application writes with ``to_edge(name)``.

        ``key`` is the type of the writer's keys, needed when they are more than plain scalars. When
        the writer gives no key, only steps without keys may follow before a ``key_by``.
        """
        self._claim_edge(name, partitions)
        stage = self._edge_stage(name, f"{self.name}.{name}", key, value, partitions)
        return KeyedStream(self, stage, stage.root)

    def run_as(self, app: str, *, sink_suffix: str = "") -> None:
        """Belong to the application ``app``, and write to topics that end in ``sink_suffix``."""
        self.app = _named("app", app)
        for stage in self._stages:
            for step in stage.root.walk():
                if step.kind == "sink":
                    step.topic += sink_suffix

    def spec(self) -> ServiceSpec:
        """The service as plain values, for joining an application."""
        if not self._stages:
            raise ConfigurationError(
                f"service {self.name!r} has no input; start with .source(...) or .from_edge(...)"
            )
        return ServiceSpec(
            name=self.name,
            app=self.app,
            stages=tuple(stage.spec() for stage in self._stages),
            max_parallelism=self.max_parallelism,
        )

    def build(
        self,
        stage: str,
        *,
        state: SubtaskState,
        edges: Mapping[str, EdgePort],
        sinks: Mapping[str, SinkPort],
    ) -> StageChain:
        """The running operators of one subtask of ``stage``; see `StageChain`."""
        return StageChain(self.stage(stage), state, edges, sinks)

    def edge_writer(
        self,
        stage: str,
        edge: str,
        attempt: Attempt,
        upstream: int,
        send: Send,
        *,
        lanes: Sequence[int] | None = None,
    ) -> EdgeWriter:
        """The writing end of an edge of ``stage``, for one subtask."""
        for step in self.stage(stage).root.walk():
            if step.kind == "edge" and step.topic == edge:
                return EdgeWriter(
                    edge_spec(step),
                    attempt,
                    upstream,
                    send,
                    max_parallelism=self.max_parallelism,
                    key=Any if step.key is None else step.key,
                    lanes=lanes,
                )
        raise KeyError(f"stage {stage!r} writes no edge {edge!r}")

    def stage(self, name: str) -> Stage:
        """The plan of a stage by its name."""
        for stage in self._stages:
            if stage.name == name:
                return stage
        raise KeyError(f"service {self.name!r} has no stage {name!r}")

    def stages(self) -> list[Stage]:
        """The plans of all stages, in the order they were written down."""
        return list(self._stages)

    def _claim(self, uid: str, what: str) -> None:
        _named(f"uid of {what}", uid)
        if uid in self._uids:
            raise ConfigurationError(
                f"service {self.name!r}: the uid {uid!r} of a {what} is already that of a "
                f"{self._uids[uid]}; state belongs to uids, give each step its own"
            )
        self._uids[uid] = what

    def _claim_edge(self, name: str, partitions: int) -> None:
        _named("edge", name)
        if not 1 <= partitions <= self.max_parallelism:
            raise ConfigurationError(
                f"edge {name!r}: {partitions} partitions; use 1 to {self.max_parallelism} "
                "(max_parallelism)"
            )

    def _edge_stage(self, edge: str, name: str, key: Any, value: Any, partitions: int) -> Stage:
        if any(stage.name == name for stage in self._stages):
            raise ConfigurationError(
                f"service {self.name!r} reads edge {edge!r} twice; use one from_edge() and branch "
                "from its stream"
            )
        root = Step(kind="input", uid=edge, key=key, value=value)
        stage = Stage(name=name, root=root, edge=edge, partitions=partitions)
        self._stages.append(stage)
        return stage


class Stream(Generic[T]):
    """Records without a key of their own, behind one step."""

    def __init__(self, service: Service, stage: Stage, step: Step) -> None:
        self._service = service
        self._stage = stage
        self._step = step

    def map(self, uid: str, f: Callable[[T], U], *, returns: type[U] | None = None) -> "Stream[U]":
        """One value for one value. ``returns`` names their type when ``f`` is not annotated."""
        value = returned_type(f) if returns is None else returns
        return self._plain(self._add("map", uid, f, value=value))

    def filter(self, uid: str, f: Callable[[T], object]) -> "Stream[T]":
        """Only the values for which ``f`` is true."""
        return self._plain(self._add("filter", uid, f, value=self._step.value))

    def flat_map(
        self, uid: str, f: Callable[[T], Iterable[U]], *, returns: type[U] | None = None
    ) -> "Stream[U]":
        """Any number of values for one value."""
        value = element_type(returned_type(f)) if returns is None else returns
        return self._plain(self._add("flat_map", uid, f, value=value))

    def key_by(
        self,
        uid: str,
        f: Callable[[T], K],
        *,
        key: type[K] | None = None,
        partitions: int = EDGE_PARTITIONS,
    ) -> "KeyedStream[K, T]":
        """Bring all records of a key to one subtask.

        Cuts the service into two stages, joined by the edge ``<service>.<uid>``; when the source is
        partitioned by the key, nothing is cut. ``key`` is the keys' type when ``f`` is not
        annotated.
        """
        kind = returned_type(f) if key is None else key
        if self._stage.partitioned and not self._is_regrouped():
            step = self._add("key_by", uid, f, value=self._step.value)
            step.key = kind
            return KeyedStream(self._service, self._stage, step)
        name = f"{self._service.name}.{uid}"
        step = self._edge(name, f, kind, partitions, uid)
        step.checks_types = self._step.value is Any
        stage = self._service._edge_stage(  # noqa: SLF001  (its friend)
            name, name, kind, self._step.value, partitions
        )
        return KeyedStream(self._service, stage, stage.root)

    @overload
    def process(
        self, uid: str, process: Callable[[], Process], *, returns: type[U]
    ) -> "ProcessedStream[U]": ...
    @overload
    def process(
        self, uid: str, process: Callable[[], Process], *, returns: None = ...
    ) -> "ProcessedStream[Any]": ...
    def process(
        self, uid: str, process: Callable[[], Process], *, returns: Any = None
    ) -> "ProcessedStream[Any]":
        """Run a `Process`: a class, or what makes an instance for each subtask."""
        owner = owner_class(uid, process, Process)
        if issubclass(owner, KeyedProcess) or declared(owner)[0]:
            raise ConfigurationError(
                f"step {uid!r}: {owner.__name__} keeps state per key, but the stream has no key; "
                "put "
                ".key_by(uid, f) before it"
            )
        step = self._add("process", uid, process, value=Any if returns is None else returns)
        step.owner = owner
        return ProcessedStream(self._service, self._stage, step)

    def to_edge(
        self,
        name: str,
        *,
        key: Callable[[T], Any] | None = None,
        key_type: Any = None,
        partitions: int = EDGE_PARTITIONS,
    ) -> None:
        """Hand the records to another service of the application, which reads ``from_edge(name)``.

        Args:
            name: the edge's name, unique in the application.
            key: the key of a value; None keeps the key that the stream has, if any.
            key_type: the keys' type when ``key`` is not annotated and gives more than plain
            scalars.
            partitions: fixed for the life of the application; bounds the readers' parallelism.
        """
        kind = self._step.key
        if key is not None:
            kind = returned_type(key) if key_type is None else key_type
        self._edge(name, key, kind, partitions, name)

    def sink(
        self,
        uid: str,
        *,
        topic: str,
        key: Callable[[T], Any] | None = None,
        serde: Format = "json",
    ) -> None:
        """Write the records to a topic, exactly once; ``key`` None keeps the stream's key."""
        if not topic:
            raise ConfigurationError(f"sink {uid!r} has no topic; name one")
        Serde(uid, Any, serde)
        step = self._add("sink", uid, None, value=self._step.value)
        step.topic, step.serde, step.key_of = topic, serde, key

    def _plain(self, step: Step) -> "Stream[Any]":
        return Stream(self._service, self._stage, step)

    def _add(self, kind: str, uid: str, call: Any, *, value: Any) -> Step:
        self._service._claim(uid, kind)  # noqa: SLF001  (its friend)
        step = Step(kind=kind, uid=uid, call=call, key=self._step.key, value=value)
        self._attach(step)
        return step

    def _attach(self, step: Step) -> None:
        self._step.followers.append(step)

    def _edge(
        self, name: str, key_of: Callable[[Any], Any] | None, key: Any, partitions: int, uid: str
    ) -> Step:
        service = self._service
        service._claim_edge(name, partitions)  # noqa: SLF001  (its friend)
        service._claim(uid, "key_by or edge")  # noqa: SLF001  (its friend)
        step = Step(
            kind="edge",
            uid=uid,
            key=key,
            value=self._step.value,
            topic=name,
            key_of=key_of,
            partitions=partitions,
        )
        self._attach(step)
        return step

    def _is_regrouped(self) -> bool:
        """A step before may have changed what the source's partitions stand for."""
        return any(
            step.kind in ("process", "keyed_process", "key_by", "reduce", "aggregate")
            for step in [self._step, *self._stage.root.walk()]
            if any(found is self._step for found in step.walk())
        )


class KeyedStream(Stream[T], Generic[K, T]):
    """Records with a key: all of one key in one subtask, in order."""

    def map(
        self, uid: str, f: Callable[[T], U], *, returns: type[U] | None = None
    ) -> "KeyedStream[K, U]":
        """One value for one value; the key stays."""
        return cast("KeyedStream[K, U]", super().map(uid, f, returns=returns))

    def filter(self, uid: str, f: Callable[[T], object]) -> "KeyedStream[K, T]":
        """Only the values for which ``f`` is true."""
        return cast("KeyedStream[K, T]", super().filter(uid, f))

    def flat_map(
        self, uid: str, f: Callable[[T], Iterable[U]], *, returns: type[U] | None = None
    ) -> "KeyedStream[K, U]":
        """Any number of values for one value; the key stays."""
        return cast("KeyedStream[K, U]", super().flat_map(uid, f, returns=returns))

    @overload
    def process(
        self, uid: str, process: Callable[[], Process], *, returns: type[U]
    ) -> "ProcessedStream[U]": ...
    @overload
    def process(
        self, uid: str, process: Callable[[], Process], *, returns: None = ...
    ) -> "ProcessedStream[Any]": ...
    def process(
        self, uid: str, process: Callable[[], Process], *, returns: Any = None
    ) -> "ProcessedStream[Any]":
        """Run a `KeyedProcess`: a class, or what makes an instance for each subtask."""
        owner = owner_class(uid, process, Process)
        keyed = issubclass(owner, KeyedProcess)
        if not keyed and declared(owner)[0]:
            raise ConfigurationError(
                f"step {uid!r}: {owner.__name__} declares state per key; derive it from "
                "KeyedProcess"
            )
        kind = "keyed_process" if keyed else "process"
        step = self._add(kind, uid, process, value=Any if returns is None else returns)
        step.owner = owner
        return ProcessedStream(self._service, self._stage, step)

    def reduce(self, uid: str, f: Callable[[T, T], T]) -> "KeyedStream[K, T]":
        """Fold the values of a key with ``f(so far, value)``; gives the fold after each record."""
        step = self._add("reduce", uid, f, value=self._step.value)
        return KeyedStream(self._service, self._stage, step)

    def aggregate(
        self, uid: str, aggregate: Aggregate[T, Acc, U], *, returns: type[U] | None = None
    ) -> "KeyedStream[K, U]":
        """Add the values of a key to an accumulator; gives its result after each record."""
        value = returned_type(aggregate.result) if returns is None else returns
        step = self._add("aggregate", uid, aggregate, value=value)
        return KeyedStream(self._service, self._stage, step)

    def _plain(self, step: Step) -> "KeyedStream[K, Any]":
        return KeyedStream(self._service, self._stage, step)


class ProcessedStream(Stream[T]):
    """What a process emitted; its named side outputs are taken from here."""

    def __init__(self, service: Service, stage: Stage, step: Step) -> None:
        super().__init__(service, stage, step)
        # What is emitted has no key: the process may have changed what it stands for.
        self._owner = step
        self._step = Step(kind="process", uid=step.uid, value=step.value, followers=step.followers)

    @overload
    def side_output(self, tag: str, returns: type[U]) -> "Stream[U]": ...
    @overload
    def side_output(self, tag: str, returns: None = ...) -> "Stream[Any]": ...
    def side_output(self, tag: str, returns: Any = None) -> "Stream[Any]":
        """What the process gave to ``ctx.emit_to(tag, value)``."""
        followers = self._owner.sides.setdefault(tag, [])
        value = Any if returns is None else returns
        view = Step(kind="process", uid=self._owner.uid, value=value, followers=followers)
        return Stream(self._service, self._stage, view)


def _named(what: str, name: str) -> str:
    try:
        return checked_name(what, name)
    except InvalidName as error:
        raise ConfigurationError(str(error)) from error


__all__ = ["EDGE_PARTITIONS", "KeyedStream", "ProcessedStream", "Service", "Stream", "type_name"]
