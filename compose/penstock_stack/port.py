"""Free ports of the loopback address, outside the range that outgoing connections use.

Were a server's port inside that range, a client that retries while the server is down could be
given the very port as its own: the server could not come back, or the client would talk to itself.
"""

import random
import socket
from pathlib import Path

HOST = "127.0.0.1"
RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST = 15_000


def free_ports(count: int) -> list[int]:
    """``count`` different ports that nobody listens on."""
    first_outgoing = int(RANGE_FILE.read_text().split()[0]) if RANGE_FILE.exists() else 32_768
    candidates = list(range(LOWEST, max(first_outgoing, LOWEST + 1_000)))
    random.shuffle(candidates)
    ports: list[int] = []
    for port in candidates:
        if is_free(port):
            ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError(f"no {count} free ports on {HOST} from {LOWEST} to {first_outgoing}")


def is_free(port: int) -> bool:
    """Whether a server could listen on ``port`` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def answers(port: int) -> bool:
    """Whether somebody listens on ``port`` now."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((HOST, port)) == 0
