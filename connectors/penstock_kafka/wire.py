"""Requests that confluent-kafka has no call for, sent with kafka-python's protocol classes.

confluent-kafka has no EndTxn, DescribeTransactions, ListTransactions and bare InitProducerId.
Request versions are pinned: an answer means what docs/concepts/sinks.md says only in its version.
"""

import socket
import warnings
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Final, Self, TypeVar, cast

from penstock.failure import ConfigurationError, TransportFailed

from penstock_kafka.client import WATCHDOG
from penstock_kafka.settings import kafka_python, quiet_kafka_python

with warnings.catch_warnings():
    # kafka-python reads its schemas by importlib.resources.read_text, deprecated up to Python 3.12.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.errors as kafka_errors
    from kafka.net.inet import KafkaNetSocket
    from kafka.net.manager import KafkaConnectionManager
    from kafka.net.selector import NetworkSelector
    from kafka.protocol.admin.transactions import (
        DescribeTransactionsRequest,
        ListTransactionsRequest,
    )
    from kafka.protocol.metadata import FindCoordinatorRequest
    from kafka.protocol.producer.transaction import EndTxnRequest, InitProducerIdRequest

END_TXN_VERSION: Final = 3
"""L17: one version in all retries; 5 would bump the epoch and answer otherwise."""

NONE: Final = 0
NOT_COORDINATOR: Final = frozenset({15, 16})
"""COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: ask again who it is."""
PASSING: Final = NOT_COORDINATOR | {7, 13, 14, 51}
"""Also REQUEST_TIMED_OUT, NETWORK_EXCEPTION, COORDINATOR_LOAD_IN_PROGRESS and
CONCURRENT_TRANSACTIONS."""
REQUEST_S: Final = 20
"""Longer than kafka-python's own request timeout, which normally speaks first."""
UNANSWERED: Final = -1000
"""No answer: connection lost or timed out. Not a code of Kafka's."""

_REFUSED: Final = {
    53: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED: give this principal WRITE and DESCRIBE on the "
    "application's transactional ids",
    31: "CLUSTER_AUTHORIZATION_FAILED: give this principal the right on the cluster",
    58: "SASL_AUTHENTICATION_FAILED: check user, password and mechanism",
    50: "INVALID_TRANSACTION_TIMEOUT: raise transaction.max.timeout.ms of the brokers",
    35: "UNSUPPORTED_VERSION: the brokers must be Kafka 3.0 or newer",
}

_selector: Any = NetworkSelector
_manager: Any = KafkaConnectionManager
_error_of: Any = kafka_errors.for_code  # kafka-python has no annotations here

T = TypeVar("T")


def code_name(code: int) -> str:
    """Kafka's name of an error code."""
    if code == UNANSWERED:
        return "no answer (connection lost or timed out)"
    return str(getattr(_error_of(code), "message", code))


def refuse(what: str, code: int) -> None:
    """Raise ConfigurationError when ``code`` is for a person to mend."""
    if code in _REFUSED:
        raise ConfigurationError(f"{what}: {_REFUSED[code]}")


class _Direct(KafkaNetSocket):  # type: ignore[no-untyped-call]  # kafka-python has no annotations
    """A plain connection, registered by its scheme, that closes its socket when it fails.

    kafka-python's own leaves that to the garbage collector.
    """

    SCHEMES = ("direct",)

    async def sock_connect(
        self, net: Any, sock: socket.socket, sockaddr: Any, timeout_at: float | None = None
    ) -> socket.socket:
        """Connect ``sock``, or close it and raise."""
        try:
            connect: Any = super().sock_connect
            connected: socket.socket = await connect(net, sock, sockaddr, timeout_at)
        except BaseException:
            sock.close()
            raise
        return connected


class Wire:
    """Connections of kafka-python, driven by whoever calls; of one thread at a time.

    kafka-python can drive them by a thread of its own, but a request was seen to wait there for
    ever beside a busy loop; without that thread a connection is also made a third faster.
    """

    def __init__(self, bootstrap: str, settings: dict[str, Any], connect_timeout_s: float) -> None:
        quiet_kafka_python()
        config = kafka_python(bootstrap, settings) | {
            "request_timeout_ms": 15_000,
            "proxy_url": "direct://",
        }
        self._coordinators: dict[str, int] = {}
        self._net: Any = _selector(**config)
        self._manager: Any = _manager(self._net, **config)
        try:
            self._run(lambda: self._manager.bootstrap_async(connect_timeout_s * 1000))
        except kafka_errors.KafkaError as error:
            self.close()
            raise _unreachable(bootstrap, error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def end(self, transactional_id: str, producer_id: int, epoch: int, commit: bool) -> int:
        """EndTxn, once; the error code."""
        request = EndTxnRequest[END_TXN_VERSION](
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=commit,
        )
        return self._codes({transactional_id: request})[transactional_id]

    def initialise(self, transactional_ids: Iterable[str], timeout_ms: int) -> dict[str, int]:
        """InitProducerId for each, pipelined, once; id -> error code."""
        return self._codes(
            {
                name: InitProducerIdRequest[3](
                    transactional_id=name,
                    transaction_timeout_ms=timeout_ms,
                    producer_id=-1,
                    producer_epoch=-1,
                )
                for name in transactional_ids
            }
        )

    def describe(self, transactional_id: str) -> tuple[int, Any]:
        """DescribeTransactions of one id, once: (error code, its state as the broker has it)."""
        request = DescribeTransactionsRequest[0](transactional_ids=[transactional_id])
        answer = self._answers({transactional_id: request})[transactional_id]
        if isinstance(answer, int):
            return answer, None
        state = answer.transaction_states[0]
        self._forget(transactional_id, state.error_code)
        return state.error_code, state

    def transactions(self) -> tuple[int, list[Any]]:
        """ListTransactions at every broker, once: (first error code, all listings)."""

        async def ask() -> tuple[int, list[Any]]:
            await self._manager.cluster.refresh_metadata()
            sent = [
                self._manager.send(ListTransactionsRequest[0](), node_id=broker.node_id)
                for broker in self._manager.cluster.brokers()
            ]
            found: list[Any] = []
            for future in sent:
                answer = await future
                if answer.error_code != NONE:
                    return answer.error_code, []
                found.extend(answer.transaction_states)
            return NONE, found

        try:
            return self._run(ask)
        except kafka_errors.KafkaError as error:
            return _code_of(error), []

    def _codes(self, requests: dict[str, Any]) -> dict[str, int]:
        codes = {}
        for name, answer in self._answers(requests).items():
            codes[name] = answer if isinstance(answer, int) else int(answer.error_code)
            self._forget(name, codes[name])
        return codes

    def _forget(self, transactional_id: str, code: int) -> None:
        if code in NOT_COORDINATOR or code == UNANSWERED:
            self._coordinators.pop(transactional_id, None)

    def _answers(self, requests: dict[str, Any]) -> dict[str, Any]:
        """Each request at the coordinator of its id: the answer, or an error code."""

        async def ask() -> dict[str, Any]:
            answers = await self._find_coordinators(requests.keys() - self._coordinators.keys())
            sent = {
                name: self._manager.send(request, node_id=self._coordinators[name])
                for name, request in requests.items()
                if name not in answers
            }
            for name, future in sent.items():
                try:
                    answers[name] = await future
                except kafka_errors.KafkaError as error:
                    answers[name] = _code_of(error)
            return answers

        try:
            return self._run(ask)
        except kafka_errors.KafkaError as error:
            return dict.fromkeys(requests, _code_of(error))

    async def _find_coordinators(self, names: set[str]) -> dict[str, Any]:
        """Learn the coordinators of ``names``; name -> error code of those that have none now."""
        failed: dict[str, Any] = {}
        if not names:
            return failed
        request = FindCoordinatorRequest[4](key_type=1, coordinator_keys=sorted(names))
        answer = await self._manager.send(request)
        for found in answer.coordinators:
            if found.error_code != NONE:
                failed[found.key] = found.error_code
            elif self._manager.cluster.broker_metadata(found.node_id) is None:
                await self._manager.cluster.refresh_metadata()
                failed[found.key] = 15
            else:
                self._coordinators[found.key] = found.node_id
        return failed

    def _run(self, ask: Callable[[], Awaitable[T]]) -> T:
        with WATCHDOG.over("a request to Kafka", 60.0):
            future = self._net.call_soon_with_future(ask)
            self._net.poll(timeout_ms=REQUEST_S * 1000, future=future)
        if not future.is_done:
            raise kafka_errors.KafkaTimeoutError(f"no answer within {REQUEST_S} s")
        if future.exception is not None:
            raise future.exception
        result: T = future.value
        return result

    def close(self) -> None:
        """Close the connections and end their thread."""
        self._manager.close()
        self._net.close()


def _code_of(error: Any) -> int:
    if isinstance(error, kafka_errors.BrokerResponseError):
        return int(cast("Any", error).errno)
    if isinstance(error, kafka_errors.IncompatibleBrokerVersion):
        return 35
    return UNANSWERED


def _unreachable(bootstrap: str, error: Exception) -> Exception:
    if isinstance(error, kafka_errors.SaslAuthenticationFailedError):
        return ConfigurationError(
            f"Kafka at {bootstrap} refused the credentials: check sasl.username and sasl.password"
        )
    return TransportFailed(f"Kafka at {bootstrap} cannot be reached: {type(error).__name__}")
