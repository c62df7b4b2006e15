"""A worker that is held up says that it lives; while a coordinator sleeps nobody is late."""

import threading

import pytest
from penstock.failure import TransportFailed
from penstock.runtime import leader, pulse
from penstock.runtime.leader import AwakeClock
from penstock.runtime.pulse import Pulse


def test_it_beats_while_the_loop_does_not_turn() -> None:
    beats = threading.Semaphore(0)
    beating = Pulse("worker", 0.01, beats.release)
    for _ in range(3):
        assert beats.acquire(timeout=10)
    beating.close()
    while beats.acquire(blocking=False):
        pass
    assert not beats.acquire(timeout=0.1), "none after its close"


def test_an_error_of_one_beat_does_not_end_it() -> None:
    beats = threading.Semaphore(0)

    def beat() -> None:
        beats.release()
        raise TransportFailed("the queue is full")

    beating = Pulse("worker", 0.01, beat)
    for _ in range(3):
        assert beats.acquire(timeout=10)
    beating.close()


def test_a_loop_that_is_held_up_is_told_about_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pulse, "SLOW_S", 0.1)
    beats = threading.Semaphore(0)
    beating = Pulse("worker", 0.01, beats.release)
    for _ in range(25):
        assert beats.acquire(timeout=10)
    beating.close()
    told = capsys.readouterr().err.splitlines()
    assert told
    assert len(told) <= 10
    assert all("worker: one turn of the loop lasts for" in line for line in told)


def test_time_that_a_coordinator_slept_through_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(leader.time, "monotonic", lambda: now)
    clock = AwakeClock()
    now += 0.25
    assert clock.now_ms() == 250
    now += 3600
    assert clock.now_ms() == 250 + int(leader.AWAKE_STEP_S * 1000)
    now += 0.5
    assert clock.now_ms() == 750 + int(leader.AWAKE_STEP_S * 1000)
