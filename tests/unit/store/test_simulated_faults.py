"""SimulatedStore: the faults a test can order."""

import pytest
from penstock.failure import ConfigurationError, CorruptedObject, StoreFailed
from penstock.testing.store import Damage, SimulatedStore, StoreCrash


def test_the_next_calls_fail_and_then_it_works() -> None:
    store = SimulatedStore()
    store.fail_next(2)
    store.fail_next(call="get", cause="403 AccessDenied")
    with pytest.raises(StoreFailed, match="did not put 'a': 503 SlowDown"):
        store.put("a", b"1")
    with pytest.raises(StoreFailed, match="did not list"):
        store.list("")
    store.put("a", b"1")
    with pytest.raises(StoreFailed, match="did not get 'a': 403"):
        store.get("a")
    assert store.get("a") == b"1"
    assert store.calls == [("put", "a"), ("list", ""), ("put", "a"), ("get", "a"), ("get", "a")]


def test_an_answer_can_be_lost_after_the_effect() -> None:
    store = SimulatedStore()
    store.fail_next(after_effect=True)
    with pytest.raises(StoreFailed):
        store.put("a", b"1")
    store.put("a", b"1")
    store.fail_next(after_effect=True)
    with pytest.raises(StoreFailed):
        store.delete(["a"])
    assert store.list("") == []


def test_the_process_dies_before_or_after_an_effect() -> None:
    store = SimulatedStore()
    store.crash_next(call="put_stream")
    store.crash_next(call="put", after_effect=True)
    with pytest.raises(StoreCrash, match="before the effect of put_stream 'b'"):
        store.put_stream("b", [b"1"])
    with pytest.raises(StoreCrash, match="after the effect of put 'a'"):
        store.put("a", b"1")
    assert not issubclass(StoreCrash, Exception)
    assert SimulatedStore(objects=store.objects).list("") == ["a"], "the server lives on"


@pytest.mark.parametrize("how", Damage)
def test_a_damaged_object_is_found(how: Damage) -> None:
    store = SimulatedStore()
    _, total = store.put_stream("a", [b"12", b"345"])
    store.damage("a", how)
    with pytest.raises(CorruptedObject, match="'a' in simulated://store"):
        store.get("a", size=5, sha256=total)
    with pytest.raises(CorruptedObject, match="'a' in simulated://store"):
        store.get("a", sha256=total)


def test_down_slow_and_stale() -> None:
    waited: list[float] = []
    store = SimulatedStore(sleep=waited.append)
    store.put("a", b"1")
    store.freeze_listing()
    store.put("b", b"1")
    store.latency_s = 30.0
    assert store.list("") == ["a"]
    store.down = True
    with pytest.raises(StoreFailed, match="is down"):
        store.get("a")
    with pytest.raises(ConfigurationError, match="simulated://store"):
        store.check()
    assert waited == [30.0] * 3
    store.heal()
    store.check()
    assert store.list("") == ["a", "b"]
