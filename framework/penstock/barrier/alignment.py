"""Aligned checkpoints: hold each channel behind its barrier until all channels have met theirs.

The machine sees control records only; records never pass through it. Its driver holds the frames
of a held channel, in order, and feeds them again when the machine says Release.

Invariants (tests cite them):
- B1 (L4) Aligned(n) is said once, when barrier n has arrived on every channel, and every channel
  was held from its barrier n until then (EXACTLY_ONCE).
- B2 (L4, L11) a checkpoint that was aborted or superseded is never Aligned.
- B3 whatever is held is released: after Aligned, an abort or a newer barrier nothing older stays
  held.
- B4 (L9) barriers of one channel strictly increase; another order is a ProtocolViolation.
"""

from typing import TypeAlias

import msgspec

from penstock.failure import ProtocolViolation
from penstock.ids import ChannelId, CheckpointId


class BarrierArrived(msgspec.Struct, frozen=True):
    """Barrier ``checkpoint`` is the next control record of a channel that is not held."""

    channel: ChannelId
    checkpoint: CheckpointId


class CheckpointAborted(msgspec.Struct, frozen=True):
    """The decision log holds Abort(checkpoint)."""

    checkpoint: CheckpointId


Event: TypeAlias = BarrierArrived | CheckpointAborted


class Hold(msgspec.Struct, frozen=True):
    """Hold the frames of ``channel`` that come from now on, in order (L7)."""

    channel: ChannelId


class Release(msgspec.Struct, frozen=True):
    """Hold nothing; process what was held, in the order of each channel."""


class Began(msgspec.Struct, frozen=True):
    """The first barrier of ``checkpoint`` arrived: alignment time starts."""

    checkpoint: CheckpointId


class Aligned(msgspec.Struct, frozen=True):
    """Take snapshot ``checkpoint`` now, before anything held is processed."""

    checkpoint: CheckpointId


Effect: TypeAlias = Hold | Release | Began | Aligned


class Alignment(msgspec.Struct, frozen=True):
    """State of a subtask's alignment; ``channels`` sorted, ``latest`` parallel to it."""

    channels: tuple[ChannelId, ...]
    latest: tuple[CheckpointId, ...]
    settled: CheckpointId = CheckpointId(0)
    """Greatest checkpoint that was aligned, aborted or superseded here."""
    aligning: CheckpointId | None = None
    arrived: frozenset[ChannelId] = frozenset()
    exactly_once: bool = True


def alignment(
    channels: frozenset[ChannelId], restored: CheckpointId | None, *, exactly_once: bool = True
) -> Alignment:
    """The state after a restore from checkpoint ``restored`` (None: from nothing)."""
    settled = CheckpointId(restored or 0)
    ordered = tuple(sorted(channels))
    return Alignment(ordered, (settled,) * len(ordered), settled, exactly_once=exactly_once)


def step(state: Alignment, event: Event) -> tuple[Alignment, tuple[Effect, ...]]:
    """One step; raises ProtocolViolation when a peer broke the order of barriers (B4)."""
    if isinstance(event, CheckpointAborted):
        return _aborted(state, event.checkpoint)
    return _arrived(state, event.channel, event.checkpoint)


def _aborted(state: Alignment, checkpoint: CheckpointId) -> tuple[Alignment, tuple[Effect, ...]]:
    settled = max(state.settled, checkpoint)
    if state.aligning is None or state.aligning > checkpoint:
        return msgspec.structs.replace(state, settled=settled), ()
    return _idle(state, settled), (Release(),)


def _arrived(
    state: Alignment, channel: ChannelId, checkpoint: CheckpointId
) -> tuple[Alignment, tuple[Effect, ...]]:
    state = _noted(state, channel, checkpoint)
    if checkpoint <= state.settled:
        return state, ()
    effects: tuple[Effect, ...] = ()
    if state.aligning is not None and checkpoint > state.aligning:
        # The coordinator triggers n+1 only after it has settled n: a newer barrier says n is over.
        state, effects = _idle(state, state.aligning), (Release(),)
    if state.aligning is None:
        effects += (Began(checkpoint),)
        state = msgspec.structs.replace(state, aligning=checkpoint)
    elif checkpoint < state.aligning:
        return state, ()
    arrived = state.arrived | {channel}
    if len(arrived) == len(state.channels):
        return _idle(state, checkpoint), (*effects, Aligned(checkpoint), Release())
    if state.exactly_once:
        effects += (Hold(channel),)
    return msgspec.structs.replace(state, arrived=arrived), effects


def _noted(state: Alignment, channel: ChannelId, checkpoint: CheckpointId) -> Alignment:
    if channel not in state.channels:
        raise ProtocolViolation(f"barrier {checkpoint} on channel {channel}, which is not ours")
    at = state.channels.index(channel)
    if checkpoint <= state.latest[at]:
        raise ProtocolViolation(
            f"barrier {checkpoint} on channel {channel} after its barrier {state.latest[at]}: "
            "barriers of a channel must increase (B4)"
        )
    latest = (*state.latest[:at], checkpoint, *state.latest[at + 1 :])
    return msgspec.structs.replace(state, latest=latest)


def _idle(state: Alignment, settled: CheckpointId) -> Alignment:
    return msgspec.structs.replace(
        state, settled=max(state.settled, settled), aligning=None, arrived=frozenset()
    )
