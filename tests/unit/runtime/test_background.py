"""Work off the loop: its results come back in the loop, in the order in which it was finished."""

import subprocess
import sys
import threading
import time

import pytest
from penstock.runtime.background import Background


def until(work: Background, condition: object) -> None:
    for _ in range(1000):
        if condition():  # type: ignore[operator]
            return
        work.wait(0.01)
        work.drain()
    raise AssertionError("it did not happen")


def test_results_are_handed_over_in_the_loop() -> None:
    work, results = Background(2, "test"), []
    loop = threading.get_ident()

    def then(result: int) -> None:
        assert threading.get_ident() == loop
        results.append(result)

    work.submit(threading.get_ident, then, _fail)
    until(work, lambda: results)
    assert results[0] != loop
    work.close()


def test_errors_are_handed_over_and_what_they_raise_comes_out_of_the_loop() -> None:
    work = Background(1, "test")

    def broken() -> None:
        raise OSError("no route")

    def failed(error: BaseException) -> None:
        raise error

    work.submit(broken, lambda _: None, failed)
    with pytest.raises(OSError, match="no route"):
        until(work, lambda: False)
    work.close()


def test_what_was_not_begun_is_forgotten_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    work, begun, go_on = Background(1, "test"), threading.Event(), threading.Event()
    results: list[object] = []

    def slow() -> None:
        begun.set()
        go_on.wait(10)

    work.submit(slow, results.append, _fail)
    work.submit(lambda: 2, results.append, _fail)
    assert begun.wait(10)
    work.close()
    go_on.set()
    until(work, lambda: results)
    assert results == [None]
    assert capfd.readouterr().err == ""


def test_waiting_waits_whatever_came_between_the_steps_of_a_post() -> None:
    """A completion that is drained before its signal is set: nothing waits for the loop any more.

    A worker spun for the rest of an alignment here, at full load.
    """
    work = Background(1, "test")
    work.post(lambda: None)
    work._done.append(lambda: None)  # the first step of a post in another thread
    assert work.drain()
    work._signal.set()  # its second step
    rounds, end = 0, time.monotonic() + 0.5
    while time.monotonic() < end:
        work.wait(0.05)
        assert not work.drain()
        rounds += 1
    assert rounds <= 13
    work.close()


def test_a_completion_ends_the_wait_at_once() -> None:
    work = Background(1, "test")
    for _ in range(200):
        work.submit(lambda: time.sleep(0.0005), lambda _: None, _fail)
        began = time.monotonic()
        while not work.drain():
            work.wait(5)
        assert time.monotonic() - began < 2
    work.close()


def test_a_process_does_not_wait_for_a_running_call_at_its_end() -> None:
    """A flush or a commit may take minutes; meanwhile the pulse would say that the worker lives."""
    code = (
        "import sys, threading, time\n"
        "from penstock.runtime.background import Background\n"
        "work, begun = Background(1, 'test'), threading.Event()\n"
        "work.submit(lambda: (begun.set(), time.sleep(60)), print, print)\n"
        "begun.wait(10)\n"
        "sys.exit(3)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], timeout=20, check=False)
    assert ended.returncode == 3


def test_closing_may_finish_what_is_queued_but_not_for_ever() -> None:
    work, done, go_on = Background(1, "test"), [], threading.Event()
    for number in range(3):
        work.submit(lambda number=number: done.append(number), lambda _: None, _fail)
    work.close(finish_s=10)
    assert done == [0, 1, 2]

    work = Background(1, "test")
    work.submit(lambda: go_on.wait(10), lambda _: None, _fail)
    work.submit(lambda: done.append(3), lambda _: None, _fail)
    work.close(finish_s=0.05)
    go_on.set()
    time.sleep(0.05)
    assert done == [0, 1, 2]


def _fail(error: BaseException) -> None:
    raise AssertionError(error)
