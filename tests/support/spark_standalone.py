# SPDX-License-Identifier: Apache-2.0
"""A standalone Spark cluster on this machine whose workers have different hosts, 127.0.0.2 and 127.0.0.3.

Spark starts no speculative copy of a task on a host that runs the task already, so that none exists on a
local-cluster, where all executors have one host.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

HOME = Path(pyspark.__file__).parent
MASTER_HOST, WORKER_HOSTS = "127.0.0.1", ("127.0.0.2", "127.0.0.3")
CORES = 2
START_SECONDS = 120.0


class StandaloneCluster:
    """One master, and a worker with two cores on each of two hosts; `url` is the address of the master."""

    def __init__(self, java_home: Path, folder: Path) -> None:
        self._folder = folder
        self._environment = {**os.environ, "JAVA_HOME": str(java_home), "SPARK_HOME": str(HOME)}
        self._processes: list[subprocess.Popen[bytes]] = []
        with socket.create_server((MASTER_HOST, 0)) as free:
            self._port = free.getsockname()[1]
        self.url = f"spark://{MASTER_HOST}:{self._port}"

    def __enter__(self) -> Self:
        try:
            self._start("master.Master", MASTER_HOST, "--port", str(self._port))
            for host in WORKER_HOSTS:
                options = ["-c", str(CORES), "-m", "1g", "-d", str(self._folder / host), self.url]
                self._start("worker.Worker", host, *options)
            deadline = time.monotonic() + START_SECONDS
            while self._log("master.Master", MASTER_HOST).count("Registering worker") < len(WORKER_HOSTS):
                assert time.monotonic() < deadline, self._log("master.Master", MASTER_HOST)[-2000:]
                time.sleep(0.2)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _start(self, kind: str, host: str, *options: str) -> None:
        command = [
            str(HOME / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{kind}",
            "--host",
            host,
            "--webui-port",
            "0",
        ]
        environment = {**self._environment, "SPARK_LOCAL_IP": host}
        with self._path(kind, host).open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*command, "--webui-port", "0", *options], env=environment, stdout=log, stderr=log, cwd=self._folder
                )
            )

    def _path(self, kind: str, host: str) -> Path:
        return self._folder / f"{kind}-{host}.log"

    def _log(self, kind: str, host: str) -> str:
        return self._path(kind, host).read_text(errors="replace")

    def _stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(60)
