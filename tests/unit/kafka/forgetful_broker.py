"""A broker that speaks as much of Kafka's protocol as it takes to write, and to wait for records.

It can be as a broker is that comes back from an outage: it answers, and names no broker at all.
"""

import contextlib
import socket
import struct
import threading
import time

FETCH, METADATA, FIND_COORDINATOR, API_VERSIONS = 1, 3, 10, 18
LATEST = {
    0: 7,
    FETCH: 4,
    2: 5,
    METADATA: 4,
    8: 2,
    9: 3,
    FIND_COORDINATOR: 2,
    API_VERSIONS: 0,
    22: 1,
}
UNSUPPORTED, NOT_LEADER, NO_LEADER, NO_COORDINATOR = 35, 6, 5, 15


class ForgetfulBroker:
    """One broker with the topic ``t`` of one partition."""

    def __init__(self) -> None:
        self.knows = True
        self.back_at = 0.0
        self.fetched: dict[str, float] = {}
        """Client id -> when it last asked for records."""
        self.written: dict[str, float] = {}
        """Client id -> when a record of it was last acknowledged."""
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._connections: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def forget(self, seconds: float) -> None:
        """Know no broker for a while."""
        self.knows = False
        time.sleep(seconds)
        self.knows = True
        self.back_at = time.monotonic()

    def close(self) -> None:
        self._server.close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self._connections.add(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as requests:
            while len(size := requests.read(4)) == 4:
                request = requests.read(struct.unpack(">i", size)[0])
                key, version, number, name = struct.unpack(">hhih", request[:10])
                knew = self.knows
                answer = self._answer(key, version, request[10 : 10 + name].decode())
                connection.sendall(struct.pack(">ii", len(answer) + 4, number) + answer)
                if key == METADATA and not knew:
                    break  # at the same time: clients that are connecting again forget for good
        self._connections.discard(connection)

    def _answer(self, key: int, version: int, client: str) -> bytes:
        match key:
            case 18 if version > 0:
                return struct.pack(">hihhh", UNSUPPORTED, 1, API_VERSIONS, 0, 0)
            case 18:
                known = b"".join(struct.pack(">hhh", api, 0, top) for api, top in LATEST.items())
                return struct.pack(">hi", 0, len(LATEST)) + known
            case 3:
                return self._metadata()
            case 1:
                self.fetched[client] = time.monotonic()
                return self._no_records()
            case 22:
                return struct.pack(">ihqh", 0, 0, 7, 0)
            case 0:
                return self._acknowledged(client)
        return struct.pack(">ihhihi", 0, NO_COORDINATOR, -1, -1, 0, -1)

    def _metadata(self) -> bytes:
        host, port = self.address.split(":")
        itself = struct.pack(">i", 1) + _text(host) + struct.pack(">ih", int(port), -1)
        brokers = struct.pack(">i", 1) + itself if self.knows else struct.pack(">i", 0)
        leader = 1 if self.knows else -1
        partition = struct.pack(">hii", 0 if self.knows else NO_LEADER, 0, leader)
        replicas = struct.pack(">iiii", 1, 1, 1, 1)
        topic = struct.pack(">ih", 1, 0) + _text("t") + struct.pack(">?i", False, 1)
        head = struct.pack(">i", 0) + brokers + _text("cluster") + struct.pack(">i", leader)
        return head + topic + partition + replicas

    def _no_records(self) -> bytes:
        end = time.monotonic() + 0.3
        while self.knows and time.monotonic() < end:
            time.sleep(0.02)
        error = 0 if self.knows else NOT_LEADER
        topic = struct.pack(">ii", 0, 1) + _text("t")
        return topic + struct.pack(">iihqqii", 1, 0, error, 0, 0, -1, 0)

    def _acknowledged(self, client: str) -> bytes:
        error = 0 if self.knows else NOT_LEADER
        if self.knows:
            self.written[client] = time.monotonic()
        topic = struct.pack(">i", 1) + _text("t")
        return topic + struct.pack(">iihqqqi", 1, 0, error, 0, -1, 0, 0)


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
