"""Savepoints and bounded sources in the coordinator, step by step; C8-C11 (L2, L14, L19)."""

import msgspec
import pytest
from penstock.checkpoint.coordinator import (
    Exit,
    ManifestFailed,
    ManifestStored,
    Measure,
    Measured,
    Phase,
    Recover,
    Recovered,
    RecoveryFailed,
    Retain,
    Settings,
)
from penstock.checkpoint.history import History, applied
from penstock.control import (
    AnyDecision,
    Complete,
    Deploy,
    Exhausted,
    Failed,
    Finished,
    Import,
    Leave,
    Ready,
    Restore,
    SavepointAsked,
    SavepointReleased,
    Summary,
    Trigger,
    decode_decision,
    encode,
)
from penstock.failure import ProtocolViolation
from penstock.ids import Attempt, CheckpointId

from tests.unit.checkpoint.play import (
    SETTINGS,
    TERM,
    Play,
    ack,
    appended,
    completed,
    join,
    kinds,
    running,
)

SAVEPOINT = "sp@1"
FROM_SAVEPOINT = msgspec.structs.replace(
    SETTINGS, savepoint=SAVEPOINT, savepoint_checkpoint=CheckpointId(40)
)


def asked(
    request: str = "r", *, stop: bool = False, drain: bool = False, checkpoint: int | None = None
) -> SavepointAsked:
    made_of = None if checkpoint is None else CheckpointId(checkpoint)
    return SavepointAsked(
        worker=f"savepoint-{request}", request=request, stop=stop, drain=drain, checkpoint=made_of
    )


def the_trigger(effects: list[object]) -> Trigger:
    (found,) = [d for d in appended(effects) if isinstance(d, Trigger)]
    return found


def acknowledged(play: Play, number: int) -> list[object]:
    play.report(ack(0, number), ack(1, number))
    return play(ManifestStored(CheckpointId(number), f"m{number}", play.now_ms))


# -- asked for


def test_a_savepoint_is_the_next_checkpoint() -> None:
    play = running()
    play.report(asked())
    trigger = the_trigger(play.tick())
    assert (trigger.kind, trigger.savepoint, trigger.stops) == ("checkpoint", "r", False)
    assert play.tick(1) == [], "C4: one at a time, and asking again changes nothing"


def test_it_waits_for_the_checkpoint_in_flight() -> None:
    play = running()
    assert the_trigger(play.tick()).savepoint == ""
    play.report(asked())
    acknowledged(play, 1)
    trigger = the_trigger(play.tick())  # at once: not after the interval
    assert (trigger.checkpoint, trigger.savepoint) == (2, "r")


def test_two_are_taken_in_the_order_of_asking() -> None:
    play = running()
    play.report(asked("a"), asked("b"))
    assert the_trigger(play.tick()).savepoint == "a"
    acknowledged(play, 1)
    assert the_trigger(play.tick()).savepoint == "b"


def test_one_whose_checkpoint_failed_is_taken_again() -> None:
    play = running()
    play.report(asked())
    play.tick()
    play.report(ack(0), ack(1))
    play(ManifestFailed(CheckpointId(1), "store down", play.now_ms))
    trigger = the_trigger(play.tick())
    assert (trigger.checkpoint, trigger.savepoint) == (2, "r")


def test_it_survives_a_restart_of_the_attempt() -> None:
    play = running()
    play.report(asked())
    play.tick()
    play.report(Leave(worker="w1", reason="killed"))
    play(Recovered(Attempt(2), None))
    play.report(join("w1"), asked())
    play(Measured(Attempt(2), {}))
    play.report(*(Ready(worker=w, attempt=Attempt(2)) for w in ("w0", "w1")))
    assert the_trigger(play.tick()).savepoint == "r"


def test_who_asks_no_more_is_forgotten() -> None:
    play = running()
    play.report(asked())
    play.tick()
    play.report(ack(0), ack(1))
    play(ManifestStored(CheckpointId(1), "m1", play.now_ms))
    for _ in range(8):
        play.tick(2_000)
    assert play.state.wanted == {}


# -- kept


def test_what_a_savepoint_is_made_of_is_kept() -> None:
    """C10 (L19)."""
    play = running()
    play.report(asked())
    play.tick()
    acknowledged(play, 1)
    for number in (2, 3, 4, 5):
        play.report(asked(checkpoint=1))
        effects = completed(play, number)
    (retain,) = [e for e in effects if isinstance(e, Retain)]
    assert retain.checkpoints == ((1, "m1"), (4, "m4"), (5, "m5"))
    play.report(SavepointReleased(worker="savepoint-r", request="r"))
    (retain,) = [e for e in completed(play, 6) if isinstance(e, Retain)]
    assert retain.checkpoints == ((5, "m5"), (6, "m6"))


def test_a_new_leader_keeps_it_too() -> None:
    """C10: whoever copies says so to whoever leads."""
    play = running()
    completed(play, 1)
    play.report(asked(checkpoint=1))
    assert play.state.wanted["r"].made_of == (1, "m1")
    assert the_trigger(play.tick(200)).savepoint == "", "nothing is taken for it again"


def test_what_nobody_knows_cannot_be_kept() -> None:
    play = running()
    play.report(asked(checkpoint=9))
    assert play.state.wanted == {}


# -- stop and drain


@pytest.mark.parametrize(("how", "kind"), [("stop", "stop"), ("drain", "drain")])
def test_a_stop_with_savepoint(how: str, kind: str) -> None:
    """C8 (L14): it ends when every subtask has committed."""
    play = running()
    play.report(asked(**{how: True}))
    assert the_trigger(play.tick()).kind == kind
    assert kinds(acknowledged(play, 1))[:2] == ["Complete", "Stop"]
    play.report(Finished(worker="w0", attempt=Attempt(1)))
    assert play.report(Finished(worker="w1", attempt=Attempt(1))) == [Exit()]


def test_a_stop_with_savepoint_that_loses_a_worker_still_stops() -> None:
    """C8: the savepoint is complete; what its transactions hold is committed by recovery."""
    play = running()
    play.report(asked(stop=True))
    play.tick()
    acknowledged(play, 1)
    play.report(Leave(worker="w1", reason="killed"))
    assert kinds(play(Recovered(Attempt(2), CheckpointId(1)))) == ["Stop", "Exit"]


def test_a_worker_that_fails_while_the_manifest_is_stored_does_not_prevent_the_stop() -> None:
    play = running()
    play.report(asked(stop=True))
    play.tick()
    play.report(ack(0), ack(1), Failed(worker="w0", attempt=Attempt(1), reason="x"))
    play(ManifestStored(CheckpointId(1), "m1", play.now_ms))
    assert kinds(play(Recovered(Attempt(2), CheckpointId(1)))) == ["Stop", "Exit"]


# -- beginning from a savepoint


def importing(settings: Settings = FROM_SAVEPOINT, history: History | None = None) -> Play:
    play = Play(settings) if history is None else Play(settings, history)
    (restore,) = [d for d in appended(play.effects) if isinstance(d, Restore)]
    play(Recovered(restore.attempt, restore.checkpoint))
    play.report(join("w0"), join("w1"))
    return play


def test_an_application_begins_from_a_savepoint() -> None:
    """C9: Import follows the durable manifest, and Deploy follows it."""
    play = importing()
    (measure,) = [e for e in play.effects if isinstance(e, Measure)]
    assert measure.importing == 41, "above every id that the savepoint's application has used"
    found = appended(play(Measured(Attempt(1), {}, "imported")))
    assert [type(d) for d in found] == [Import, Deploy]
    assert (found[0].checkpoint, found[0].savepoint) == (41, SAVEPOINT)  # type: ignore[union-attr]
    assert (found[1].checkpoint, found[1].manifest) == (41, "imported")  # type: ignore[union-attr]


def history_with(*decisions: AnyDecision) -> History:
    """The log of an application that ran, up to the Term record of the next leader."""
    play = running()
    completed(play, 1)
    history = play.state.history
    for offset, decision in enumerate(decisions):
        history, _ = applied(history, 100 + offset, decision)
    return history


IMPORT = Import(
    term=TERM, attempt=Attempt(1), checkpoint=CheckpointId(7), manifest="i", savepoint=SAVEPOINT
)


def test_what_is_complete_is_decided_before_an_import() -> None:
    """C9 (L14): the line that ends keeps its output."""
    play = Play(FROM_SAVEPOINT, history_with())
    (restore,) = appended(play.effects)
    assert (restore.checkpoint, restore.manifest) == (1, "m1")  # type: ignore[union-attr]
    play = importing(history=history_with())
    assert appended(play(Measured(Attempt(2), {}, "imported")))[0].checkpoint == 41  # type: ignore[union-attr]
    assert play.state.history.completed == ((41, "imported"),), "H4: nothing before comes back"


@pytest.mark.parametrize("imported", [False, True])
def test_recovery_is_told_whether_a_savepoint_takes_over(imported: bool) -> None:
    """Only then a checkpoint that is damaged can be given up."""
    history = history_with(*([IMPORT] if imported else []))
    stopped = msgspec.structs.replace(history, deploy=None)
    play = Play(FROM_SAVEPOINT, stopped)
    (recover,) = [effect for effect in play.effects if isinstance(effect, Recover)]
    assert recover.importing == (not imported)


def test_a_process_that_is_started_again_does_not_begin_anew() -> None:
    play = Play(FROM_SAVEPOINT, history_with(IMPORT))
    assert play.effects == [], "the attempt goes on"


def test_another_savepoint_is_imported() -> None:
    again = msgspec.structs.replace(FROM_SAVEPOINT, savepoint="sp@1+again")
    play = Play(again, history_with(IMPORT))
    assert kinds(play.effects) == ["Restore", "Recover"]


def test_an_import_that_failed_is_tried_again() -> None:
    play = importing()
    play(RecoveryFailed(Attempt(1), "store down"))
    assert play.phase is Phase.RESTORING
    play(Recovered(Attempt(2), None))
    (measure,) = [e for e in play.effects if isinstance(e, Measure)]
    assert measure.importing == 41


def test_a_savepoint_that_does_not_fit_ends_the_run() -> None:
    play = importing()
    fatal = RecoveryFailed(Attempt(1), "no operator takes 'x'", fatal=True)
    assert play(fatal) == [Exit("no operator takes 'x'")]


def test_a_stop_whose_last_word_is_missing_is_not_in_the_way_of_an_import() -> None:
    trigger = Trigger(term=TERM, attempt=Attempt(1), checkpoint=CheckpointId(2), kind="stop")
    complete = Complete(term=TERM, attempt=Attempt(1), checkpoint=CheckpointId(2), manifest="m2")
    play = importing(history=history_with(trigger, complete))
    assert appended(play(Measured(Attempt(2), {}, "imported")))[0].checkpoint == 41  # type: ignore[union-attr]


def test_an_import_never_goes_back() -> None:
    """H3."""
    with pytest.raises(ProtocolViolation, match=r"Import\(1\)"):
        history_with(msgspec.structs.replace(IMPORT, checkpoint=CheckpointId(1)))


def test_what_was_imported_survives_a_cut_log() -> None:
    summary = Summary(
        term=TERM, attempt=Attempt(1), next_checkpoint=CheckpointId(8),
        retained=((CheckpointId(7), "i"),), sinks={}, imported=SAVEPOINT,
    )  # fmt: skip
    history, _ = applied(History(), 50, decode_decision(encode(summary)))
    assert history.imported == SAVEPOINT


# -- bounded sources


def test_an_application_stops_when_every_source_ended() -> None:
    """C11."""
    play = running()
    completed(play, 1)
    play.report(Exhausted(worker="w0", attempt=Attempt(1)))
    assert not play.state.stop_asked
    play.report(Exhausted(worker="w1", attempt=Attempt(1)))
    assert the_trigger(play.tick()).kind == "stop"


def test_the_end_of_a_source_in_another_attempt_does_not_count() -> None:
    play = running()
    old = [Exhausted(worker=w, attempt=Attempt(7)) for w in ("w0", "w1")]
    play.report(*old)
    assert not play.state.stop_asked


def test_a_restart_forgets_which_sources_ended() -> None:
    play = running()
    play.report(Exhausted(worker="w0", attempt=Attempt(1)))
    play.report(Leave(worker="w1", reason="killed"))
    assert play.state.exhausted == frozenset()
