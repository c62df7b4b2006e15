"""Which transactions a restore has to decide, when the manifest that says so is damaged."""

import pytest
from penstock.checkpoint.leadership import Recover
from penstock.failure import CorruptedObject
from penstock.ids import Attempt, CheckpointId
from penstock.runtime.recovery import _transactions
from penstock.testing.store import SimulatedStore

KEY = "app/manifests/7-1.json"


def asked(*, importing: bool) -> Recover:
    return Recover(Attempt(2), CheckpointId(7), KEY, None, importing)


@pytest.mark.parametrize("data", [None, b"spoilt"])
def test_without_a_savepoint_nothing_is_given_up(data: bytes | None) -> None:
    store = SimulatedStore(objects={} if data is None else {KEY: data})
    for accept_loss in (False, True):
        with pytest.raises(CorruptedObject, match="convert app --checkpoint N, then") as refused:
            _transactions(store, asked(importing=False), accept_loss=accept_loss)
        assert "--accept-loss" not in str(refused.value)


@pytest.mark.parametrize("data", [None, b"spoilt"])
def test_a_savepoint_is_started_from_once_the_loss_is_accepted(data: bytes | None) -> None:
    store = SimulatedStore(objects={} if data is None else {KEY: data})
    with pytest.raises(CorruptedObject, match="and with --accept-loss, for nobody can tell"):
        _transactions(store, asked(importing=True), accept_loss=False)
    assert _transactions(store, asked(importing=True), accept_loss=True) == ()
