"""What is retried, for how long, and what comes out in the end, with a server that says as told."""

import logging
import threading
import time
from collections.abc import Iterator

import pytest
from contract.proxy import SAYS_503, Fault, Proxy, http
from penstock.failure import ConfigurationError, CorruptedObject, ProtocolViolation, StoreFailed
from penstock_minio import MinioStore, Patience
from penstock_minio.settings import read_settings

CANARY = "canary-7f3a-secret"
QUICK = Patience(connect_s=0.5, read_s=0.5, deadline_s=2.0, first_delay_s=0.01, max_delay_s=0.05)
OK = http("200 OK", b"")


def error(status: str, code: str, message: str = "told so") -> Fault:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Fault(answer=http(status, body.encode()))


@pytest.fixture
def server() -> Iterator[Proxy]:
    with Proxy(1) as running:  # port 1: nothing is there, every answer is ordered
        running.always = Fault(answer=OK)
        yield running


@pytest.fixture
def store(server: Proxy) -> Iterator[MinioStore]:
    env = {
        "PENSTOCK_S3_ENDPOINT": server.endpoint,
        "PENSTOCK_S3_ACCESS_KEY": "canary-user",
        "PENSTOCK_S3_SECRET_KEY": CANARY,
    }
    made = MinioStore(read_settings("s3://bucket/x", env), QUICK)
    yield made
    made.close()


@pytest.mark.parametrize(
    "fault",
    [
        SAYS_503,
        error("429 Too Many Requests", "TooManyRequests"),
        error("500 Internal Server Error", "InternalError"),
        error("400 Bad Request", "RequestTimeout"),
        error("400 Bad Request", "BadDigest"),
        error("400 Bad Request", "XAmzContentSHA256Mismatch"),
        error("409 Conflict", "ConditionalRequestConflict"),
        Fault(answer=http("502 Bad Gateway", b"<html>proxy</html>", "text/html")),
        Fault(answer=b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut"),
        Fault(silent=True),
        Fault(answer=b""),
    ],
)
def test_what_may_pass_is_retried(fault: Fault, store: MinioStore, server: Proxy) -> None:
    server.order(fault)
    store.put("a", b"data")
    assert store.http.retries == 1
    assert server.connections == 2


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (error("403 Forbidden", "AccessDenied"), r"AccessDenied: told so; check PENSTOCK_S3_ACCES"),
        (error("404 Not Found", "NoSuchBucket"), r"NoSuchBucket: told so; create bucket 'bucket'"),
        (
            error("403 Forbidden", "RequestTimeTooSkewed"),
            r"; set this machine's or the server's",
        ),
        (error("507 Insufficient Storage", "XMinioStorageFull"), r"StorageFull: .*; make room"),
        (Fault(answer=http("403 Forbidden", b"<html>", "text/html")), r"the answer is not S3's"),
        (
            Fault(answer=http("302 Found\r\nLocation: http://evil/", b"", "text/html")),
            r"the answer is not S3's",
        ),
    ],
)
def test_what_a_person_must_change_is_not(
    fault: Fault, cause: str, store: MinioStore, server: Proxy
) -> None:
    server.always = fault
    with pytest.raises(StoreFailed, match=rf"s3://bucket/x at http://127.* 'a': .*{cause}"):
        store.put("a", b"data")
    assert server.connections == 1
    with pytest.raises(ConfigurationError, match=rf"bucket 'bucket' at http://127.*{cause}"):
        store.check()
    assert store.http.retries == 0


def test_the_last_answer_comes_out_at_the_deadline(store: MinioStore, server: Proxy) -> None:
    server.always = SAYS_503
    began = time.monotonic()
    with pytest.raises(StoreFailed, match=r"did not write 'a': SlowDown"):
        store.put("a", b"data")
    assert QUICK.deadline_s / 2 < time.monotonic() - began < 2 * QUICK.deadline_s
    assert store.http.retries > 5


def test_a_last_try_that_the_deadline_cuts_short_hides_no_answer(
    store: MinioStore, server: Proxy
) -> None:
    """The server said why; that it was silent for the rest of the time says less."""
    store.http.patience = QUICK._replace(read_s=10.0, deadline_s=1.0)
    server.order(SAYS_503)
    server.always = Fault(silent=True)
    with pytest.raises(StoreFailed, match=r"did not write 'a': SlowDown"):
        store.put("a", b"data")


def test_a_server_that_went_away_is_told_whatever_it_answered_before(
    store: MinioStore, server: Proxy
) -> None:
    """A refused connection is news, however near the deadline."""
    store.http.patience = QUICK._replace(read_s=10.0, deadline_s=1.0)
    server.always = SAYS_503
    going = threading.Timer(0.4, server.stop)
    going.start()
    with pytest.raises(StoreFailed, match=r"did not write 'a': no connection"):
        store.put("a", b"data")
    going.join()


def test_delays_grow_with_jitter_to_a_ceiling(store: MinioStore) -> None:
    store.http.patience = Patience(first_delay_s=0.1, max_delay_s=1.0)
    for tries, ceiling in [(1, 0.2), (2, 0.4), (3, 0.8), (4, 1.0), (1000, 1.0)]:
        delays = {store.http._delay(tries) for _ in range(200)}
        assert ceiling / 2 <= min(delays) < max(delays) <= ceiling
        assert len(delays) > 100


def test_a_completed_upload_that_fails_under_status_200(store: MinioStore, server: Proxy) -> None:
    """S3 answers 200 before it has put the parts together; an error may follow in the body."""
    begun = b"<I xmlns='http://s3.amazonaws.com/doc/2006-03-01/'><UploadId>7</UploadId></I>"
    part = http('200 OK\r\nETag: "1"', b"")
    failed = b"<Error><Code>InternalError</Code><Message>no</Message></Error>"
    server.order(Fault(answer=http("200 OK", begun)), Fault(answer=part), Fault(answer=part))
    server.always = Fault(answer=http("200 OK", failed))
    with pytest.raises(StoreFailed, match=r"did not write 'a': InternalError: no"):
        store.put_stream("a", [b"x" * (9 << 20)])
    assert store.http.retries > 1


def test_a_server_without_conditional_writes(store: MinioStore, server: Proxy) -> None:
    server.order(error("501 Not Implemented", "NotImplemented"))
    store.put("a", b"data")
    assert not store.http.write_once
    store.put("b", b"data")
    assert server.connections == 3


def test_a_name_taken_by_our_own_lost_try(store: MinioStore, server: Proxy) -> None:
    taken = error("412 Precondition Failed", "PreconditionFailed")
    server.order(Fault(answer=b""), taken, Fault(answer=http("200 OK", b"data")))
    store.put("a", b"data")
    server.order(taken, Fault(answer=http("200 OK", b"other")))
    with pytest.raises(StoreFailed, match=r"'a' .*name is taken.*expected 4 .*found 5 bytes"):
        store.put("a", b"data")
    server.order(taken, error("404 Not Found", "NoSuchKey"))
    with pytest.raises(CorruptedObject, match=r"'a' .*missing"):
        store.put("a", b"data")


def test_an_object_damaged_on_the_way_is_read_again(store: MinioStore, server: Proxy) -> None:
    wrong, right = Fault(answer=http("200 OK", b"dbta")), Fault(answer=http("200 OK", b"data"))
    total = "3a6eb0790f39ac87c94f3856b2dd2c5d110e6811602261a9a923d3bb23adc8b7"
    server.order(wrong, right)
    assert store.get("a", size=4, sha256=total) == b"data"
    server.order(wrong, wrong)
    with pytest.raises(CorruptedObject, match=rf"'a' .*expected 4 bytes, sha256 {total}; found 4"):
        store.get("a", size=4, sha256=total)


def test_no_request_leaves_for_a_bad_key(store: MinioStore, server: Proxy) -> None:
    for key in ("../a", "a%2e%2e", "a\0", "/a", "a\\b"):
        with pytest.raises(ProtocolViolation):
            store.put(key, b"data")
        with pytest.raises(ProtocolViolation):
            store.delete(["a", key])
    assert server.connections == 0


def test_no_log_and_no_error_shows_a_secret(
    store: MinioStore, server: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    store.http.patience = QUICK._replace(read_s=0.1, deadline_s=0.25)
    texts = []
    for fault in (
        error("403 Forbidden", "SignatureDoesNotMatch", f"you signed with {CANARY}"),
        Fault(answer=http("403 Forbidden", f"<p>canary-user:{CANARY}</p>".encode(), "text/html")),
        error("403 Forbidden", CANARY),
        Fault(silent=True),
        SAYS_503,
    ):
        server.always = fault
        for call in (store.check, lambda: store.put("a", b"data"), lambda: store.get("a")):
            with pytest.raises((ConfigurationError, StoreFailed)) as caught:
                call()
            texts += [str(caught.value), repr(caught.value)]
    server.always = error("200 OK", CANARY)
    with pytest.raises(StoreFailed) as caught:
        store.delete(["a"])
    assert all(CANARY not in text for text in [*texts, str(caught.value), caplog.text])
    assert all("canary-user" not in text for text in [*texts, caplog.text])
    assert "store retried: PUT after HTTP 503" in caplog.text
