"""The local stack itself: what it promises to the demo, the benchmark and every other test."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from minio import Minio
from penstock_stack import Stack, StackError, start_stack
from penstock_stack.port import answers

pytestmark = pytest.mark.integration


def make_topic(stack: Stack, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": stack.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)


def commit(stack: Stack, app_id: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": stack.bootstrap, "transactional.id": app_id})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(app_id, value)
    producer.commit_transaction(30)


def committed(stack: Stack, app_id: str, count: int) -> list[str]:
    """The first ``count`` committed values of the topic ``app_id``."""
    settings = {"bootstrap.servers": stack.bootstrap, "group.id": app_id}
    consumer = Consumer({**settings, "isolation.level": "read_committed"})
    consumer.assign([TopicPartition(app_id, 0, 0)])
    values: list[str] = []
    give_up = time.monotonic() + 30
    while len(values) < count and time.monotonic() < give_up:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            values.append(message.value().decode())
    consumer.close()
    return values


def store_client(stack: Stack) -> Minio:
    if not stack.store_env:
        pytest.skip(f"no MinIO in this stack, snapshots are in {stack.store_url}: Go is missing")
    return Minio(
        stack.store_env["PENSTOCK_S3_ENDPOINT"].removeprefix("http://"),
        stack.store_env["PENSTOCK_S3_ACCESS_KEY"],
        stack.store_env["PENSTOCK_S3_SECRET_KEY"],
        secure=False,
    )


def bucket_of(stack: Stack) -> str:
    return stack.store_url.removeprefix("s3://")


WAITING_PROGRAM = """
import signal
from penstock_stack import start_stack
stack = start_stack(with_store=False, progress=lambda line: None)
print(stack.bootstrap, stack.folder, flush=True)
signal.pause()
"""


class TestKafka:
    def test_a_killed_broker_keeps_what_was_committed(self, stack: Stack, app_id: str) -> None:
        make_topic(stack, app_id)
        commit(stack, app_id, "before")
        stack.kafka_kill()
        stack.kafka_start()
        commit(stack, app_id, "after")
        assert committed(stack, app_id, 2) == ["before", "after"]

    def test_a_stopped_broker_comes_back_on_its_port(self, stack: Stack, app_id: str) -> None:
        make_topic(stack, app_id)
        commit(stack, app_id, "before")
        stack.kafka_stop()
        with pytest.raises(KafkaException):
            AdminClient({"bootstrap.servers": stack.bootstrap, "log_level": 0}).list_topics(
                timeout=0.5
            )
        stack.kafka_start()
        assert committed(stack, app_id, 1) == ["before"]

    def test_a_server_started_by_a_short_thread_outlives_the_thread(
        self, stack: Stack, app_id: str
    ) -> None:
        stack.kafka_kill()
        helper = threading.Thread(target=stack.kafka_start)
        helper.start()
        helper.join()
        time.sleep(0.2)
        make_topic(stack, app_id)

    def test_a_paused_broker_is_silent_and_then_goes_on(self, stack: Stack, app_id: str) -> None:
        make_topic(stack, app_id)
        stack.kafka_pause()
        with pytest.raises(KafkaException):
            AdminClient({"bootstrap.servers": stack.bootstrap, "log_level": 0}).list_topics(
                timeout=0.5
            )
        stack.kafka_resume()
        commit(stack, app_id, "value")
        assert committed(stack, app_id, 1) == ["value"]

    def test_a_misspelt_topic_is_not_created(self, stack: Stack, app_id: str) -> None:
        consumer = Consumer({"bootstrap.servers": stack.bootstrap, "group.id": app_id})
        with pytest.raises(KafkaException) as failure:
            consumer.get_watermark_offsets(TopicPartition(app_id, 0), timeout=10)
        assert failure.value.args[0].code() in {
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION,
        }
        consumer.close()


class TestStore:
    def test_the_bucket_is_there(self, stack: Stack) -> None:
        assert store_client(stack).bucket_exists(bucket_name=bucket_of(stack))

    def test_a_stopped_store_keeps_its_objects(
        self, stack: Stack, app_id: str, tmp_path: Path
    ) -> None:
        client = store_client(stack)
        (tmp_path / "object").write_bytes(b"snapshot")
        client.fput_object(
            bucket_name=bucket_of(stack), object_name=app_id, file_path=str(tmp_path / "object")
        )
        stack.store_stop()
        stack.store_start()
        client.fget_object(
            bucket_name=bucket_of(stack), object_name=app_id, file_path=str(tmp_path / "copy")
        )
        assert (tmp_path / "copy").read_bytes() == b"snapshot"


@pytest.mark.containers
def test_the_stack_runs_on_containers(stack: Stack, app_id: str) -> None:
    assert stack.kind == "containers"
    make_topic(stack, app_id)
    commit(stack, app_id, "value")
    assert committed(stack, app_id, 1) == ["value"]


class TestProcesses:
    """The plain processes, whatever the session's stack runs on."""

    def test_nothing_outlives_a_program_that_was_killed(self) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", WAITING_PROGRAM], stdout=subprocess.PIPE
        ) as parent:
            assert parent.stdout is not None
            bootstrap, folder = parent.stdout.readline().decode().split()
            port = int(bootstrap.rpartition(":")[2])
            assert answers(port)
            os.kill(parent.pid, signal.SIGKILL)
        give_up = time.monotonic() + 10
        while answers(port) and time.monotonic() < give_up:
            time.sleep(0.05)
        assert not answers(port)
        with start_stack(with_store=False):
            assert not Path(folder).exists(), "the next stack sweeps what the killed one left"

    def test_ctrl_c_stops_the_command_and_its_servers(self) -> None:
        command = [sys.executable, "-m", "penstock_stack", "up"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as up:
            assert up.stdout is not None
            exported = {}
            for line in up.stdout:
                if line.startswith("# up"):
                    break
                name, _, value = line.removeprefix("export ").strip().partition("=")
                exported[name] = value
            port = int(exported["PENSTOCK_BOOTSTRAP"].rpartition(":")[2])
            assert answers(port)
            up.send_signal(signal.SIGINT)
            assert up.wait(30) == 0
        assert not answers(port)

    def test_broker_settings_can_be_replaced(self) -> None:
        overrides = {"transaction.max.timeout.ms": "5000"}
        with start_stack(kafka_overrides=overrides, with_store=False) as stack:
            producer = Producer(
                {
                    "bootstrap.servers": stack.bootstrap,
                    "transactional.id": "too-long",
                    "transaction.timeout.ms": 6000,
                }
            )
            with pytest.raises(KafkaException) as failure:
                producer.init_transactions(30)
            assert failure.value.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT

    def test_a_stack_without_a_store_server_says_so(self) -> None:
        with start_stack(with_store=False) as stack:
            assert stack.store_url.startswith("file:///")
            with pytest.raises(StackError, match="has no store server"):
                stack.store_stop()

    def test_a_missing_java_is_named_with_its_remedy(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        with pytest.raises(StackError, match=r"needs Java 17 or newer.*apt-get install"):
            start_stack(with_store=False)
