# SPDX-License-Identifier: Apache-2.0
"""One node of a Kafka on this machine: its folder, its process, and operations on both.

The folder of a node contains server.properties, server.log (the output of all starts of the broker), tmp, and data,
which is the log directory.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kcodec.testing.bare_admin import TIMEOUT_SECONDS, metadata
from kcodec.testing.processes import WATCHDOG, Process
from kcodec.testing.properties import Listener, Value, write_properties

__all__ = ["START_SECONDS", "KafkaFailed", "Launch", "Node", "PortInUse", "start_nodes", "wait_ready"]

START_SECONDS = 60.0
STOP_SECONDS = 20.0
FORMAT_SECONDS = 60.0
POLL_SECONDS = 0.05
#: Seconds until a node whose port is in use is started again.
PORT_RETRY_SECONDS = 0.5
#: What the log of a node has in this case, often followed by hundreds of lines about its shutdown.
PORT_IN_USE = "Address already in use"
TAIL_BYTES = 256 << 10
#: A node logs this when it starts.
START = "Registered signal handlers"
#: Characters of a line of the log in an error.
ERROR_CHARACTERS = 500

# Brokers of tests live for seconds: the serial collector and the C1 compiler alone start quickest and are smallest.
JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:+ExitOnOutOfMemoryError")
LOG_OPTIONS = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.log.state.change.logger=warn",
    # The configured values are in server.properties. The log would contain hundreds of lines with defaults.
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config.AbstractConfig=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaConfig=warn",
)


class KafkaFailed(RuntimeError):
    """A broker did not start, or ended. The text has the end of its log."""


class PortInUse(KafkaFailed):
    """A broker did not start, as one of its ports is in use."""


@dataclass(frozen=True)
class Launch:
    """The parts of the command line of Kafka's programs: `java`, the class path, and JVM options of a broker."""

    java: Path
    class_path: str
    options: tuple[str, ...]

    def command(self, main: str, arguments: Sequence[str | Path], options: Sequence[str] = ()) -> list[str]:
        """Return the command line of one program."""
        return [str(self.java), *JVM_OPTIONS, *options, "-cp", self.class_path, main, *map(str, arguments)]


class Node:
    """One broker and controller.

    id:             Node id, from 1.
    listeners:      Listening ports by name (CLIENT, BROKER, ADMIN, CONTROLLER).
    properties:     The server.properties of the next start. Change them while the node is stopped.
    directory:      Folder of the node.
    log_directory:  Folder of its topics, for `kcodec.open`.
    """

    def __init__(
        self, directory: Path, listeners: dict[str, Listener], properties: dict[str, Value], launch: Launch
    ) -> None:
        self.id = listeners["CLIENT"].node
        self.directory = directory
        self.listeners = listeners
        self.properties = properties
        self._launch = launch
        self._process: Process | None = None
        self._launched_at = 0  # the size of the log then

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.is_running else "stopped"
        return f"<Node {self.id} {self.listeners['CLIENT'].address} {state}>"

    @property
    def log_directory(self) -> Path:
        """The folder with a folder for each partition. It can be read at any time, even if the broker is not
        running."""
        return self.directory / "data"

    @property
    def admin_server(self) -> str:
        """host:port of the listener without a proxy and without restrictions, in plaintext."""
        return self.listeners["ADMIN"].address

    @property
    def pid(self) -> int | None:
        """The id of the running process; None if it is not running."""
        return self._process.pid if self._process is not None and self._process.is_running() else None

    @property
    def is_running(self) -> bool:
        """Whether its process exists, paused or not."""
        return self.pid is not None

    def end_text(self) -> str:
        """Return how its process ended, for messages."""
        if self._process is None:
            return "was stopped"
        status = self._process.exit_status
        text = "ended" if status is None else f"ended with exit status {status}"
        cause = self._first_error()
        return f"{text}; the first error in its log: {cause}" if cause else text

    @property
    def _log(self) -> Path:
        return self.directory / "server.log"

    def format(self, cluster_id: str, options: Sequence[str]) -> None:
        """Create its log directory with kafka-storage. Raise KafkaFailed with Kafka's reason if that fails.

        cluster_id: id of the cluster, in the form of Kafka's Uuid.
        options: additional arguments of `kafka-storage.sh format`.
        """
        path = self._write_properties()
        arguments: list[str | Path] = ["format", "--cluster-id", cluster_id, "--config", path, *options]
        command = self._launch.command("kafka.tools.StorageTool", arguments, self._launch.options)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FORMAT_SECONDS)
        if done.returncode:
            errors = [line for line in (done.stdout + done.stderr).splitlines() if line and not line.startswith("\t")]
            # Exception in thread "main" org.apache...ConfigException: what we want to see
            reason = errors[-1].split("Exception: ", 1)[-1] if errors else "no reason given"
            raise KafkaFailed(f"node {self.id} was not formatted: {reason}")

    def format_like(self, other: Node, directory_id: str) -> None:
        """Copy the formatted log directory of the node `other`, which takes less time than `format`.

        The copy has this node's id, and `directory_id` as the id of the directory, in the form of Kafka's Uuid.
        """
        self._write_properties()
        # The first records of the metadata: bootstrap.checkpoint, from Kafka 4.4 on a snapshot of __cluster_metadata.
        shutil.copytree(other.log_directory, self.log_directory)
        text = (other.log_directory / "meta.properties").read_text(encoding="utf-8")
        ids = {"node.id": str(self.id), "directory.id": directory_id}
        lines = [
            f"{name}={ids[name]}" if (name := line.partition("=")[0]) in ids else line for line in text.splitlines()
        ]
        (self.log_directory / "meta.properties").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def launch(self, *, guarded: bool = True) -> None:
        """Start its process without waiting. If `guarded`, it ends when this process ends."""
        if self.is_running:
            raise ValueError(f"node {self.id} is already running, as process {self.pid}")
        path = self._write_properties()
        scratch = self.directory / "tmp"
        scratch.mkdir(exist_ok=True)
        options = [*LOG_OPTIONS, f"-Djava.io.tmpdir={scratch}", *self._launch.options]
        command = self._launch.command("kafka.Kafka", [path], options)
        with self._log.open("ab") as log:
            self._launched_at = log.tell()
            # A session of its own: Ctrl-C at a terminal is for the tests, which then stop their brokers.
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        if guarded:
            WATCHDOG.watch(child.pid)
        self._process = Process(child.pid, str(path), child)

    def wait_ready(self, nodes: int = 1, timeout: float = START_SECONDS) -> None:
        """Wait until it responds and knows this number of nodes, including itself. Raise KafkaFailed if it ends, or
        after `timeout` seconds."""
        self._wait_ready(nodes, timeout, ())

    def _wait_ready(self, nodes: int, timeout: float, others: Sequence[Node]) -> None:
        """Wait as `wait_ready` does. Also raise KafkaFailed if one of the `others` ends, for which it waits."""
        deadline = time.monotonic() + timeout
        reason = "no response"
        while time.monotonic() < deadline:
            for node in (self, *others):
                if not node.is_running:
                    raise node._failed_start()
            try:
                brokers = [broker.node_id for broker in metadata(self.admin_server).brokers]
                if self.id in brokers and len(brokers) >= nodes:
                    client = self.listeners["CLIENT"]  # Kafka opens the listeners one after the other
                    socket.create_connection((client.host, client.port), TIMEOUT_SECONDS).close()
                    return
                reason = f"it knows of nodes {sorted(brokers)}, expected {nodes} of them with {self.id}"
            except OSError as error:
                reason = str(error)
            time.sleep(POLL_SECONDS)
        raise KafkaFailed(f"node {self.id} was not ready within {timeout} s: {reason}\n{self.log_tail()}")

    def _failed_start(self) -> KafkaFailed:
        with self._log.open("rb") as file:
            file.seek(self._launched_at)
            is_port_in_use = PORT_IN_USE.encode() in file.read(TAIL_BYTES)
        what = f"node {self.id} {self.end_text()} during its start"
        if is_port_in_use:
            return PortInUse(f"{what}: {PORT_IN_USE}\n{self.log_tail()}")
        return KafkaFailed(f"{what}\n{self.log_tail()}")

    def start(self, timeout: float = START_SECONDS) -> None:
        """Start it with its data and ports, and wait until it responds. Raise KafkaFailed after `timeout` seconds."""
        start_nodes([self], 1, timeout)

    def kill(self) -> None:
        """Send SIGKILL, as in a crash. Return when the process has ended. Its data stays."""
        if self._process is not None:
            self._process.kill()
            self._ended()

    def pause(self) -> None:
        """Send SIGSTOP. The process keeps its connections and does not respond. Return when it is stopped, if /proc
        shows this."""
        self._send(signal.SIGSTOP)
        if self._process is not None:
            self._process.wait_paused()

    def resume(self) -> None:
        """Send SIGCONT."""
        self._send(signal.SIGCONT)

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """Stop it gracefully (SIGTERM). Kill it if it has not ended after `timeout` seconds. Its data stays."""
        self.terminate()
        self.wait_stopped(timeout)

    def terminate(self) -> None:
        """Send SIGTERM without waiting. A paused broker is resumed first."""
        if self.is_running:
            self._send(signal.SIGCONT)
            self._send(signal.SIGTERM)

    def wait_stopped(self, timeout: float = STOP_SECONDS) -> None:
        """Wait for the end after `terminate`. Send SIGKILL after `timeout` seconds."""
        if self._process is not None:
            if not self._process.wait(timeout):
                self._process.kill()
            self._ended()

    def restart(self, timeout: float = START_SECONDS) -> None:
        """Stop it gracefully if it is running, and start it again. Raise KafkaFailed if it does not respond within
        `timeout` seconds."""
        self.stop()
        self.start(timeout)

    def log_tail(self, lines: int = 60) -> str:
        """Return the last lines of its log."""
        if not self._log.is_file():
            return f"(node {self.id} has written no log)"
        with self._log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
        return "\n".join(deque(text.splitlines(), lines))

    def _first_error(self) -> str:
        """Return the first error in the log since the last start, or "". Lines of a shutdown follow it and fill the end
        of the log."""
        found = ""
        if self._log.is_file():
            with self._log.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if START in line:
                        found = ""
                    elif not found and ("] ERROR " in line or "] FATAL " in line):
                        found = line.strip()[:ERROR_CHARACTERS]
        return found

    @property
    def _properties_path(self) -> Path:
        return self.directory / "server.properties"

    def _write_properties(self) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        # The file contains passwords.
        path = self._properties_path
        path.touch(mode=0o600)
        path.write_text(write_properties(self.properties), encoding="utf-8")
        return path

    def _send(self, number: int) -> None:
        if self._process is None or not self._process.is_running():
            raise ValueError(f"node {self.id} is not running")
        self._process.send(number)

    def _ended(self) -> None:
        assert self._process is not None
        WATCHDOG.forget(self._process.pid)
        self._process = None


def wait_ready(nodes: Sequence[Node], known: int, timeout: float) -> None:
    """Wait until each of the nodes responds and knows `known` nodes. Raise KafkaFailed as `Node.wait_ready` does."""
    deadline = time.monotonic() + timeout
    for node in nodes:
        node._wait_ready(known, max(0.0, deadline - time.monotonic()), nodes)


def start_nodes(nodes: Sequence[Node], known: int, timeout: float, *, guarded: bool = True) -> None:
    """Start the nodes that are not running, with their data and ports, and wait until each knows `known` nodes.

    While a node was down, a connection of another program may have got one of its ports. The node is then started again
    until the port is free. Raise KafkaFailed if a node ends for another reason, or after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        for node in nodes:
            if not node.is_running:
                node.launch(guarded=guarded)
        try:
            wait_ready(nodes, known, max(0.0, deadline - time.monotonic()))
            return
        except PortInUse:
            if time.monotonic() + PORT_RETRY_SECONDS > deadline:
                raise
            time.sleep(PORT_RETRY_SECONDS)
