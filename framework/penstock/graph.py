"""The shape of an application as plain values: services, their stages, and how edges join them.

A **stage** is the chain of operators between two edges; a subtask is one parallel instance of it.
The graph of an application is the union of the services that join it (see `penstock.application`).
"""

import msgspec

from penstock.schema import Schema


class SourceSpec(msgspec.Struct, frozen=True, tag="source", kw_only=True):
    """A source topic as the input of a stage."""

    uid: str
    topic: str
    value: str
    """The value type as shown to people; compared between two ends of an edge."""
    start: str = "earliest"
    partitioned: bool = False
    """The topic is already partitioned by the key: key groups follow its partitions."""


class EdgeInputSpec(msgspec.Struct, frozen=True, tag="edge", kw_only=True):
    """An edge as the input of a stage."""

    uid: str
    """The edge's name."""
    key: str
    value: str
    partitions: int


class EdgeOutputSpec(msgspec.Struct, frozen=True, kw_only=True):
    """An edge that a stage writes."""

    name: str
    key: str
    value: str
    partitions: int


class SinkSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A two-phase-commit Kafka sink of a stage."""

    uid: str
    topic: str


class StateSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A state of an operator, by name."""

    name: str
    kind: str
    """value, list, map, reducing, aggregating, timers, operator_list, operator_union or
    operator_broadcast.
    """
    type: str
    """The value type as shown to people; compared where a checkpoint has no schemas."""
    key: Schema | None = None
    """Type of the keys; None for state of the subtask, and in checkpoints before savepoints."""
    value: Schema | None = None
    """Type of the value; of a list its element, of a map a map."""


class OperatorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A step with a stable uid."""

    uid: str
    kind: str
    states: tuple[StateSpec, ...] = ()


class StageSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a service: input, operators, outputs."""

    name: str
    input: SourceSpec | EdgeInputSpec
    operators: tuple[OperatorSpec, ...]
    edges: tuple[EdgeOutputSpec, ...]
    sinks: tuple[SinkSpec, ...]


class ServiceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A deployable service: its stages, in the order they were written down."""

    name: str
    app: str
    stages: tuple[StageSpec, ...]
    max_parallelism: int = 128
