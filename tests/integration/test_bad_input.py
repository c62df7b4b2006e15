"""Bad input: one clear error that names the thing and the remedy, and nothing is lost.

What cannot run ends `penstock run` at once with exit code 2 and one line; what is found when state
is restored ends it with code 4; a bad record or a user's exception fails the attempt and names
topic, partition and offset. In each case the mended application goes on exactly once.

Laws: L2, L5 (positions that are gone stop the application), L12, L19 (objects are verified on
read), L20, L21. Options of the command line are in tests/unit/runtime/test_cli.py.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from penstock.checkpoint import history as hist
from penstock.control import decode_decision
from penstock.runtime.ports import SnapshotStore
from penstock.snapshot import manifest as manifests
from penstock_kafka import KafkaCluster
from penstock_minio import open_store
from penstock_stack import Stack, start_stack
from penstock_stack.containers import start_containers

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

CONFIGURATION, FATAL = 2, 4
KEYS = 8
FAST = ("--checkpoint-interval-ms", "100")


def refused(application: Application, code: int, timeout_s: float = 60) -> str:
    """Run until it ends by itself with ``code``; the one line that says why."""
    before = len(application.log_path.read_text()) if application.log_path.exists() else 0
    with running(application):
        assert application.wait(timeout_s) == code, application.log()
    said = application.log_path.read_text()[before:]
    assert "Traceback" not in said, said
    assert "rdkafka" not in said, said
    assert "%3|" not in said, said
    told = [line for line in said.splitlines() if not _is_progress(line)]
    assert len(told) == 1, f"expected one line that says what is wrong, found:\n{said}"
    return told[0]


def _is_progress(line: str) -> bool:
    """What a healthy start says too."""
    return re.search(r"coordinator: (leads|attempt \d+ (from|runs))", line) is not None


# -- what is found before anything runs


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        (["sums"], "topic '{app}.numbers' does not exist"),
        (["numbers"], "topic '{app}.sums' does not exist"),
    ],
    ids=["source", "sink"],
)
def test_unknown_topic(
    topics: list[str], expected: str, stack: Stack, app_id: str, tmp_path: Path
) -> None:
    make_topics(stack, *(f"{app_id}.{topic}" for topic in topics))
    said = refused(Application(stack, app_id, tmp_path), CONFIGURATION)
    assert expected.format(app=app_id) in said
    assert stack.bootstrap in said
    assert "correct the name, or create it: kafka-topics.sh" in said


@pytest.mark.parametrize(
    ("env", "expected", "remedy"),
    [
        (
            {"PENSTOCK_BOOTSTRAP": "127.0.0.1:1"},
            "Kafka at 127.0.0.1:1 cannot be reached within 8 s: .*Connection refused; ",
            "check the address",
        ),
        (
            {"PENSTOCK_BOOTSTRAP": "kafka"},
            "bootstrap server 'kafka' is not host:port",
            "host:port",
        ),
        (
            {"PENSTOCK_KAFKA_SECURITY_PROTOCOL": "SSL"},
            "cannot be reached within 8 s: .*SSL",
            "TLS/SASL settings",
        ),
        (
            {"PENSTOCK_KAFKA_GROUP_ID": "mine"},
            "'group.id' is not allowed",
            "allowed are",
        ),
    ],
    ids=["unreachable", "address", "plaintext", "setting"],
)
def test_kafka_that_cannot_be_used(
    env: dict[str, str], expected: str, remedy: str, stack: Stack, app_id: str, tmp_path: Path
) -> None:
    """librdkafka repeats itself in its log and its errors; a person reads it once."""
    said = refused(_with_env(stack, app_id, tmp_path, env), CONFIGURATION)
    assert re.search(expected, said)
    assert remedy in said
    assert said.count("refused") <= 1


@pytest.mark.parametrize(
    ("env", "expected", "remedy"),
    [
        (
            {"PENSTOCK_S3_ENDPOINT": "http://127.0.0.1:1"},
            "bucket 'penstock' at http://127.0.0.1:1 cannot be used: no connection",
            "start the server, or correct PENSTOCK_S3_ENDPOINT",
        ),
        (
            {"PENSTOCK_STORE": "s3://no-such-bucket/snapshots"},
            "bucket 'no-such-bucket' at http://.* cannot be used: NoSuchBucket",
            "create bucket 'no-such-bucket'",
        ),
        (
            {"PENSTOCK_S3_SECRET_KEY": "not-the-secret"},
            "bucket 'penstock' at http://.* cannot be used: SignatureDoesNotMatch",
            "check PENSTOCK_S3_ACCESS_KEY and PENSTOCK_S3_SECRET_KEY",
        ),
        (
            {"PENSTOCK_STORE": "/snapshots"},
            "the store's URL does not start with s3:// or file://",
            "use s3://bucket/prefix or file:///absolute/path",
        ),
    ],
    ids=["unreachable", "bucket", "secret", "url"],
)
def test_store_that_cannot_be_used(
    env: dict[str, str], expected: str, remedy: str, stack: Stack, app_id: str, tmp_path: Path
) -> None:
    if not stack.store_env:
        pytest.skip(f"this stack has no store server: snapshots go to {stack.store_url}")
    make_topics(stack, f"{app_id}.numbers", f"{app_id}.sums")
    said = refused(_with_env(stack, app_id, tmp_path, env), CONFIGURATION)
    assert re.search(expected, said)
    assert remedy in said
    assert "not-the-secret" not in said


@pytest.mark.parametrize(
    ("services", "env", "expected", "remedy"),
    [
        (
            ("writer.py", "reader.py"),
            {"TEST_VALUE": "int"},
            "edge 'words': service 'writer' writes values of str, service 'reader' reads int",
            "give from_edge() the type that to_edge() sends",
        ),
        (
            ("writer.py", "reader.py"),
            {"TEST_UID": "known"},
            "the uid 'known' stands for a step of service 'writer' and for one of service 'reader'",
            "give each step of the application its own",
        ),
        (
            ("writer.py", "reader.py"),
            {"TEST_NAME": "writer"},
            "two services are named 'writer'",
            "give each its own name",
        ),
        (
            ("writer.py",),
            {},
            "edge 'words' is written by service 'writer' but read by nobody",
            "add a service with from_edge('words', ...)",
        ),
        (
            ("reader.py",),
            {},
            "edge 'words' is read by service 'reader' but written by nobody",
            "add a service with to_edge('words')",
        ),
    ],
    ids=["types", "uids", "names", "read by nobody", "written by nobody"],
)
def test_graph_that_does_not_fit(
    services: tuple[str, ...],
    env: dict[str, str],
    expected: str,
    remedy: str,
    stack: Stack,
    app_id: str,
    tmp_path: Path,
) -> None:
    application = Application(stack, app_id, tmp_path, services=services, **env)
    said = refused(application, CONFIGURATION)
    assert expected in said
    assert remedy in said


def test_more_subtasks_than_the_edge_has_partitions(
    stack: Stack, app_id: str, tmp_path: Path
) -> None:
    """L20: from 1 to P; a subtask without a channel could never take part in a checkpoint."""
    arguments = ("--parallelism", "reader=5")
    services = ("writer.py", "reader.py")
    application = Application(stack, app_id, tmp_path, *arguments, services=services)
    said = refused(application, CONFIGURATION)
    assert "'reader' is to run as 5 subtasks, but its edge 'words' has 4 partitions" in said


def test_broker_whose_transaction_timeout_is_too_small(
    stack: Stack, app_id: str, tmp_path: Path
) -> None:
    start = start_containers if stack.kind == "containers" else start_stack
    overrides = {"transaction.max.timeout.ms": "30000"}
    with start(kafka_overrides=overrides, with_store=False, progress=print) as small:
        make_topics(small, f"{app_id}.numbers", f"{app_id}.sums")
        said = refused(Application(small, app_id, tmp_path), CONFIGURATION)
        assert f"Kafka at {small.bootstrap} has transaction.max.timeout.ms=30000" in said
    assert "set transaction.max.timeout.ms to at least 60000" in said


# -- what the records and the user's code do


def test_a_record_that_cannot_be_read(stack: Stack, app_id: str, tmp_path: Path) -> None:
    """L12: attempt after attempt fails and names the record; mended code goes on from there."""
    make_topics(stack, f"{app_id}.numbers", f"{app_id}.sums")
    feed(stack, f"{app_id}.numbers", KEYS, 1, 10)
    reader = Reader(stack, f"{app_id}.sums")
    application = Application(stack, app_id, tmp_path, *FAST, services=("fragile.py",))
    with running(application):
        reader.until(KEYS * 10, 60, application)
        offset = _produce(stack, f"{app_id}.numbers", 1, b'{"key": "k1", "n": "one"}')
        feed(stack, f"{app_id}.numbers", KEYS, 11, 20)
        where = f"record: topic '{app_id}.numbers', partition 1, offset {offset}"
        application.until(lambda: application.log().count(where) >= 2, what="two failed attempts")
        assert application.stop() == 0, application.log()
    said = application.log_path.read_text()
    (line, *_) = [line for line in said.splitlines() if where in line]
    assert "operator 'numbers': " in line
    assert "Expected `int`, got `str`" in line
    assert "Traceback" not in said, "what is wrong is in the record, not in any code"
    _mended_goes_on(stack, app_id, tmp_path, reader, 20)


def test_an_exception_of_the_user(stack: Stack, app_id: str, tmp_path: Path) -> None:
    """L12: behind an edge, with the line of the user's code, and no frame of ours around it."""
    make_topics(stack, f"{app_id}.numbers", f"{app_id}.sums")
    feed(stack, f"{app_id}.numbers", KEYS, 1, 10)
    reader = Reader(stack, f"{app_id}.sums")
    application = Application(
        stack, app_id, tmp_path, *FAST, "--parallelism", "2", services=("fragile.py",)
    )
    with running(application):
        reader.until(KEYS * 10, 60, application)
        _produce(stack, f"{app_id}.numbers", 0, json.dumps({"key": "k0", "n": -1}).encode())
        feed(stack, f"{app_id}.numbers", KEYS, 11, 20)
        failed = "operator 'summing': ValueError: a negative number"
        application.until(lambda: application.log().count(failed) >= 2, what="two failed attempts")
        assert application.stop() == 0, application.log()
    said = application.log_path.read_text()
    pattern = (
        rf"record: topic '{app_id}\.edge\.sums\.by-key', partition \d+, offset \d+, record \d+"
    )
    assert re.search(pattern, said)
    assert "fragile.py" in said
    assert 'raise ValueError("a negative number")' in said
    assert "penstock/operator" not in said
    _mended_goes_on(stack, app_id, tmp_path, reader, 20)


# -- what is found when state is restored


@pytest.fixture
def stopped(stack: Stack, app_id: str, tmp_path: Path) -> Iterator["Stopped"]:
    """An application that ran, has snapshot objects of its own, and was stopped."""
    make_topics(stack, f"{app_id}.numbers", f"{app_id}.sums")
    result = Stopped(stack, app_id, tmp_path)
    feed(stack, f"{app_id}.numbers", KEYS, 1, 10)
    application = result.application()
    with running(application):
        result.reader.until(KEYS * 10, 60, application)
        assert application.stop() == 0, application.log()
    yield result
    result.reader.close()


class Stopped:
    """What a test needs to spoil something and to see that nothing was lost."""

    def __init__(self, stack: Stack, app_id: str, folder: Path) -> None:
        self.stack = stack
        self.app_id = app_id
        self.folder = folder
        self.reader = Reader(stack, f"{app_id}.sums")
        self.store: SnapshotStore = open_store(stack.store_url, stack.store_env)

    def application(self) -> Application:
        # Large enough a state that its chunks are objects and do not stand in the manifest.
        return Application(self.stack, self.app_id, self.folder, *FAST, TEST_PADDING="5000")

    def manifest(self) -> tuple[str, manifests.Manifest]:
        """Key and content of the newest complete checkpoint's manifest."""
        cluster = KafkaCluster.from_env(environment(self.stack, self.app_id))
        end = cluster.end_positions(f"{self.app_id}.decisions")[0]
        reader = cluster.log_reader(f"{self.app_id}.decisions", "earliest")
        history, read = hist.History(), 0
        while read < end:
            for record in reader.poll(0.5):
                decision = decode_decision(record.data)
                history, _ = hist.applied(history, record.offset, decision)
                read = record.offset + 1
        reader.close()
        key = history.completed[-1][1]
        return key, manifests.load(self.store.get(key), key)

    def replaced(self, key: str, data: bytes | None) -> bytes:
        """Put ``data`` (None: nothing) in the place of an object; what was there."""
        before = self.store.get(key)
        self.store.delete([key])
        if data is not None:
            self.store.put(key, data)
        return before

    def goes_on(self) -> None:
        """Records that came since are processed, and none of it all is lost or doubled."""
        feed(self.stack, f"{self.app_id}.numbers", KEYS, 11, 15)
        application = self.application()
        with running(application):
            self.reader.until(KEYS * 15, 60, application)
            assert application.stop() == 0, application.log()
        self.reader.settle()
        check_sums(self.reader.values, KEYS, 15)
        assert application.open_transactions() == {}


def _flipped(data: bytes) -> bytes:
    """One bit changed in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("spoilt", ["corrupted", "missing"])
def test_snapshot_object(spoilt: str, stopped: Stopped) -> None:
    """L19: its size and sum are verified on read; the error names it, and nothing is changed."""
    _, manifest = stopped.manifest()
    key = next(ref.key for part in manifest.subtasks for ref in part.chain if ref.entry is None)
    good = stopped.store.get(key)
    stopped.replaced(key, _flipped(good) if spoilt == "corrupted" else None)
    said = refused(stopped.application(), FATAL)
    assert f"object {key!r} in {stopped.stack.store_url}" in said
    assert f"is {spoilt}" in said
    assert "Put the object back from a copy of the store, or start from an older checkpoint" in said
    assert f"penstock savepoint convert {stopped.app_id} --checkpoint N" in said
    if spoilt == "corrupted":
        stopped.replaced(key, good)
    else:
        stopped.store.put(key, good)
    stopped.goes_on()


@pytest.mark.parametrize("spoilt", ["corrupted", "missing", "empty"])
def test_manifest(spoilt: str, stopped: Stopped) -> None:
    """L19, L2: the manifest carries its own sum; nothing is restored from one that is damaged."""
    key, _ = stopped.manifest()
    good = stopped.store.get(key)
    spoilt_data = {"corrupted": _flipped(good), "missing": None, "empty": b""}[spoilt]
    stopped.replaced(key, spoilt_data)
    said = refused(stopped.application(), FATAL)
    assert f"{key!r}" in said
    assert ("is missing" if spoilt == "missing" else "is damaged") in said
    remedy = f"penstock savepoint convert {stopped.app_id} --checkpoint N, then penstock run"
    assert f"start from an older checkpoint: {remedy} --from-savepoint" in said
    if spoilt_data is not None:
        stopped.replaced(key, good)
    else:
        stopped.store.put(key, good)
    stopped.goes_on()


def test_edge_topic_with_more_partitions(stopped: Stopped) -> None:
    """L20: keys would move. The remedy works: a complete checkpoint needs no old frame."""
    topic = f"{stopped.app_id}.edge.sums.by-key"
    admin = AdminClient({"bootstrap.servers": stopped.stack.bootstrap})
    admin.create_partitions([NewPartitions(topic, 20)])[topic].result()
    said = refused(stopped.application(), FATAL)
    assert f"topic {topic!r} has 20 partitions, but was built for 16" in said
    assert "stop the application and delete this topic" in said
    admin.delete_topics([topic])[topic].result()
    stopped.goes_on()


def test_stored_offset_that_is_gone(stopped: Stopped) -> None:
    """L5: never skipped in silence: the application stops, and says which records are missing."""
    topic = f"{stopped.app_id}.numbers"
    feed(stopped.stack, topic, KEYS, 11, 20)
    admin = AdminClient({"bootstrap.servers": stopped.stack.bootstrap})
    per_key = KEYS // PARTITIONS
    targets = [TopicPartition(topic, p, 15 * per_key) for p in range(PARTITIONS)]
    for future in admin.delete_records(targets).values():
        future.result()
    said = refused(stopped.application(), FATAL)
    assert re.search(rf"position {10 * per_key} of {re.escape(topic)}\[\d\] is gone", said)
    assert f"holds offsets {15 * per_key} to {20 * per_key}" in said
    assert "give the topic a longer retention" in said
    stopped.reader.settle()
    check_sums(stopped.reader.values, KEYS, 10)


def test_a_state_that_changed_its_type(stack: Stack, app_id: str, tmp_path: Path) -> None:
    """L21: bytes of one type are not read as another; with the old type it goes on."""
    read = _counted(stack, app_id, tmp_path)
    said = refused(_changing(stack, app_id, tmp_path, "float"), FATAL)
    assert "state 'counts' of operator 'counting' in stage 'changing.by-line'" in said
    assert "it was int, is float; keep the type, or give the state a new name" in said
    assert read(_changing(stack, app_id, tmp_path, "int"), 4) == ["a 1", "a 2", "a 3", "a 4"]


def test_a_state_that_no_operator_takes(stack: Stack, app_id: str, tmp_path: Path) -> None:
    """State is dropped only when a person says so."""
    read = _counted(stack, app_id, tmp_path)
    said = refused(_changing(stack, app_id, tmp_path, "none"), FATAL)
    assert "holds state that nobody takes: changing.by-line: counting.counts;" in said
    assert "or drop the state with --allow-non-restored-state" in said
    dropping = _changing(stack, app_id, tmp_path, "none", "--allow-non-restored-state")
    assert read(dropping, 4) == ["a 1", "a 2", "a passed", "a passed"]


# -- parts


def _with_env(stack: Stack, app_id: str, folder: Path, env: dict[str, str]) -> Application:
    """An application with other settings than the stack's."""
    application = Application(stack, app_id, folder)
    application._env.update(env)
    return application


def _produce(stack: Stack, topic: str, partition: int, value: bytes) -> int:
    """Write one record; its offset."""
    offsets: list[int] = []
    producer = Producer({"bootstrap.servers": stack.bootstrap, "enable.idempotence": True})
    producer.produce(
        topic, value, None, partition, lambda _, message: offsets.append(message.offset())
    )
    assert producer.flush(30) == 0
    return offsets[0]


def _mended_goes_on(stack: Stack, app_id: str, folder: Path, reader: Reader, last: int) -> None:
    mended = Application(stack, app_id, folder, *FAST, services=("fragile.py",), TEST_MENDED="1")
    with running(mended):
        reader.until(KEYS * last, 60, mended)
        assert mended.stop() == 0, mended.log()
    reader.settle()
    reader.close()
    check_sums(reader.values, KEYS, last)
    assert mended.open_transactions() == {}


def _changing(stack: Stack, app_id: str, folder: Path, state: str, *more: str) -> Application:
    arguments = (*FAST, *more)
    return Application(
        stack, app_id, folder, *arguments, services=("changing.py",), TEST_STATE=state
    )


def _counted(stack: Stack, app_id: str, folder: Path) -> Callable[[Application, int], list[str]]:
    """Run `changing.py` once over two records; how to run it over two more and read all."""
    make_topics(stack, f"{app_id}.lines", f"{app_id}.counts")

    def read(application: Application, count: int) -> list[str]:
        for _ in range(2):
            _produce(stack, f"{app_id}.lines", 0, b"a")
        reader = Reader(stack, f"{app_id}.counts")
        with running(application):
            reader.until(count, 60, application)
            assert application.stop() == 0, application.log()
        reader.settle()
        reader.close()
        return sorted(value.decode() for value in reader.values)

    assert read(_changing(stack, app_id, folder, "int"), 2) == ["a 1", "a 2"]
    return read
