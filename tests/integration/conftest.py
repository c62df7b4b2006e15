"""The real servers of the integration tests: on containers where they can be had, else processes.

PENSTOCK_TEST_STACK=containers|processes decides it instead; with PENSTOCK_REQUIRE_CONTAINERS=1 the
run fails when no test marked ``containers`` ran.
"""

import os
import re
import secrets
import sys
from collections.abc import Iterator

import pytest
from penstock_stack import Stack, start_stack
from penstock_stack.containers import start_containers, why_no_containers

from tests.integration.spark_session import s3a_jars, spark  # noqa: F401  # fixtures

STACK_KINDS = ("containers", "processes")
REQUIRED = os.environ.get("PENSTOCK_REQUIRE_CONTAINERS") == "1"


def _asked_kind() -> str | None:
    asked = os.environ.get("PENSTOCK_TEST_STACK") or ("containers" if REQUIRED else None)
    if asked is not None and asked not in STACK_KINDS:
        raise pytest.UsageError(
            f"PENSTOCK_TEST_STACK is {asked!r}; expected one of {', '.join(STACK_KINDS)}"
        )
    return asked


def _say(line: str) -> None:
    # Straight to the terminal: pytest would keep it until something fails.
    print(line, file=sys.__stderr__, flush=True)


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    """A running Kafka and store for the whole session; a test that stops one starts it again."""
    kind = _asked_kind() or ("processes" if why_no_containers() else "containers")
    _say(f"integration tests run on {kind}")
    start = start_containers if kind == "containers" else start_stack
    with start(progress=_say) as running:
        yield running


@pytest.fixture
def app_id(request: pytest.FixtureRequest) -> str:
    """An application id that no other test uses: topics, groups and transactions are apart."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    return f"{name[:24].strip('-')}-{secrets.token_hex(3)}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that need containers where there are none, and say why."""
    reason = why_no_containers()
    if _asked_kind() == "processes":
        reason = "PENSTOCK_TEST_STACK=processes asks for plain processes"
    if reason is None or REQUIRED:
        return
    for item in items:
        if item.get_closest_marker("containers"):
            item.add_marker(pytest.mark.skip(reason=f"needs containers: {reason}"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count the container tests that ran to their end."""
    if report.when == "call" and "containers" in report.keywords and report.outcome == "passed":
        _RAN.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a run that had to use containers and did not."""
    if REQUIRED and not _RAN and exitstatus == pytest.ExitCode.OK:
        _say(
            "PENSTOCK_REQUIRE_CONTAINERS=1 and no test marked `containers` ran: "
            f"{why_no_containers() or 'none was selected'}"
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


_RAN: list[str] = []
