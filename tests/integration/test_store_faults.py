"""A real S3 server behind a bad network, or down: the store retries, or names what is wrong.

Down, 503 SlowDown, latency, 403, reset mid-body, truncated GET, bit flip, missing.
"""

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from contract.proxy import SAYS_503, Fault, Proxy
from contract.store import BIG, KB
from penstock.failure import ConfigurationError, CorruptedObject, StoreFailed
from penstock_minio import MinioStore, Patience, open_store
from penstock_minio.settings import ENDPOINT, SECRET_KEY, read_settings

pytestmark = pytest.mark.integration

HASTY = Patience(connect_s=0.4, read_s=0.4, deadline_s=1.2, first_delay_s=0.01, max_delay_s=0.2)
QUICK = Patience(connect_s=0.5, read_s=0.8, deadline_s=4.0, first_delay_s=0.01, max_delay_s=0.2)


@pytest.fixture
def proxy(stack: Any) -> Iterator[Proxy]:
    port = urlsplit(stack.store_env[ENDPOINT]).port
    assert port is not None
    with Proxy(port) as running:
        yield running


@pytest.fixture
def direct(stack: Any) -> Iterator[MinioStore]:
    """The same place as ``store``, without the proxy."""
    url = f"{stack.store_url}/{secrets.token_hex(6)}"
    opened = open_store(url, dict(stack.store_env))
    assert isinstance(opened, MinioStore)
    yield opened
    opened.close()


@pytest.fixture
def store(direct: MinioStore, proxy: Proxy) -> Iterator[MinioStore]:
    through = MinioStore(direct._settings._replace(endpoint=proxy.endpoint), QUICK)
    yield through
    through.close()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


PASSING = {
    "503": SAYS_503,
    "reset before the answer": Fault(reset_down=0),
    "reset in the headers": Fault(reset_down=60),
    "closed without an answer": Fault(close_down=0),
    "the answer is lost": Fault(lose_answer=True),
    "silence": Fault(silent=True),
    "a late answer": Fault(delay_s=2.0),
}
UP = {
    "reset in the request's head": Fault(reset_up=100),
    "reset in the request's body": Fault(reset_up=1100),
    "a bit flips on the way up": Fault(flip_up=100),
}
DOWN = {
    "reset mid-body": Fault(reset_down=900),
    "truncated": Fault(close_down=900),
    "a bit flips on the way down": Fault(flip_down=500),
}


# A server keeps its connection after a damaged request, so only the first try meets that fault.
@pytest.mark.parametrize(
    ("fault", "times"),
    [
        pytest.param(fault, times, id=f"{name}-{times}")
        for name, fault in (PASSING | UP).items()
        for times in ([1] if fault.flip_up else [1, 2])
    ],
)
def test_put_is_retried(
    fault: Fault, times: int, store: MinioStore, direct: MinioStore, proxy: Proxy
) -> None:
    proxy.order(*[fault] * times)
    store.put("a", KB)
    assert store.http.retries >= times
    assert direct.get("a", size=len(KB), sha256=sha256(KB)) == KB


@pytest.mark.parametrize("fault", (PASSING | DOWN).values(), ids=(PASSING | DOWN).keys())
def test_get_is_retried(fault: Fault, store: MinioStore, direct: MinioStore, proxy: Proxy) -> None:
    direct.put("a", KB)
    proxy.order(fault)
    assert store.get("a", size=len(KB), sha256=sha256(KB)) == KB


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING.keys())
def test_list_and_delete_are_retried(
    fault: Fault, store: MinioStore, direct: MinioStore, proxy: Proxy
) -> None:
    direct.put("a", KB)
    proxy.order(fault)
    assert store.list("") == ["a"]
    proxy.order(fault)
    store.delete(["a"])
    assert direct.list("") == []


@pytest.mark.parametrize(
    ("fault", "request_number"),
    [
        pytest.param(fault, number, id=f"{name}-{number}")
        for name, fault in (PASSING | UP).items()
        for number in range(1 if fault.flip_up else 0, 4)  # the first has no body to damage
    ],
)
def test_each_request_of_a_stream_is_retried(
    fault: Fault, request_number: int, store: MinioStore, direct: MinioStore, proxy: Proxy
) -> None:
    """Requests: create, part, part, complete; each fault met by each of them."""
    parts = [BIG[: 8 << 20], BIG]
    sent = 0
    send = store.http.urlopen

    def with_fault(*args: Any, **kw: Any) -> Any:
        nonlocal sent
        if sent == request_number:
            proxy.order(fault)
        sent += 1
        return send(*args, **kw)

    store.http.urlopen = with_fault  # type: ignore[method-assign]
    whole = b"".join(parts)
    assert store.put_stream("a", parts) == (len(whole), sha256(whole))
    assert sent >= 5  # create, three parts, complete
    assert direct.get("a", size=len(whole), sha256=sha256(whole)) == whole


def test_an_object_damaged_where_it_lies_is_named(
    store: MinioStore, direct: MinioStore, proxy: Proxy
) -> None:
    direct.put("a", KB)
    proxy.always = Fault(flip_down=500)
    proxy.cut()
    with pytest.raises(CorruptedObject, match=r"'a' .*expected 1024 bytes.*found 1024 bytes"):
        connecting_afresh(store).get("a", size=len(KB), sha256=sha256(KB))
    direct.put("b", KB[:-1])
    with pytest.raises(CorruptedObject, match=r"'b' .*expected 1024 bytes.*found 1023 bytes"):
        direct.get("b", size=len(KB), sha256=sha256(KB))
    direct.delete(["b"])
    with pytest.raises(CorruptedObject, match=r"'b' .*missing"):
        direct.get("b", size=len(KB), sha256=sha256(KB))


def connecting_afresh(store: MinioStore) -> MinioStore:
    """The proxy damages each connection once: a new one for each read damages each read."""
    read = store._read

    def afresh(key: str) -> bytes:
        store.close()
        return read(key)

    store._read = afresh  # type: ignore[method-assign]
    return store


def test_a_get_that_is_always_cut_short_fails_within_its_deadline(
    store: MinioStore, direct: MinioStore, proxy: Proxy
) -> None:
    direct.put("a", BIG)
    proxy.always = Fault(close_down=5000)
    fails_in_time(lambda: store.get("a", size=len(BIG)), match="did not read 'a': .*broke")


def test_an_answer_that_only_trickles_fails_within_its_deadline(
    store: MinioStore, direct: MinioStore, proxy: Proxy
) -> None:
    direct.put("a", KB)
    store.http.patience = HASTY
    proxy.always = Fault(trickle_s=0.1)
    fails_in_time(lambda: store.get("a"), match="no whole answer within the time allowed")
    fails_in_time(lambda: store.list(""), match="no whole answer within the time allowed")


def fails_in_time(call: Callable[[], object], match: str, limit_s: float = 5.0) -> None:
    began = time.monotonic()
    with pytest.raises(StoreFailed, match=match):
        call()
    assert time.monotonic() - began < limit_s


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (SAYS_503, "SlowDown: Please reduce your request rate; the server is overloaded"),
        (Fault(silent=True), "no whole answer within the time allowed"),
        (Fault(reset_down=0), "the connection broke each time"),
        (Fault(answer=b"SSH-2.0-OpenSSH\r\n"), "the connection broke each time"),
    ],
    ids=["503", "silence", "reset", "not http"],
)
def test_a_store_that_stays_bad_fails_within_its_deadline(
    fault: Fault, cause: str, store: MinioStore, proxy: Proxy
) -> None:
    store.http.patience = HASTY
    proxy.always = fault
    fails_in_time(lambda: store.put("a", KB), match=f"did not write 'a': {cause}")
    fails_in_time(lambda: store.put_stream("b", [BIG]), match="did not write 'b'")
    fails_in_time(lambda: store.get("a"), match=f"did not read 'a': {cause}")
    fails_in_time(lambda: store.list("a/"), match="did not list 'a/'")
    fails_in_time(lambda: store.delete(["a"]), match="did not delete '1 objects'")
    proxy.always = None
    proxy.cut()
    store.put("c", KB)
    assert store.get("c") == KB


def test_a_store_that_is_down_fails_and_works_again_after_its_restart(
    stack: Any, direct: MinioStore
) -> None:
    quick = MinioStore(direct._settings, QUICK)
    quick.put("before", KB)
    stack.store_stop()
    try:
        began = time.monotonic()
        with pytest.raises(ConfigurationError, match=r"bucket .* at http://.*no connection"):
            direct.check()
        assert time.monotonic() - began < 10
        fails_in_time(lambda: quick.put("during", KB), match="no connection .*refused.*start")
        fails_in_time(lambda: quick.get("before"), match="did not read 'before'")
    finally:
        stack.store_start()
    quick.check()
    assert quick.get("before", sha256=sha256(KB)) == KB
    quick.put("during", KB)
    assert quick.list("") == ["before", "during"]
    quick.close()


def test_a_put_that_waits_out_a_restart_succeeds(
    store: MinioStore, direct: MinioStore, proxy: Proxy
) -> None:
    proxy.stop()
    timer = threading.Timer(1.0, proxy.start)
    timer.start()
    store.put("a", KB)
    timer.join()
    assert direct.get("a") == KB


def test_check_says_what_is_wrong(
    stack: Any, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unreachable store, a store without the bucket, access denied (issue 3, bad input)."""
    monkeypatch.setattr("penstock_minio.bucket.CHECK_DEADLINE_S", 2.0)
    env = dict(stack.store_env)
    bucket = urlsplit(stack.store_url).netloc
    secret = env[SECRET_KEY]
    proxy.always = Fault(silent=True)
    cases = [
        (stack.store_url, {ENDPOINT: "http://127.0.0.1:1"}, bucket, "refused.*; start the server"),
        (stack.store_url, {ENDPOINT: "http://no-such.invalid:9"}, bucket, "host name"),
        (stack.store_url, {ENDPOINT: proxy.endpoint}, bucket, "no whole answer"),
        ("s3://no-such-bucket/x", {}, "no-such-bucket", "NoSuchBucket: .*; create bucket"),
        (stack.store_url, {SECRET_KEY: "wrong-secret"}, bucket, "SignatureDoesNotMatch: .*; check"),
        (stack.store_url, {"PENSTOCK_S3_ACCESS_KEY": "wro"}, bucket, "InvalidAccessKeyId: .*; ch"),
        (
            stack.store_url,
            {ENDPOINT: env[ENDPOINT].replace("http:", "https:")},
            bucket,
            "check http against https",
        ),
    ]
    for url, changed, named, cause in cases:
        store = MinioStore(read_settings(url, env | changed))
        began = time.monotonic()
        with pytest.raises(ConfigurationError, match=f"bucket '{named}' at .*{cause}") as caught:
            store.check()
        assert time.monotonic() - began < 10
        assert (env | changed)[ENDPOINT] in str(caught.value)
        assert secret not in str(caught.value)
        assert "wrong-secret" not in str(caught.value)
        store.close()


def test_denied_and_missing_buckets_are_not_retried(stack: Any) -> None:
    env = dict(stack.store_env)
    for url, changed, code in [
        ("s3://no-such-bucket/x", {}, "NoSuchBucket"),
        (stack.store_url, {SECRET_KEY: "wrong-secret"}, "SignatureDoesNotMatch"),
    ]:
        store = MinioStore(read_settings(url, env | changed))
        for call in (
            lambda store=store: store.put("a", KB),
            lambda store=store: store.put_stream("a", [BIG]),
            lambda store=store: store.get("a"),
            lambda store=store: store.list(""),
            lambda store=store: store.delete(["a"]),
        ):
            began = time.monotonic()
            with pytest.raises(StoreFailed, match=code) as caught:
                call()
            assert not isinstance(caught.value, CorruptedObject)
            assert time.monotonic() - began < 2
        assert store.http.retries == 0
        store.close()


def test_the_death_of_one_connection_is_not_felt(store: MinioStore, proxy: Proxy) -> None:
    for number in range(30):
        if number % 10 == 5:
            proxy.cut()  # as a server that closes idle connections
        store.put(f"k/{number}", KB)
    assert store.list("k/") == sorted(f"k/{number}" for number in range(30))
    assert proxy.connections <= 8
