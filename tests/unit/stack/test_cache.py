"""The cache of the stack: made once, by one, or not at all."""

import threading
from pathlib import Path

import pytest
from penstock_stack.cache import cache_folder, cached


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_thing_is_made_once() -> None:
    calls: list[Path] = []

    def make(part: Path) -> None:
        calls.append(part)
        (part / "jar").write_text("x")

    first = cached("kafka/1", make)
    assert cached("kafka/1", make) == first == cache_folder() / "kafka/1"
    assert (first / "jar").read_text() == "x"
    assert len(calls) == 1


def test_two_that_come_together_make_it_once() -> None:
    calls: list[Path] = []
    both = threading.Barrier(2)

    def make(part: Path) -> None:
        calls.append(part)
        threading.Event().wait(0.05)

    def come() -> None:
        both.wait()
        cached("kafka/1", make)

    threads = [threading.Thread(target=come) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


def test_a_failed_making_leaves_nothing_that_looks_whole() -> None:
    def fail(part: Path) -> None:
        (part / "half").write_text("x")
        raise OSError("the network went away")

    with pytest.raises(OSError, match="went away"):
        cached("kafka/1", fail)
    assert not (cache_folder() / "kafka/1").exists()
    made = cached("kafka/1", lambda part: None)
    assert list(made.iterdir()) == []
