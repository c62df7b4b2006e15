"""Restores at other parallelisms, after stops and after kills: the same state for the same keys.

Laws: L20 (state follows its key groups; list state is split evenly, in order), L12, L14, L16 (ids
of subtasks that are no more hold nothing open), L19.
"""

import json
import os
import signal
from pathlib import Path

import pytest
from confluent_kafka import Producer
from penstock.ids import owned_partitions
from penstock.runtime.connectors import store_from
from penstock_stack import Stack

from tests.integration.running import (
    PARTITIONS,
    Application,
    Reader,
    check_sums,
    environment,
    feed,
    make_topics,
    running,
)

KEYS = 40
EACH = 20
"""Records of every key that are fed at each parallelism."""
STEPS = [(2, "stop"), (3, "kill"), (1, "stop"), (4, "kill"), (2, "stop")]


def at(parallelism: int, stack: Stack, app_id: str, folder: Path, service: str) -> Application:
    """The application at a parallelism; all of them share one log and one events file."""
    arguments = ("--parallelism", str(parallelism), "--checkpoint-interval-ms", "100")
    return Application(stack, app_id, folder, *arguments, services=(service,))


@pytest.mark.integration
@pytest.mark.timeout(400)
@pytest.mark.parametrize("service", ["sums.py", "direct.py"])
def test_sums_over_rescales(service: str, stack: Stack, app_id: str, tmp_path: Path) -> None:
    """L20: 2 -> 3 -> 1 -> 4 -> 2 subtasks, over an edge and on a partitioned source.

    A stop is graceful; a kill takes everything at once, in the middle of the input, and the next
    parallelism starts from the last complete checkpoint.
    """
    make_topics(stack, f"{app_id}.numbers", f"{app_id}.sums")
    reader = Reader(stack, f"{app_id}.sums")
    fed = 0
    for parallelism, end in STEPS:
        application = at(parallelism, stack, app_id, tmp_path, service)
        with running(application):
            feed(stack, f"{app_id}.numbers", KEYS, fed + 1, fed + EACH)
            fed += EACH
            if end == "stop":
                reader.until(KEYS * fed, 60, application)
                assert application.stop() == 0, application.log()
            else:
                # Some of it is out and committed, the rest is for the next parallelism.
                reader.until(KEYS * (fed - EACH) + 1, 60, application)
                application.kill()
    reader.settle()
    reader.close()
    check_sums(reader.values, KEYS, fed)
    assert application.open_transactions() == {}
    restored = [
        event["checkpoint"]
        for event in application.events()
        if event["event"] == "attempt" and event["state"] == "deployed"
    ]
    assert len(restored) == len(STEPS), "one attempt for each parallelism"
    assert restored[0] is None
    assert None not in restored[1:]


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_worker_dies_while_rescaling(stack: Stack, app_id: str, tmp_path: Path) -> None:
    """L12, L20: the restore at the new parallelism is cut short and begun again."""
    make_topics(stack, f"{app_id}.numbers", f"{app_id}.sums")
    reader = Reader(stack, f"{app_id}.sums")
    first = at(2, stack, app_id, tmp_path, "sums.py")
    with running(first):
        feed(stack, f"{app_id}.numbers", KEYS, 1, EACH)
        reader.until(KEYS * EACH, 60, first)
        first.kill()
    marks = tmp_path / "marks"
    marks.mkdir()
    second = Application(
        stack, app_id, tmp_path, "--parallelism", "3", "--checkpoint-interval-ms", "100",
        PENSTOCK_FAULT=f"a13:1:{marks}:2",
    )  # fmt: skip
    with running(second):
        feed(stack, f"{app_id}.numbers", KEYS, EACH + 1, 2 * EACH)
        reader.until(KEYS * 2 * EACH, 60, second)
        assert len(list(marks.iterdir())) == 2, second.log()
        assert second.stop() == 0, second.log()
    reader.settle()
    reader.close()
    check_sums(reader.values, KEYS, 2 * EACH)
    assert second.open_transactions() == {}


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_list_state_of_an_operator_is_split_evenly(
    stack: Stack, app_id: str, tmp_path: Path
) -> None:
    """L20: each subtask has its even share of the list, in order; nothing is lost or doubled."""
    make_topics(stack, f"{app_id}.numbers", f"{app_id}.remembered")
    numbers = 50
    _remember(stack, app_id, range(numbers))
    asked = 0
    for parallelism in (2, 3, 1, 4):
        application = at(parallelism, stack, app_id, tmp_path, "listing.py")
        with running(application):
            asked += 1
            lists = _asked(stack, app_id, application, asked)
            assert application.stop() == 0, application.log()
        if asked == 1:
            continue  # a partition may have been asked before another one was read
        shares = [lists[_first_partition(parallelism, index)] for index in range(parallelism)]
        assert sorted(n for share in shares for n in share) == list(range(numbers))
        even = [len(owned_partitions(numbers, parallelism, i)) for i in range(parallelism)]
        assert [len(share) for share in shares] == even


@pytest.mark.integration
def test_every_worker_killed_at_once(stack: Stack, app_id: str, tmp_path: Path) -> None:
    """L12, L16, L19: three workers die together; one restore, and nothing of theirs stays, neither
    an open transaction nor an object that no checkpoint names.
    """
    make_topics(stack, f"{app_id}.numbers", f"{app_id}.sums")
    application = at(3, stack, app_id, tmp_path, "sums.py")
    reader = Reader(stack, f"{app_id}.sums")
    with running(application):
        feed(stack, f"{app_id}.numbers", KEYS, 1, EACH)
        reader.until(KEYS * EACH, 60, application)
        store = store_from(environment(stack, app_id))
        left = {f"{app_id}/1/sums.by-key-0/999-left.chunk", f"{app_id}/imports/1-1/0.chunk"}
        for key in left:
            store.put(key, b"uploaded by a worker that died before its checkpoint was complete")
        for pid in application.pids("worker").values():
            os.kill(pid, signal.SIGKILL)
        feed(stack, f"{app_id}.numbers", KEYS, EACH + 1, 2 * EACH)
        reader.until(KEYS * 2 * EACH, 60, application)
        assert application.stop() == 0, application.log()
        assert not left & set(store.list(f"{app_id}/"))
    reader.settle()
    reader.close()
    check_sums(reader.values, KEYS, 2 * EACH)
    assert application.open_transactions() == {}


def _first_partition(parallelism: int, index: int) -> int:
    return owned_partitions(PARTITIONS, parallelism, index).start


def _remember(stack: Stack, app_id: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": stack.bootstrap, "enable.idempotence": True})
    for n in numbers:
        producer.produce(f"{app_id}.numbers", json.dumps({"n": n}), None, n % PARTITIONS)
    assert producer.flush(30) == 0


def _asked(stack: Stack, app_id: str, application: Application, nth: int) -> dict[int, list[int]]:
    """What the owner of each source partition remembers; asked behind all that came before."""
    producer = Producer({"bootstrap.servers": stack.bootstrap, "enable.idempotence": True})
    questions = {-(nth * 100 + partition): partition for partition in range(PARTITIONS)}
    for question, partition in questions.items():
        producer.produce(f"{app_id}.numbers", json.dumps({"n": question}), None, partition)
    assert producer.flush(30) == 0
    reader = Reader(stack, f"{app_id}.remembered")
    reader.until(PARTITIONS * nth, 60, application)
    reader.close()
    answers = [json.loads(value) for value in reader.values]
    return {
        questions[answer["asked"]]: answer["numbers"]
        for answer in answers
        if answer["asked"] in questions
    }
