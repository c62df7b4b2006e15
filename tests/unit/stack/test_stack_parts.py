"""What the stack decides without a server: ports, Java, settings, what goes into an image."""

import re
import socket
import stat
from pathlib import Path

import pytest
from penstock_stack import StackError
from penstock_stack.images import PROJECT, runtime_requirements
from penstock_stack.jars import KAFKA, S3A, JarSet, _ivy_command, _maven_command
from penstock_stack.java import find_java
from penstock_stack.port import HOST, RANGE_FILE, answers, free_ports, is_free
from penstock_stack.settings import image_properties, properties
from penstock_stack.store import Credentials, NoGo, minio_binary


def test_a_port_that_is_taken_is_not_offered() -> None:
    with socket.socket() as server:
        server.bind((HOST, 0))
        server.listen()
        port = server.getsockname()[1]
        assert not is_free(port)
        assert answers(port)


def test_ports_lie_below_those_of_outgoing_connections() -> None:
    first_outgoing = int(RANGE_FILE.read_text().split()[0])
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert all(port < first_outgoing for port in ports)


def fake_java(folder: Path, version: str) -> None:
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize("version", ["17.0.1", "21", "25-ea"])
def test_a_new_java_is_taken(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    fake_java(tmp_path, version)
    assert find_java() == str(tmp_path / "java")


@pytest.mark.parametrize("version", ["1.8.0_372", "11.0.2"])
def test_an_old_java_is_named_with_its_version_and_the_remedy(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    fake_java(tmp_path, version)
    found = re.escape(f"found: {tmp_path}/java (version {version.split('.', maxsplit=1)[0]})")
    with pytest.raises(StackError, match=f"Java 17 or newer.*{found}.*apt-get install"):
        find_java()


def test_a_missing_go_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(NoGo, match=r"no `go` on PATH.*apt-get install golang"):
        minio_binary(print)


def test_an_override_wins_over_the_stack_s_own_setting(tmp_path: Path) -> None:
    name = "transaction.state.log.num.partitions"
    assert properties(1, 2, tmp_path)[name] == "4"
    assert properties(1, 2, tmp_path, {name: "9"})[name] == "9"


def test_processes_and_images_differ_only_in_where_they_listen(tmp_path: Path) -> None:
    process, image = properties(1, 2, tmp_path), image_properties()
    differ = {name for name in process if process[name] != image.get(name)}
    assert differ == {
        "advertised.listeners",  # its start script adds it
        "controller.quorum.voters",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "listeners",
        "log.dirs",
    }


def test_the_secret_of_a_store_is_not_in_its_repr() -> None:
    credentials = Credentials()
    assert credentials.secret_key not in repr(credentials)
    assert Credentials().secret_key != credentials.secret_key


def test_an_image_takes_the_runtime_part_of_the_lock_with_its_hashes() -> None:
    entries = {entry.split("==")[0]: entry for entry in runtime_requirements()}
    assert {"confluent-kafka", "kafka-python", "minio", "msgspec", "xxhash"} <= set(entries)
    assert {"urllib3", "certifi"} <= set(entries), "what minio needs comes too"
    assert not {"pyspark", "pytest", "ruff", "mypy"} & set(entries)
    assert all("--hash=sha256:" in entry for entry in entries.values())


def test_the_lock_names_no_index_and_no_local_path() -> None:
    lock = (PROJECT / "requirements.lock").read_text()
    assert "://" not in lock
    assert not re.search(r"^\s*-", lock.replace("    --hash", ""), re.MULTILINE)


@pytest.mark.parametrize("jars", [KAFKA, S3A], ids=lambda jars: jars.name)
def test_both_fetchers_are_told_what_to_leave_out(jars: JarSet, tmp_path: Path) -> None:
    command = _ivy_command(jars, tmp_path, tmp_path)
    ivy = (tmp_path / "ivy.xml").read_text()
    assert f"{tmp_path}/*" in command
    _maven_command(jars, "mvn", tmp_path)
    pom = (tmp_path / "pom.xml").read_text()
    for group, artifact, version in jars.artifacts:
        assert f'org="{group}" name="{artifact}" rev="{version}"' in ivy
        assert f"<artifactId>{artifact}</artifactId><version>{version}</version>" in pom
    for group, artifact in jars.excluded:
        assert f'<exclude org="{group}" module="{artifact}"/>' in ivy
        assert pom.count(f"<groupId>{group}</groupId><artifactId>{artifact}<") >= len(
            jars.artifacts
        )
