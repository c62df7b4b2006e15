"""Why an S3 server did not do as asked, in words: the cause and the remedy, and no secret."""

import ssl
from xml.etree.ElementTree import ParseError

from minio.error import InvalidResponseError, MinioException, S3Error, ServerError
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    NameResolutionError,
    NewConnectionError,
    SSLError,
)
from urllib3.exceptions import (
    TimeoutError as HTTPTimeout,
)

from penstock_minio.settings import ACCESS_KEY, CA_FILE, ENDPOINT, REGION, SECRET_KEY, S3Settings

S3_FAILURES = (MinioException, HTTPError, ParseError)
"""What the client library lets out when a request failed; ParseError for an answer cut short."""

_KEYS = f"check {ACCESS_KEY} and {SECRET_KEY}"
_RIGHTS = "s3:PutObject, GetObject, DeleteObject, AbortMultipartUpload and ListBucket"


def explained(exc: BaseException, settings: S3Settings) -> str:
    """``cause; remedy`` for one of S3_FAILURES, in one line, without credentials."""
    cause, remedy = _cause(exc, settings)
    return redacted(f"{cause}; {remedy}", settings)


def redacted(text: str, settings: S3Settings) -> str:
    """What a server said, in one line and without credentials, should it have repeated them."""
    text = " ".join(text.split())
    for secret in settings.secrets:
        if len(secret) >= 6:
            text = text.replace(secret, "***")
    return text


def _cause(exc: BaseException, settings: S3Settings) -> tuple[str, str]:
    if isinstance(exc, S3Error):
        return f"{exc.code}: {(exc.message or '')[:200]}", _remedy(exc.code or "", settings)
    if isinstance(exc, ServerError):
        return f"HTTP {exc.status_code}", "look into the server's log, then try again"
    if isinstance(exc, InvalidResponseError | ParseError):
        return (
            f"the answer is not S3's: {str(exc)[:200]}",
            f"check that {ENDPOINT} is an S3 server's API address, not its console or a proxy",
        )
    return _transport_cause(exc)


def _transport_cause(exc: BaseException) -> tuple[str, str]:
    start = f"start the server, or correct {ENDPOINT}"
    if isinstance(exc, NameResolutionError):
        return "the host name is not known", f"correct {ENDPOINT}"
    if isinstance(exc, NewConnectionError):  # before its parent, the connect timeout
        return f"no connection ({_last_words(exc)})", start
    if isinstance(exc, ConnectTimeoutError):
        return "no connection within the time allowed", start
    if isinstance(exc, SSLError):
        inner = exc.args[0] if exc.args else None
        if isinstance(inner, ssl.SSLCertVerificationError):
            return (
                f"its certificate does not verify ({inner.verify_message})",
                f"name the authority's certificate in {CA_FILE}",
            )
        return f"TLS failed ({_last_words(exc)})", f"check http against https in {ENDPOINT}"
    if isinstance(exc, HTTPTimeout):
        return "no whole answer within the time allowed", "look at the server's load and network"
    return (
        f"the connection broke each time ({_last_words(exc)})",
        "look at the server's log and the network between",
    )


def _last_words(exc: BaseException) -> str:
    """What the operating system said, without addresses of objects."""
    inner: BaseException | None = exc
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        inner = inner.__cause__ or inner.__context__
    return type(exc).__name__


def _remedy(code: str, settings: S3Settings) -> str:
    remedies = {
        "NoSuchBucket": f"create bucket {settings.bucket!r}, or correct the store's URL",
        "AccessDenied": f"{_KEYS}, and that this user may {_RIGHTS} under {settings.url}",
        "InvalidAccessKeyId": _KEYS,
        "SignatureDoesNotMatch": _KEYS,
        "RequestTimeTooSkewed": "set this machine's or the server's clock",
        "AuthorizationHeaderMalformed": f"set {REGION} to the bucket's region",
        "PermanentRedirect": f"set {REGION} to the bucket's region and {ENDPOINT} to its address",
        "XMinioStorageFull": "make room on the server, or move the store",
        "XMinioParentIsObject": "an object stands where a folder is needed: use another prefix",
        "SlowDown": "the server is overloaded: lengthen the checkpoint interval or enlarge it",
    }
    return remedies.get(code, "look into the server's log")
