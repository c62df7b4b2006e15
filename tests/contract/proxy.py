"""A TCP proxy in front of an S3 server that spoils connections as ordered."""

import contextlib
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Self

SLOW_DOWN = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate"
    b"</Message></Error>"
)


@dataclass(frozen=True)
class Fault:
    """What happens to one connection; bytes are counted in its life."""

    answer: bytes | None = None
    """Answer the first request with this instead of asking the server."""
    silent: bool = False
    """Accept, read, never answer."""
    reset_up: int | None = None
    """Reset both sides after so many bytes of requests went up."""
    reset_down: int | None = None
    """Reset the client after so many bytes of answers came down."""
    close_down: int | None = None
    """Close cleanly after so many bytes of answers: a truncated body."""
    flip_up: int | None = None
    """Flip one bit this far behind the end of the first request's headers."""
    flip_down: int | None = None
    """Flip one bit this far behind the end of the first answer's headers."""
    delay_s: float = 0.0
    """Wait so long before the first byte of an answer is passed on."""
    trickle_s: float = 0.0
    """Pass an answer's body on byte by byte, so long apart."""
    lose_answer: bool = False
    """Pass the request up, wait for the answer to begin, then reset the client."""


def http(status: str, body: bytes, kind: str = "application/xml") -> bytes:
    """An answer after which the connection ends, so that the next request meets the next fault."""
    head = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, "Connection: close", "", ""]).encode() + body


SAYS_503 = Fault(answer=http("503 Slow Down", SLOW_DOWN))


class Proxy:
    """Listens on a free port of 127.0.0.1; the n-th connection meets the n-th fault ordered."""

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._faults: deque[Fault] = deque()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.connections = 0
        self.always: Fault | None = None
        """Meets every connection for which no fault was ordered."""
        self._listener = self._listen(0)
        self.port: int = self._listener.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None
    ) -> None:
        self.stop()

    def order(self, *faults: Fault) -> None:
        """Faults for the next connections; those that are open already are closed."""
        self._faults.extend(faults)
        self.cut()

    def cut(self) -> None:
        """Reset every connection."""
        with self._lock:
            sockets = list(self._open)
        for one in sockets:
            _reset(one)

    def stop(self) -> None:
        """Refuse connections from now on and reset those there are."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def start(self) -> None:
        """Listen again on the same port."""
        self._listener = self._listen(self.port)

    def _listen(self, port: int) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(64)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            fault = self._faults.popleft() if self._faults else self.always
            threading.Thread(
                target=self._serve, args=(client, fault or Fault()), daemon=True
            ).start()

    def _serve(self, client: socket.socket, fault: Fault) -> None:
        with self._lock:
            self._open.add(client)
        server: socket.socket | None = None
        try:
            if fault.silent:
                while client.recv(65536):
                    pass
            elif fault.answer is not None:
                _read_request(client)
                client.sendall(fault.answer)
                client.shutdown(socket.SHUT_WR)
                while client.recv(65536):
                    pass
            else:
                server = socket.create_connection(("127.0.0.1", self._upstream), 10)
                server.settimeout(None)
                with self._lock:
                    self._open.add(server)
                up = threading.Thread(target=_up, args=(client, server, fault), daemon=True)
                up.start()
                _down(server, client, fault)
        except OSError:
            pass
        finally:
            with self._lock:
                self._open.discard(client)
                if server is not None:
                    self._open.discard(server)
            client.close()
            if server is not None:
                with contextlib.suppress(OSError):
                    server.shutdown(socket.SHUT_RDWR)
                server.close()


def _up(client: socket.socket, server: socket.socket, fault: Fault) -> None:
    with contextlib.suppress(OSError):
        passed = 0
        flip = _Flip(fault.flip_up)
        while data := client.recv(65536):
            data = flip(data)
            if fault.reset_up is not None and passed + len(data) >= fault.reset_up:
                server.sendall(data[: fault.reset_up - passed])
                _reset(server)
                _reset(client)
                return
            server.sendall(data)
            passed += len(data)
        server.shutdown(socket.SHUT_WR)


def _down(server: socket.socket, client: socket.socket, fault: Fault) -> None:
    passed = 0
    flip = _Flip(fault.flip_down)
    while data := server.recv(65536):
        if fault.lose_answer:
            _reset(client)
            return
        if passed == 0 and fault.delay_s:
            time.sleep(fault.delay_s)
        data = flip(data)
        for limit, end in ((fault.reset_down, _reset), (fault.close_down, _close)):
            if limit is not None and passed + len(data) >= limit:
                client.sendall(data[: limit - passed])
                end(client)
                return
        head = data.find(b"\r\n\r\n") + 4 if fault.trickle_s and passed == 0 else len(data)
        client.sendall(data[:head])
        for byte in data[head:]:
            client.sendall(bytes([byte]))
            time.sleep(fault.trickle_s)
        passed += len(data)


class _Flip:
    """Flips one bit at an offset behind the first blank line of a stream."""

    def __init__(self, offset: int | None) -> None:
        self._offset = offset
        self._body: int | None = None
        self._passed = 0
        self._tail = b""

    def __call__(self, data: bytes) -> bytes:
        if self._offset is None:
            return data
        if self._body is None:
            seen = self._tail + data
            end = seen.find(b"\r\n\r\n")
            if end >= 0:
                self._body = self._passed - len(self._tail) + end + 4
            self._tail = seen[-3:]
        if self._body is not None:
            at = self._body + self._offset - self._passed
            if 0 <= at < len(data):
                data = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
                self._offset = None
        self._passed += len(data)
        return data


def _read_request(client: socket.socket) -> None:
    """Read one request whole, so that closing afterwards does not reset the answer away."""
    seen = b""
    while b"\r\n\r\n" not in seen:
        data = client.recv(65536)
        if not data:
            return
        seen += data
    head, _, body = seen.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            length = int(value)
    left = length - len(body)
    while left > 0:
        data = client.recv(min(left, 65536))
        if not data:
            return
        left -= len(data)


def _reset(one: socket.socket) -> None:
    """RST instead of FIN."""
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Shutting down wakes a thread that reads this socket; closing alone would not.
        one.shutdown(socket.SHUT_RD)
    with contextlib.suppress(OSError):
        one.close()


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
