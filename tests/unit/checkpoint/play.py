"""A coordinator to play with: events in, effects out; its own appends are read back."""

from typing import Any

from penstock.checkpoint.coordinator import (
    Append,
    DecisionRead,
    ManifestStored,
    Measured,
    Phase,
    Recovered,
    Reported,
    Say,
    Settings,
    Ticked,
    coordinator,
    step,
)
from penstock.checkpoint.history import History, applied
from penstock.control import (
    Acknowledge,
    AnyDecision,
    AnyReport,
    Heartbeat,
    Join,
    Ready,
    SubtaskSnapshot,
    TermBegan,
)
from penstock.graph import ServiceSpec, SourceSpec, StageSpec
from penstock.ids import Attempt, CheckpointId, SubtaskId, Term

SETTINGS = Settings(
    services={"s": 2}, interval_ms=100, timeout_ms=1000, tolerable_failures=1, retained=2
)
STAGE = StageSpec(
    name="s.in",
    input=SourceSpec(uid="in", topic="t", value="str"),
    operators=(),
    edges=(),
    sinks=(),
)
SERVICE = ServiceSpec(name="s", app="a", stages=(STAGE,))
TERM = Term(5)
BEFORE = applied(History(), TERM, TermBegan(leader="me"))[0]


class Play:
    """A coordinator and what it asked for; its own appends are read back when `reads` says so."""

    def __init__(
        self, settings: Settings = SETTINGS, history: History = BEFORE, *, reads: bool = True
    ) -> None:
        self.reads = reads
        self.effects: list[Any] = []
        self.now_ms = 0
        self.offset = int(TERM)
        self.state, effects = coordinator(settings, TERM, history, 0)
        self._asked(effects)

    def __call__(self, *events: Any) -> list[Any]:
        """The effects of these events, without what is said to people."""
        self.effects = []
        for event in events:
            self.state, effects = step(self.state, event)
            self._asked(effects)
        return self.effects

    def _asked(self, effects: tuple[Any, ...]) -> None:
        self.effects += [effect for effect in effects if not isinstance(effect, Say)]
        for effect in effects:
            if isinstance(effect, Append) and self.reads:
                self.offset += 1
                self.state, more = step(self.state, DecisionRead(self.offset, effect.decision))
                self._asked(more)

    def report(self, *reports: AnyReport) -> list[Any]:
        return self(*(Reported(report, self.now_ms) for report in reports))

    def tick(self, by_ms: int = 0) -> list[Any]:
        self.now_ms += by_ms
        beats = [Heartbeat(worker=w, attempt=Attempt(1)) for w in self.state.workers]
        self.report(*beats)
        return self(Ticked(self.now_ms))

    @property
    def phase(self) -> Phase:
        return self.state.phase


def join(worker: str, attempt: int = 0) -> Join:
    return Join(worker=worker, service=SERVICE, attempt=Attempt(attempt))


def ack(index: int, checkpoint: int = 1, attempt: int = 1) -> Acknowledge:
    snapshot = SubtaskSnapshot(
        subtask=SubtaskId("s.in", index), buckets=(0, 0), positions={}, edge_positions={},
        watermark=0, chain=(), operator_state={}, transactions=(),
    )  # fmt: skip
    return Acknowledge(
        worker=f"w{index}", attempt=Attempt(attempt), checkpoint=CheckpointId(checkpoint),
        snapshot=snapshot,
    )  # fmt: skip


def started(settings: Settings = SETTINGS) -> Play:
    """Deployed; no worker is ready yet."""
    play = Play(settings)
    play(Recovered(Attempt(1), None))
    play.report(join("w0"), join("w1"))
    play(Measured(Attempt(1), {}))
    assert play.phase is Phase.STARTING
    return play


def running(settings: Settings = SETTINGS, *, reads: bool = True) -> Play:
    play = started(settings)
    play.report(*(Ready(worker=w, attempt=Attempt(1)) for w in ("w0", "w1")))
    assert play.phase is Phase.RUNNING
    play.reads = reads
    return play


def storing() -> Play:
    """All acknowledgements of checkpoint 1 are there, its manifest is on its way."""
    play = running()
    play.tick()
    play.report(ack(0), ack(1))
    return play


def completed(play: Play, number: int = 1) -> list[Any]:
    play.tick(200)
    play.report(ack(0, number), ack(1, number))
    return play(ManifestStored(CheckpointId(number), f"m{number}", play.now_ms))


def appended(effects: list[Any]) -> list[AnyDecision]:
    return [effect.decision for effect in effects if isinstance(effect, Append)]


def kinds(effects: list[Any]) -> list[str]:
    decisions = {id(e): type(e.decision).__name__ for e in effects if isinstance(e, Append)}
    return [decisions.get(id(effect), type(effect).__name__) for effect in effects]
