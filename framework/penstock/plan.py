"""What a service consists of, as the API wrote it down: stages, each a tree of steps."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from penstock.edge.input import EdgeInput
from penstock.graph import (
    EdgeInputSpec,
    EdgeOutputSpec,
    OperatorSpec,
    SinkSpec,
    SourceSpec,
    StageSpec,
    StateSpec,
)
from penstock.ids import Attempt
from penstock.operator.state import declared
from penstock.schema import schema_of
from penstock.serde import type_name
from penstock.source.watermark import Watermark


@dataclass(kw_only=True)
class Step:
    """One step with its uid, and what follows it.

    ``kind`` is one of input, map, filter, flat_map, key_by, process, keyed_process, reduce,
    aggregate,
    edge, sink. ``call`` is the user's function, process factory or aggregate.
    """

    kind: str
    uid: str
    call: Any = None
    key: Any = None
    """Type of the keys behind this step; None: no keys."""
    value: Any = Any
    """Type of the values behind this step; Any when it is not known."""
    owner: type | None = None
    """The class of a process."""
    topic: str = ""
    serde: str = "json"
    key_of: Callable[[Any], Any] | None = None
    partitions: int = 0
    checks_types: bool = False
    """The reader of this edge knows no type: only what msgpack brings back as it was may pass."""
    followers: list["Step"] = field(default_factory=list)
    sides: dict[str, list["Step"]] = field(default_factory=dict)

    def walk(self) -> list["Step"]:
        """This step and all that follow it, nearest first."""
        found = [self]
        for follower in self.followers:
            found += follower.walk()
        for side in self.sides.values():
            for follower in side:
                found += follower.walk()
        return found


@dataclass(kw_only=True)
class Stage:
    """One input and the tree of steps behind it."""

    name: str
    root: Step
    topic: str = ""
    """The source topic; empty for an edge."""
    edge: str = ""
    partitions: int = 0
    start: str = "earliest"
    partitioned: bool = False
    source_key: Any = None
    timestamp: Callable[[Any], int] | None = None
    watermark: Watermark | None = None
    serde: str = "json"

    def spec(self) -> StageSpec:
        """The stage as plain values."""
        root = self.root
        steps = root.walk()[1:]
        entry: SourceSpec | EdgeInputSpec
        if self.edge:
            entry = EdgeInputSpec(
                uid=self.edge,
                key=type_name(root.key),
                value=type_name(root.value),
                partitions=self.partitions,
            )
        else:
            entry = SourceSpec(
                uid=root.uid,
                topic=self.topic,
                value=type_name(root.value),
                start=self.start,
                partitioned=self.partitioned,
            )
        return StageSpec(
            name=self.name,
            input=entry,
            operators=tuple(
                OperatorSpec(uid=step.uid, kind=step.kind, states=_states(step))
                for step in steps
                if step.kind not in ("edge", "sink")
            ),
            edges=tuple(edge_spec(step) for step in steps if step.kind == "edge"),
            sinks=tuple(
                SinkSpec(uid=step.uid, topic=step.topic) for step in steps if step.kind == "sink"
            ),
        )


def edge_spec(step: Step) -> EdgeOutputSpec:
    """The edge that a step writes."""
    return EdgeOutputSpec(
        name=step.topic,
        key=type_name(step.key),
        value=type_name(step.value),
        partitions=step.partitions,
    )


def _states(step: Step) -> tuple[StateSpec, ...]:
    if step.kind == "reduce":
        return (_state(step, "reduced", "reducing", type_name(step.value), step.value),)
    if step.kind == "aggregate":
        kind = step.call.accumulator
        return (_state(step, "aggregated", "aggregating", type_name(kind), kind),)
    if step.owner is None:
        return ()
    keyed, of_subtask = declared(step.owner)
    states = [_state(step, n, s.kind, s.shown, s.described) for n, s in keyed.items()]
    states += [
        StateSpec(name=n, kind=s.kind, type=s.shown, value=schema_of(s.described))
        for n, s in of_subtask.items()
    ]
    if step.kind == "keyed_process":
        states.append(_state(step, "timers", "timers", "int", int))
    return tuple(states)


def _state(step: Step, name: str, kind: str, shown: str, value: Any) -> StateSpec:
    key = schema_of(Any if step.key is None else step.key)
    return StateSpec(name=name, kind=kind, type=shown, key=key, value=schema_of(value))


def edge_input(stage: Stage, attempt: Attempt, upstreams: int, lanes: Iterable[int]) -> EdgeInput:
    """The reading end of ``stage``'s input edge, for one subtask."""
    key = Any if stage.root.key is None else stage.root.key
    return EdgeInput(stage.edge, attempt, upstreams, lanes, key=key, value=stage.root.value)
