"""Sources that end, and copies of an application that share nothing with it.

Laws: L5 (positions are exactly where the source was told to end), L14 (everything up to there is
committed), L16, L23 (a copy has its own names).
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from penstock.ids import transactional_prefix
from penstock_kafka import KafkaCluster
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

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

KEYS = 40
OF_PARTITION = KEYS // PARTITIONS
"""Keys whose records stand in one partition."""


@pytest.fixture
def reader(stack: Stack, app_id: str) -> Iterator[Reader]:
    make_topics(stack, f"{app_id}.numbers", f"{app_id}.sums", f"{app_id}.sums.b")
    reading = Reader(stack, f"{app_id}.sums")
    yield reading
    reading.close()


def until(app_id: str, records: int) -> tuple[str, str]:
    """Every partition ends behind so many records."""
    return "--until", json.dumps({f"{app_id}.numbers": dict.fromkeys(range(PARTITIONS), records)})


@pytest.mark.parametrize("parallelism", [1, 3])
def test_an_application_ends_where_it_was_told_to(
    parallelism: int, stack: Stack, app_id: str, reader: Reader, tmp_path: Path
) -> None:
    """L5, L14: not one record more or less; and goes on from there."""
    feed(stack, f"{app_id}.numbers", KEYS, 1, 20)
    counts = ("--parallelism", str(parallelism))
    for last in (7, 13):
        application = Application(
            stack, app_id, tmp_path, *counts, *until(app_id, OF_PARTITION * last)
        )
        with running(application):
            assert application.wait(90) == 0, application.log()
        assert "every source came to the end" in application.log()
        reader.settle(2)
        check_sums(reader.values, KEYS, last)
        assert application.open_transactions() == {}
    with running(Application(stack, app_id, tmp_path, *counts, "--until", "latest")) as latest:
        assert latest.wait(90) == 0, latest.log()
    reader.settle(2)
    check_sums(reader.values, KEYS, 20)
    feed(stack, f"{app_id}.numbers", KEYS, 21, 22)
    with running(Application(stack, app_id, tmp_path, *counts)) as endless:
        reader.until(KEYS * 22, 60, endless)
        assert endless.stop() == 0, endless.log()
    reader.settle()
    check_sums(reader.values, KEYS, 22)


def test_an_end_behind_the_last_record(
    stack: Stack, app_id: str, reader: Reader, tmp_path: Path
) -> None:
    """L5: transaction markers and aborted records are offsets too, though nobody is given them."""
    topic = f"{app_id}.numbers"
    producer = Producer({"bootstrap.servers": stack.bootstrap, "transactional.id": app_id})
    producer.init_transactions(30)
    for is_committed in (True, False):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(topic, b'{"key":"k%d","n":1}' % partition, None, partition)
        assert producer.flush(30) == 0  # else what is aborted would not have been written at all
        if is_committed:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    cluster = KafkaCluster.from_env(environment(stack, app_id))
    deadline = time.monotonic() + 20
    while cluster.end_positions(topic) != [4] * PARTITIONS:  # a record and a marker, twice
        assert time.monotonic() < deadline, "the broker writes markers after it has answered"
        time.sleep(0.05)
    application = Application(stack, app_id, tmp_path, *until(app_id, 4))
    with running(application):
        assert application.wait(90) == 0, application.log()
    reader.settle(2)
    check_sums(reader.values, PARTITIONS, 1)


def test_a_copy_shares_nothing_with_its_original(
    stack: Stack, app_id: str, reader: Reader, tmp_path: Path
) -> None:
    """L16, L23: own topics, own transactions, own positions, at the same time."""
    (tmp_path / "copy").mkdir()
    feed(stack, f"{app_id}.numbers", KEYS, 1, 20)
    original = Application(stack, app_id, tmp_path)
    copied = ("--app-id", f"{app_id}-b", "--sink-suffix", ".b", *until(app_id, OF_PARTITION * 10))
    copy = Application(stack, app_id, tmp_path / "copy", *copied)
    theirs = Reader(stack, f"{app_id}.sums.b")
    try:
        with running(original), running(copy):
            assert copy.wait(90) == 0, copy.log()
            reader.until(KEYS * 20, 60, original)
            assert original.stop() == 0, original.log()
        theirs.settle(2)
        reader.settle()
    finally:
        theirs.close()
    check_sums(theirs.values, KEYS, 10)
    check_sums(reader.values, KEYS, 20)
    recovery = KafkaCluster.from_env(environment(stack, app_id)).recovery(app_id)
    try:
        known = Counter(
            prefix
            for prefix in (transactional_prefix(app_id), transactional_prefix(f"{app_id}-b"))
            for _ in recovery.transactional_ids(prefix)
        )
    finally:
        recovery.close()
    assert len(known) == 2, "each has its own transactional ids"


@pytest.mark.parametrize(
    ("bounds", "told"),
    [
        ('{"%s.numbers": {"0": 1}}', "where partitions [1, 2, 3] of topic"),
        ('{"other": {"0": 1}}', "where partitions [0, 1, 2, 3] of topic"),
        ('{"%s.numbers": {"0": -1}}', "neither is negative"),
        ("{", "is not topic -> partition -> offset"),
        ("nowhere.json", "nor a file of it"),
    ],
)
def test_bounds_that_make_no_sense(
    bounds: str, told: str, stack: Stack, app_id: str, reader: Reader, tmp_path: Path
) -> None:
    given = bounds % app_id if "%s" in bounds else bounds
    application = Application(stack, app_id, tmp_path, "--until", given)
    with running(application):
        assert application.wait(60) == 2
    assert told in application.log()
