"""Patience with an S3 server: each HTTP request is retried with back-off until its deadline.

What is retried: connections refused, reset or timed out, bodies cut short, and the answers that
say "later" (503 SlowDown, 429, 500, 502, 504 and a few codes). What a person must change (403, a
missing bucket, a certificate that does not verify) is not. A repeated request is the same signed
bytes, so an answer that was lost does no harm: names are never reused (L19).

Sits at the HTTP layer so that everything the client library does goes through it.
"""

import contextlib
import logging
import random
import ssl
import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NewConnectionError,
    ProtocolError,
    SSLError,
)
from urllib3.exceptions import (
    TimeoutError as HTTPTimeout,
)
from urllib3.response import BaseHTTPResponse

log = logging.getLogger("penstock.store")

MAX_CONNECTIONS = 32
_LATER = frozenset({408, 429, 500, 502, 503, 504})
_LATER_CODES = (
    b"<Code>RequestTimeout</Code>",
    b"<Code>OperationAborted</Code>",
    b"<Code>ConditionalRequestConflict</Code>",
    b"<Code>BadDigest</Code>",  # the body was damaged on its way up
    b"<Code>XAmzContentSHA256Mismatch</Code>",
)
_READ_BYTES = 1 << 16


class Patience(NamedTuple):
    """How long one HTTP request may take, retries included; all in seconds."""

    connect_s: float = 3.0
    read_s: float = 10.0
    """Silence of the server after which a try is given up."""
    deadline_s: float = 30.0
    """All tries of one request together, without the time that its bytes need."""
    first_delay_s: float = 0.05
    max_delay_s: float = 2.0
    bytes_per_s: float = 1_000_000.0
    """The slowest transfer that still counts as one."""


ABORT_DEADLINE_S = 5.0
"""Clearing up after a failed upload waits no longer: the server expires parts by itself too."""


class PatientPool(urllib3.PoolManager):
    """A connection pool that keeps connections, retries within a deadline and follows no redirect.

    ``write_once``: objects are created with ``If-None-Match: *``. It costs no request and lets a
    server refuse a reused name; no correctness hangs on it, and a server that does not know it is
    asked without.
    """

    def __init__(self, patience: Patience, ca_file: str, connections: int) -> None:
        super().__init__(maxsize=connections, cert_reqs="CERT_REQUIRED", ca_certs=ca_file)
        self.patience = patience
        self.write_once = True
        self.retries = 0
        """Requests sent again since the start."""
        self._local = threading.local()

    @contextlib.contextmanager
    def within(self, deadline_s: float) -> Iterator[None]:
        """Give this thread's requests less time in all, as a check for a person to wait for."""
        self._local.until = time.monotonic() + deadline_s
        try:
            yield
        finally:
            self._local.until = None

    def urlopen(  # type: ignore[override]  # the base leaves its keywords untyped
        self, method: str, url: str, redirect: bool = True, **kw: Any
    ) -> BaseHTTPResponse:
        """One request, sent until it is answered; the body is read whole.

        Raises urllib3's HTTPError of the last try; one that the deadline cut short says less than
        the answer before it, which is then returned.
        """
        del redirect  # a redirect could lead to another host: refused, the client names it
        body = kw.get("body")
        sent = len(body) if isinstance(body, bytes) else 0
        deadline = self._deadline(method, url, sent)
        kw |= {"retries": False, "preload_content": False}
        conditional = self.write_once and _creates_object(method, url)
        if conditional:
            kw["headers"] = urllib3.HTTPHeaderDict(kw.get("headers") or {})
            kw["headers"]["If-None-Match"] = "*"
        answer: BaseHTTPResponse | None = None
        for tries in count(1):
            is_short = deadline - time.monotonic() < self.patience.read_s
            response: BaseHTTPResponse | None = None
            failure: HTTPError | None = None
            try:
                response = self._exchange(method, url, deadline, sent, kw)
                if conditional and response.status == 501:
                    self.write_once = conditional = False
                    del kw["headers"]["If-None-Match"]
                    continue
                cause = _asks_for_later(response)
                if cause is None:
                    return response
                answer = response
            except HTTPError as exc:
                if not _passes(exc):
                    raise
                failure, cause = exc, type(exc).__name__
            delay = self._delay(tries)
            if time.monotonic() + delay < deadline:
                self.retries += 1
                log.info("store retried: %s after %s, try %d", method, cause, tries)
                time.sleep(delay)
            elif response is not None:
                return response
            elif answer is not None and is_short and _is_silence(failure):
                return answer
            elif failure is not None:
                raise failure
        raise AssertionError("unreachable")

    def _deadline(self, method: str, url: str, sent: int) -> float:
        now = time.monotonic()
        patience = self.patience.deadline_s + sent / self.patience.bytes_per_s
        if method == "DELETE" and "uploadId=" in url:
            patience = min(patience, ABORT_DEADLINE_S)
        until: float | None = getattr(self._local, "until", None)
        return now + patience if until is None else min(until, now + patience)

    def _delay(self, tries: int) -> float:
        ceiling = min(self.patience.max_delay_s, self.patience.first_delay_s * 2 ** min(tries, 16))
        return random.uniform(ceiling / 2, ceiling)

    def _exchange(
        self, method: str, url: str, deadline: float, sent: int, kw: dict[str, Any]
    ) -> BaseHTTPResponse:
        """One try, with timeouts that end before the deadline."""
        left = max(deadline - time.monotonic(), 0.05)
        # urllib3 sends the body under the connect timeout: a big one needs more time.
        sending = self.patience.connect_s + sent / self.patience.bytes_per_s
        timeout = urllib3.Timeout(
            connect=min(sending, left),
            read=min(self.patience.read_s, left),
        )
        response = super().urlopen(method, url, redirect=False, timeout=timeout, **kw)
        data = _read(response, deadline, self.patience.bytes_per_s)
        status = response.status
        if status == 200 and method == "POST" and "uploadId=" in url and b"<Error" in data[:500]:
            status = (
                500  # S3 may answer a completed upload with 200 and then fail (its API says so)
            )
        return urllib3.HTTPResponse(
            body=data,
            headers=response.headers,
            status=status,
            version=response.version,
            reason=response.reason,
            request_method=method,
            request_url=url,
        )


def _read(response: BaseHTTPResponse, deadline: float, bytes_per_s: float) -> bytes:
    """The whole body; a server that only trickles is given up at the deadline."""
    length = response.headers.get("content-length", "")
    deadline += (int(length) if length.isdecimal() else 0) / bytes_per_s
    chunks = []
    done = False
    try:
        while chunk := response.read1(_READ_BYTES):
            chunks.append(chunk)
            if time.monotonic() > deadline:
                raise HTTPTimeout("the answer came too slowly")
        done = True
    finally:
        if done:
            response.release_conn()
        else:
            response.close()
    return b"".join(chunks)


def _creates_object(method: str, url: str) -> bool:
    """A PUT of a whole object, or the completion of an upload; a part is not an object."""
    return (method == "PUT" and "?" not in url) or (method == "POST" and "?uploadId=" in url)


def _asks_for_later(response: BaseHTTPResponse) -> str | None:
    if response.status in _LATER:
        return f"HTTP {response.status}"
    if response.status in {400, 409}:
        for code in _LATER_CODES:
            if code in (response.data or b""):
                return code.decode()
    return None


def _is_silence(exc: HTTPError | None) -> bool:
    """The server took the connection and said nothing; one that refuses it is a timeout, too."""
    return isinstance(exc, HTTPTimeout) and not isinstance(exc, ConnectTimeoutError)


def _passes(exc: HTTPError) -> bool:
    """Whether the same request may succeed a moment later."""
    if isinstance(exc, SSLError):
        return not isinstance(exc.args[0] if exc.args else None, ssl.SSLCertVerificationError)
    return isinstance(exc, NewConnectionError | ProtocolError | HTTPTimeout)
