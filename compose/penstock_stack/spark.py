"""A standalone Spark cluster as plain processes: one master and its workers, out of PySpark's jars.

The drivers that use it find it at ``url``. Executors are started by the workers and end with them.
"""

import atexit
import importlib.util
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import urllib3

from penstock_stack.failure import StackError
from penstock_stack.java import find_java
from penstock_stack.port import HOST, free_ports
from penstock_stack.progress import Say, step
from penstock_stack.server import Server

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


class SparkCluster:
    """A master and workers; they end with this object or with the program."""

    def __init__(self, *, workers: int, memory_mb: int, env: Mapping[str, str], say: Say) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-spark-"))
        self._env = {**_environment(self.folder), **env}
        port, self._page, *pages = free_ports(2 + workers)
        self.url = f"spark://{HOST}:{port}"
        self._size = workers
        self._servers = [
            self._server(
                "master", MASTER, ("--port", str(port), "--webui-port", str(self._page)), 0
            )
        ]
        for number, page in enumerate(pages, start=1):
            room = ("--cores", "1", "--memory", f"{memory_mb}m", "--webui-port", str(page))
            place = ("--work-dir", str(self.folder / f"worker-{number}"))
            self._servers.append(
                self._server(f"worker-{number}", WORKER, (*room, *place, self.url), number)
            )
        atexit.register(self.close)
        try:
            with step(say, f"starting a Spark cluster of {workers} workers"):
                self._servers[0].start()
                for worker in self._servers[1:]:
                    worker.launch()
                for worker in self._servers[1:]:
                    worker.wait_ready()
        except BaseException:
            self.close()
            raise

    def _server(
        self, name: str, main_class: str, arguments: tuple[str, ...], least_workers: int
    ) -> Server:
        home = _spark_home()
        return Server(
            f"Spark {name}",
            [str(home / "bin" / "spark-class"), main_class, "--host", HOST, *arguments],
            log=self.folder / f"{name}.log",
            ready=lambda: self.workers() >= least_workers,
            env=self._env,
        )

    def workers(self) -> int:
        """How many workers the master counts as alive; -1 when it does not answer."""
        try:
            answer = urllib3.request(
                "GET", f"http://{HOST}:{self._page}/json/", timeout=2.0, retries=False
            )
            found = json.loads(answer.data)
        except (urllib3.exceptions.HTTPError, ValueError):
            return -1
        return sum(worker["state"] == "ALIVE" for worker in found["workers"])

    def close(self) -> None:
        """Stop everything and delete its files; may be called again."""
        atexit.unregister(self.close)
        for server in reversed(self._servers):
            server.stop()  # a worker that is asked ends its executors
        self._servers = []
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_spark_cluster(
    *,
    workers: int = 2,
    memory_mb: int = 1024,
    env: Mapping[str, str] | None = None,
    progress: Say = print,
) -> SparkCluster:
    """Start a master and workers of one core each on free ports of this machine.

    Args:
        workers: how many.
        memory_mb: what each may give to executors.
        env: variables of the workers, and so of the executors and their Python.
        progress: takes a line when the start lasts more than two seconds.

    Raises:
        StackError: Java or PySpark is missing, or a process did not come up.
    """
    return SparkCluster(workers=workers, memory_mb=memory_mb, env=env or {}, say=progress)


def _environment(folder: Path) -> dict[str, str]:
    """What the launching scripts read; nothing of the user's own Spark gets in."""
    return {
        "JAVA_HOME": str(Path(find_java()).parent.parent),
        "SPARK_HOME": str(_spark_home()),
        "SPARK_CONF_DIR": str(folder),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_LOCAL_IP": HOST,
    }


def _spark_home() -> Path:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise StackError("a Spark cluster needs PySpark: pip install 'penstock[spark]'")
    return Path(found.origin).parent
