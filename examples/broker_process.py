# SPDX-License-Identifier: Apache-2.0
"""The embedded broker as a process, which a test or a demo can kill and start again on its files.

with BrokerProcess(directory) as broker:
    Producer(bootstrap_servers=broker.bootstrap_servers)
    broker.kill()  # SIGKILL
    broker.start()  # on the same port, with what was acknowledged before
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

END_SECONDS = 20.0


class BrokerProcess:
    """`kcodec broker --data-dir DIRECTORY`. The first start takes a free port, and each later start takes it again.

    directory: of the logs. options: more options of the command.
    """

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self.bootstrap_servers = "127.0.0.1:0"
        self._options = options
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def command(self, port: str) -> list[str]:
        """Return the command line for a port."""
        words = [sys.executable, "-m", "kcodec", "broker", "--port", port, "--data-dir", str(self.directory)]
        return [*words, *self._options]

    def start(self) -> None:
        """Start it, and wait until it accepts requests. Raise RuntimeError if it does not."""
        command = self.command(self.bootstrap_servers.rpartition(":")[2])
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if "accepts requests" not in line:
            self.kill()
            raise RuntimeError(f"the broker did not start; its message is above: {' '.join(command)}")
        self.bootstrap_servers = line.split()[2]

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Send SIGSTOP, and wait until every thread has stopped: connections stay open, and no request gets a response
        until `resume`."""
        self._signal(signal.SIGSTOP)
        assert self._process is not None
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Send SIGCONT."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Send SIGTERM, and wait until the process has ended."""
        self._end(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise RuntimeError("the broker does not run")
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.send_signal(signal.SIGCONT)  # a paused process would not get SIGTERM
            self._process.wait(END_SECONDS)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None
