# SPDX-License-Identifier: Apache-2.0
"""A temporary PostgreSQL server for tests, with a new data directory that also contains its socket.

    with PostgresServer() as server:
        psycopg.connect(server.conninfo)

    def test_something(postgres_server): psycopg.connect(postgres_server.new_database())       # one server for the run

If PostgreSQL is missing, MissingPostgres has the remedy. A test that needs it fails and is never skipped.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg
import pytest

from kcodec.testing.processes import WATCHDOG

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))
from postgres_home import MissingPostgres, binaries

sys.path.remove(str(Path(__file__).resolve().parent.parent.parent / "tools"))

__all__ = ["MissingPostgres", "PostgresServer", "binaries"]
START_SECONDS = 60.0


class PostgresServer:
    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PostgresServer:
        self._programs = binaries()
        self.directory = Path(tempfile.mkdtemp(prefix="kcodec-pg-"))
        WATCHDOG.watch(self.directory)
        # PostgreSQL refuses to run as root
        self._who: dict[str, Any] = {}
        if os.geteuid() == 0:
            known = {entry.pw_name: entry.pw_gid for entry in pwd.getpwall()}
            user = "postgres" if "postgres" in known else "nobody"
            self._who = {"user": user, "group": known[user]}
            shutil.chown(self.directory, user)
        made = subprocess.run(
            [self._programs / "initdb", "-D", self._data, "-U", "outbox", "-A", "trust", "-E", "UTF8", "--locale=C"],
            cwd=self.directory,
            capture_output=True,
            timeout=START_SECONDS,
            **self._who,
        )
        assert made.returncode == 0, made.stderr.decode(errors="replace")
        self.conninfo = f"host={self.directory} user=outbox dbname=postgres"
        self._start()
        return self

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _start(self) -> None:
        settings = {"listen_addresses": "", "unix_socket_directories": self.directory, "shared_buffers": "16MB"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data, *options],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._who,
            )
        WATCHDOG.watch(self._process.pid)
        self._wait_ready()

    def new_database(self) -> str:
        """Create a database and return its conninfo."""
        name = f"db_{uuid.uuid4().hex[:8]}"
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.conninfo.replace("dbname=postgres", f"dbname={name}")

    def crash(self) -> None:
        """SIGKILL, and start again: recovery from the write-ahead log."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        WATCHDOG.forget(self._process.pid)
        # Its child processes end when they notice that it has ended. Until then the lock file contains the socket.
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._start()
                return
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _wait_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.conninfo).close()
                return
            except psycopg.OperationalError:
                log = (self.directory / "log").read_text(errors="replace")
                assert self._process.poll() is None and time.monotonic() < deadline, log
                time.sleep(0.05)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(timeout=30)
            WATCHDOG.forget(self._process.pid)
        shutil.rmtree(self.directory, ignore_errors=True)
        WATCHDOG.forget(self.directory)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    with PostgresServer() as started:
        yield started
