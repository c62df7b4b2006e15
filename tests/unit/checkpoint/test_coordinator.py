"""The coordinator, step by step; C1-C8 (L1-L3, L11, L14, L16, L19)."""

from typing import Any

import msgspec
import pytest
from penstock.checkpoint import coordinator as machine
from penstock.checkpoint.coordinator import (
    Append,
    Coordinator,
    DecisionRead,
    Exit,
    ManifestFailed,
    ManifestStored,
    Measure,
    Measured,
    Phase,
    Recover,
    Recovered,
    RecoveryFailed,
    Reported,
    Retain,
    Say,
    Settings,
    StopAsked,
    StoreManifest,
    Sweep,
    Ticked,
    Worker,
    assigned,
    step,
)
from penstock.checkpoint.history import applied
from penstock.control import (
    Abort,
    Acknowledge,
    AnyDecision,
    AnyReport,
    Complete,
    Decline,
    Deploy,
    Failed,
    Finished,
    Heartbeat,
    Join,
    Leave,
    Ready,
    Restore,
    Stop,
    TermBegan,
    Trigger,
)
from penstock.failure import ProtocolViolation
from penstock.ids import Attempt, CheckpointId, SubtaskId, Term

from tests.unit.checkpoint.play import (
    SERVICE,
    SETTINGS,
    TERM,
    Play,
    ack,
    appended,
    completed,
    join,
    kinds,
    running,
    started,
    storing,
)

# -- from nothing to the first checkpoint


def test_the_way_to_the_first_checkpoint() -> None:
    play = Play()
    assert kinds(play.effects) == ["Restore", "Recover"]
    assert play(Recovered(Attempt(1), None)) == []
    assert play.report(join("w0")) == []
    assert kinds(play.report(join("w1"))) == ["Measure"]
    assert kinds(play(Measured(Attempt(1), {"e": [3]}))) == ["Deploy"]
    deploy = play.state.history.deploy
    assert deploy is not None
    assert deploy.edge_starts == {"e": [3]}
    assert deploy.assignment == {"s/0": "w0", "s/1": "w1"}
    play.report(Ready(worker="w0", attempt=Attempt(1)))
    assert play.phase is Phase.STARTING
    play.report(Ready(worker="w1", attempt=Attempt(1)))
    assert play.phase is Phase.RUNNING
    assert kinds(play.tick()) == ["Trigger"]
    assert play.report(ack(0)) == []
    assert kinds(play.report(ack(1))) == ["StoreManifest"]
    effects = play(ManifestStored(CheckpointId(1), "m1", 0))
    assert kinds(effects) == ["Complete", "Retain", "Sweep"]
    assert Retain(((CheckpointId(1), "m1"),)) in effects
    assert Sweep(Attempt(1)) in effects


def test_a_restore_takes_as_long_as_its_state_is_large() -> None:
    """Workers that say that they restore are waited for; one that dies meanwhile is not."""
    play = started()
    for _ in range(1000):
        assert play.tick(1000) == []
    assert play.phase is Phase.STARTING
    play.report(*(Ready(worker=w, attempt=Attempt(1)) for w in ("w0", "w1")))
    assert play.phase is Phase.RUNNING
    dying = started()
    beat = Heartbeat(worker="w0", attempt=Attempt(1))
    for _ in range(30):
        dying.now_ms += 1000
        dying(Reported(beat, dying.now_ms), Ticked(dying.now_ms))
    assert dying.phase is not Phase.STARTING, "w1 was silent"


def test_a_worker_that_does_not_begin_ends_the_attempt() -> None:
    """It lives, but offers itself again and again instead of restoring."""
    play = started()
    while play.phase is Phase.STARTING and play.now_ms < 100_000:
        play.now_ms += 1000
        play.report(Heartbeat(worker="w0", attempt=Attempt(1)), join("w1"))
        play(Ticked(play.now_ms))
    (restore,) = appended(play.effects)
    assert restore.reason == "w1 did not begin attempt 1 in time"


def test_recovery_waits_until_restore_is_read_back() -> None:
    """C5 (L1, L16; decision 0006)."""
    play = Play(reads=False)
    assert kinds(play.effects) == ["Restore"]
    ours = appended(play.effects)[0]
    theirs = msgspec.structs.replace(ours, term=Term(4))
    assert play(DecisionRead(6, theirs)) == []
    assert play(DecisionRead(7, ours)) == [Recover(Attempt(1), None, None)]
    assert play(DecisionRead(7, ours)) == []


def test_recovered_before_restore_was_read_is_a_violation() -> None:
    play = Play(reads=False)
    with pytest.raises(ProtocolViolation, match="before its Restore was read"):
        play(Recovered(Attempt(1), None))


def test_nothing_is_deleted_until_complete_is_read_back() -> None:
    """C7 (L1, L19)."""
    play = running(reads=False)
    effects = completed(play)
    assert kinds(effects) == ["Complete"]
    complete = appended(effects)[0]
    void = msgspec.structs.replace(complete, term=Term(4))
    assert play(DecisionRead(20, void)) == []
    assert kinds(play(DecisionRead(21, complete))) == ["Retain", "Sweep"]


def test_retained_checkpoints_and_sweeps() -> None:
    play = running()
    kept = []
    for number in (1, 2, 3):
        effects = completed(play, number)
        kept += [e.checkpoints for e in effects if isinstance(e, Retain)]
        assert any(isinstance(e, Sweep) for e in effects) == (number == 1)
    assert [[n for n, _ in found] for found in kept] == [[1], [1, 2], [2, 3]]


def test_the_fall_back_is_the_retained_checkpoint_before() -> None:
    play = running()
    for number in (1, 2, 3):
        completed(play, number)
    effects = play.report(Leave(worker="w0", reason="killed"))
    assert effects[-1] == Recover(Attempt(2), CheckpointId(3), "m3", CheckpointId(2))


# -- checkpoints


def test_a_greater_term_ends_it() -> None:
    """C6 (L1)."""
    play = running()
    assert kinds(play(DecisionRead(50, TermBegan(leader="other")))) == ["Exit"]
    assert play(Ticked(10**6), StopAsked()) == []


def test_a_late_checkpoint_is_aborted_and_the_next_one_taken() -> None:
    play = running()
    play.tick()
    play.report(ack(0))
    effects = play.tick(1000)
    assert appended(effects) == [
        Abort(
            term=TERM, attempt=Attempt(1), checkpoint=CheckpointId(1),
            reason="not complete within 1000 ms",
        )
    ]  # fmt: skip
    assert play.report(ack(1)) == []
    assert [d.checkpoint for d in appended(play.tick(100))] == [2]  # type: ignore[union-attr]


def test_a_checkpoint_is_not_late_after_its_last_acknowledgement() -> None:
    """C2 (L3)."""
    play = storing()
    assert play.tick(5000) == []
    assert kinds(play(ManifestStored(CheckpointId(1), "m1", 5000)))[0] == "Complete"


def test_a_manifest_that_is_not_stored_fails_its_checkpoint() -> None:
    play = storing()
    assert kinds(play(ManifestFailed(CheckpointId(1), "down", 0))) == ["Abort"]
    assert play(ManifestStored(CheckpointId(1), "m1", 0)) == []


def test_one_failure_more_than_tolerated_restarts() -> None:
    play = running()
    declined = Decline(
        worker="w0", attempt=Attempt(1), checkpoint=CheckpointId(1),
        subtask=SubtaskId("s.in", 0), reason="down",
    )  # fmt: skip
    play.tick()
    assert kinds(play.report(declined)) == ["Abort"]
    play.tick(100)
    again = msgspec.structs.replace(declined, checkpoint=CheckpointId(2))
    assert kinds(play.report(again)) == ["Abort", "Restore", "Recover"]


@pytest.mark.parametrize("report", [ack(0, attempt=2), ack(0, checkpoint=2), ack(5)])
def test_what_is_not_of_this_checkpoint_does_not_count(report: Acknowledge) -> None:
    """C3 (L11)."""
    play = running()
    play.tick()
    before = play.state.in_flight
    play.report(msgspec.structs.replace(report, worker="w0"))
    assert play.state.in_flight == before


def test_one_acknowledgement_does_not_count_twice() -> None:
    """C1 (L2)."""
    play = running()
    play.tick()
    assert play.report(ack(0), ack(0)) == []


def test_a_pause_is_counted_from_the_end_of_a_checkpoint() -> None:
    play = running(msgspec.structs.replace(SETTINGS, interval_ms=10, min_pause_ms=50))
    play.tick()
    play.report(ack(0), ack(1))
    play.now_ms = 40
    play(ManifestStored(CheckpointId(1), "m1", 40))
    assert play.tick(49) == []
    assert kinds(play.tick(1)) == ["Trigger"]


# -- failures


def test_a_dead_worker_ends_the_attempt() -> None:
    play = running()
    play.tick()
    assert kinds(play.report(Leave(worker="w1", reason="killed"))) == [
        "Abort", "Restore", "Recover",
    ]  # fmt: skip


def test_a_dead_worker_waits_for_the_manifest_in_flight() -> None:
    """C2: the checkpoint may complete, and then the restore begins from it."""
    play = storing()
    assert play.report(Leave(worker="w1", reason="killed")) == []
    effects = play(ManifestStored(CheckpointId(1), "m1", 0))
    assert kinds(effects)[:2] == ["Complete", "Restore"]
    restore = next(d for d in appended(effects) if isinstance(d, Restore))
    assert restore.checkpoint == 1


def test_nothing_is_swept_before_the_recovery() -> None:
    """L16: found by the seeds: what is complete is still open until its recovery commits it."""
    play = storing()
    play.report(Leave(worker="w1", reason="killed"))
    assert "Sweep" not in kinds(play(ManifestStored(CheckpointId(1), "m1", 0)))


def test_a_silent_worker_is_gone() -> None:
    play = running()
    play(Ticked(5000))
    play.now_ms = 5000
    play.report(Heartbeat(worker="w0", attempt=Attempt(1)))
    assert "Restore" in kinds(play(Ticked(10_001)))
    assert set(play.state.workers) == {"w0"}


def test_an_idle_worker_that_was_given_up_may_join_again() -> None:
    play = Play()
    play(Recovered(Attempt(1), None))
    play.report(join("w0"))
    play(Ticked(20_000))
    play.now_ms = 20_000
    assert kinds(play.report(join("w0"), join("w1"))) == ["Measure"]


def test_a_worker_that_lost_its_attempt_ends_it() -> None:
    """A process that restarted under its old name beats, but does not work."""
    play = running()
    assert "Restore" in kinds(play.report(join("w0", attempt=0)))


def test_a_failure_of_another_attempt_is_old_news() -> None:
    play = running()
    assert play.report(Failed(worker="w0", attempt=Attempt(7), reason="x", fatal=True)) == []


def test_a_fatal_failure_ends_the_application() -> None:
    play = running()
    play.tick()
    effects = play.report(Failed(worker="w0", attempt=Attempt(1), reason="no topic", fatal=True))
    assert kinds(effects) == ["Abort", "Exit"]
    assert effects[-1] == Exit("no topic")


def test_a_fatal_failure_does_not_abort_under_the_manifest() -> None:
    """C2: the next leader aborts it (L3)."""
    play = storing()
    failed = Failed(worker="w0", attempt=Attempt(1), reason="no topic", fatal=True)
    assert kinds(play.report(failed)) == ["Exit"]


def test_restarts_without_progress_are_delayed() -> None:
    play = running()
    delays = []
    for attempt in range(2, 6):
        play.report(Failed(worker="w0", attempt=Attempt(attempt - 1), reason="bad record"))
        began = play.now_ms
        while play.phase is Phase.BACKING_OFF:
            play.tick(100)
        delays.append(play.now_ms - began)
        play(Recovered(Attempt(attempt), None), Measured(Attempt(attempt), {}))
        play.report(*(Ready(worker=w, attempt=Attempt(attempt)) for w in ("w0", "w1")))
    assert delays == sorted(delays)
    assert delays[0] == 0
    assert delays[-1] >= 1000


def test_recovery_that_fails_is_tried_again_in_a_new_attempt() -> None:
    play = running()
    play.report(Leave(worker="w1", reason="killed"))
    play(RecoveryFailed(Attempt(2), "timeout"))
    play.tick(10_000)
    assert play.state.history.attempt == 3


def test_a_fall_back_restores_the_older_checkpoint() -> None:
    """L14, H4: and the newer one is never restored again."""
    play = running()
    completed(play, 1)
    completed(play, 2)
    play.report(Leave(worker="w1", reason="killed"))
    effects = play(RecoveryFailed(Attempt(2), "lost", fall_back=CheckpointId(1)))
    assert effects[-1] == Recover(Attempt(3), CheckpointId(1), "m1", None)
    assert [n for n, _ in play.state.history.completed] == [1]


def test_a_fall_back_to_an_unknown_checkpoint_starts_nothing() -> None:
    """A missing manifest must not look like an empty application."""
    play = running()
    play.report(Leave(worker="w1", reason="killed"))
    effects = play(RecoveryFailed(Attempt(2), "lost", fall_back=CheckpointId(9)))
    assert kinds(effects) == ["Exit"]
    assert "checkpoint 9" in effects[0].error


def test_loss_ends_the_application() -> None:
    play = running()
    play.report(Leave(worker="w1", reason="killed"))
    assert play(RecoveryFailed(Attempt(2), "lost", fatal=True)) == [Exit("lost")]


# -- a new leader


def taken_over(*decisions: AnyDecision, settings: Settings = SETTINGS) -> Play:
    """A leader that finds the log of another one: deployed, running, and then ``decisions``."""
    earlier = running().state.history
    history = msgspec.structs.replace(earlier, term=Term(0))
    for decision in decisions:
        history, _ = applied(history, 0, msgspec.structs.replace(decision, term=Term(0)))
    history, _ = applied(history, TERM, TermBegan(leader="new"))
    return Play(settings, history)


TRIGGER = Trigger(term=TERM, attempt=Attempt(1), checkpoint=CheckpointId(1))
COMPLETE = Complete(term=TERM, attempt=Attempt(1), checkpoint=CheckpointId(1), manifest="m1")


def test_a_new_leader_aborts_what_is_in_flight_and_lets_the_attempt_go_on() -> None:
    """L3."""
    play = taken_over(TRIGGER)
    assert [d.checkpoint for d in appended(play.effects)] == [1]  # type: ignore[union-attr]
    assert play.phase is Phase.RESUMING
    play.report(join("w0", 1))
    assert play.phase is Phase.RESUMING
    play.report(join("w1", 1))
    assert play.phase is Phase.RUNNING
    assert [d.checkpoint for d in appended(play.tick())] == [2]  # type: ignore[union-attr]


def test_a_new_leader_restores_when_workers_do_not_answer() -> None:
    play = taken_over(TRIGGER, COMPLETE)
    assert kinds(play.tick(3000)) == ["Restore", "Recover"]
    assert play.state.restoring == 1


def test_a_new_leader_restores_at_once_when_a_worker_lost_the_attempt() -> None:
    assert "Restore" in kinds(taken_over().report(join("w0", 0)))


def test_other_settings_mean_another_deployment() -> None:
    rescaled = msgspec.structs.replace(SETTINGS, services={"s": 3})
    assert kinds(taken_over(settings=rescaled).effects) == ["Restore", "Recover"]


def test_a_leader_between_restore_and_deploy_is_followed_by_a_new_attempt() -> None:
    """L12, decision 0006: what the dead leader may still do is fenced by the attempt after."""
    restore = Restore(
        term=TERM, attempt=Attempt(2), checkpoint=None, manifest=None, reason="worker died"
    )
    play = taken_over(restore)
    assert play.state.history.attempt == 3


# -- a graceful stop, C8


def stopping(play: Play) -> Play:
    effects = play(StopAsked())
    assert [d.kind for d in appended(effects)] == ["stop"]  # type: ignore[union-attr]
    play.report(ack(0), ack(1))
    effects = play(ManifestStored(CheckpointId(1), "m1", 0))
    assert kinds(effects)[:2] == ["Complete", "Stop"]
    assert play.phase is Phase.STOPPING
    return play


def test_a_graceful_stop() -> None:
    play = stopping(running())
    assert play.report(Finished(worker="w0", attempt=Attempt(1))) == []
    assert play.report(Leave(worker="w0", reason="finished")) == []
    assert play.report(Finished(worker="w1", attempt=Attempt(1))) == [Exit()]


def test_a_worker_that_dies_in_a_stop_is_recovered_first() -> None:
    """C8 (L14): its transactions would time out unseen."""
    play = stopping(running())
    play.report(Finished(worker="w0", attempt=Attempt(1)))
    assert kinds(play.report(Leave(worker="w1", reason="killed"))) == ["Restore", "Recover"]
    assert kinds(play(Recovered(Attempt(2), CheckpointId(1)))) == ["Stop", "Exit"]


def test_a_stop_sweeps_a_last_time() -> None:
    """L16: nobody does it afterwards."""
    play = running()
    completed(play, 1)
    play(StopAsked())
    play.report(ack(0, 2), ack(1, 2))
    assert "Sweep" in kinds(play(ManifestStored(CheckpointId(2), "m2", play.now_ms)))


def test_a_finish_of_another_attempt_does_not_count() -> None:
    play = stopping(running())
    old = Finished(worker="w0", attempt=Attempt(7))
    assert play.report(old, msgspec.structs.replace(old, worker="w1")) == []


def test_a_stop_during_a_recovery_lets_it_finish() -> None:
    play = running()
    play.report(Leave(worker="w1", reason="killed"))
    assert play(StopAsked()) == []
    assert kinds(play(Recovered(Attempt(2), None))) == ["Stop", "Exit"]


def test_a_stop_while_waiting_for_workers_is_at_once() -> None:
    play = Play()
    play(Recovered(Attempt(1), None))
    assert kinds(play(StopAsked())) == ["Stop", "Exit"]


def test_a_stop_while_backing_off_recovers_first() -> None:
    play = running()
    play.report(Failed(worker="w0", attempt=Attempt(1), reason="x"))
    play(RecoveryFailed(Attempt(2), "x"))
    assert play.phase is Phase.BACKING_OFF
    assert "Restore" in kinds(play(StopAsked()))


def test_a_new_leader_finishes_a_stop_whose_last_word_is_missing() -> None:
    """C8: the sources have stopped at the barrier; only Stop was not written."""
    play = taken_over(msgspec.structs.replace(TRIGGER, kind="stop"), COMPLETE)
    assert kinds(play.effects) == ["Restore", "Recover"]
    assert kinds(play(Recovered(Attempt(2), CheckpointId(1)))) == ["Stop", "Exit"]


def test_a_stopped_application_starts_again() -> None:
    stop = Stop(term=TERM, attempt=Attempt(1), checkpoint=CheckpointId(1))
    play = taken_over(msgspec.structs.replace(TRIGGER, kind="stop"), COMPLETE, stop)
    assert kinds(play.effects) == ["Restore", "Recover"]
    assert play(Recovered(Attempt(2), CheckpointId(1))) == []
    assert play.phase is Phase.WAITING


# -- who does what


def test_a_slot_asked_for_is_kept_for_the_newest() -> None:
    workers = {
        "a": Worker("s", 1, seen_ms=1),
        "b": Worker("s", 1, seen_ms=9),
        "c": Worker("s", None, seen_ms=1),
    }
    assert assigned({"s": 2}, workers) == {"s/0": "c", "s/1": "b"}
    assert assigned({"s": 3}, workers) is None
    assert assigned({"other": 1}, workers) is None


def test_a_worker_of_a_foreign_service_is_told_so() -> None:
    stranger = Join(worker="x", service=msgspec.structs.replace(SERVICE, name="other"))
    state, effects = step(running().state, Reported(stranger, 0))
    assert isinstance(effects[0], Say)
    assert "x" not in state.workers


# -- totality


def phases() -> dict[Phase, Coordinator]:
    restoring = Play()
    waiting = Play()
    waiting(Recovered(Attempt(1), None))
    measuring = Play()
    measuring(Recovered(Attempt(1), None))
    measuring.report(join("w0"), join("w1"))
    backing_off = running()
    backing_off.report(Failed(worker="w0", attempt=Attempt(1), reason="x"))
    backing_off(RecoveryFailed(Attempt(2), "x"))
    ended = running()
    ended(DecisionRead(99, TermBegan(leader="other")))
    plays = (
        taken_over(), backing_off, restoring, waiting, measuring, started(), running(),
        stopping(running()), ended,
    )  # fmt: skip
    return {play.phase: play.state for play in plays}


def test_totality() -> None:
    """Every event in every phase, with and without a checkpoint in flight, is legal."""
    found = phases()
    assert set(found) == set(Phase)
    n, attempt = CheckpointId(1), Attempt(1)
    subtask = SubtaskId("s.in", 0)
    declined = Decline(worker="w0", attempt=attempt, checkpoint=n, subtask=subtask, reason="")
    reports: list[AnyReport] = [
        join("w0"), join("w0", 1), join("w9"), ack(0), ack(1), Leave(worker="w0", reason=""),
        Leave(worker="w9", reason=""), Heartbeat(worker="w0", attempt=attempt),
        Heartbeat(worker="w9", attempt=attempt), Ready(worker="w0", attempt=attempt),
        Failed(worker="w0", attempt=attempt, reason=""),
        Failed(worker="w0", attempt=attempt, reason="", fatal=True),
        Finished(worker="w0", attempt=attempt),
        declined,
    ]  # fmt: skip
    events: list[Any] = [
        *(Reported(report, 1) for report in reports), Ticked(1), Ticked(10**6), StopAsked(),
        ManifestStored(n, "m1", 1), ManifestFailed(n, "", 1), Recovered(attempt, None),
        Recovered(Attempt(2), None), Measured(attempt, {}), RecoveryFailed(attempt, ""),
        RecoveryFailed(Attempt(2), "", fatal=True), DecisionRead(1, COMPLETE),
        DecisionRead(99, TermBegan(leader="x")),
    ]  # fmt: skip
    states = [*found.values(), storing().state]
    for state in states:
        for event in events:
            after, effects = step(state, event)
            assert state.phase is not Phase.ENDED or (after, effects) == (state, ())
            for asked in effects:
                assert isinstance(
                    asked, Append | StoreManifest | Recover | Measure | Retain | Sweep | Say | Exit
                )


def test_expected_subtasks() -> None:
    deploy = running().state.history.deploy
    assert isinstance(deploy, Deploy)
    assert machine.expected_subtasks(deploy) == {SubtaskId("s.in", 0), SubtaskId("s.in", 1)}
