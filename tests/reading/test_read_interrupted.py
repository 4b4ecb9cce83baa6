# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends the reads of a topic at once while no broker responds, also with the signal handler of polars."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack

HEAD = """
import polars, logging, sys
import kcodec
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
"""
#: Logged by the I/O thread while the call waits.
WAITING = "no connection: Connection refused"
#: Nothing listens on this port.
OPTIONS = 'bootstrap_servers="127.0.0.1:1"'
PROGRAMS = {
    "read_topic": f'kcodec.read_topic("orders", {OPTIONS})',
    "read_ranges": f'kcodec.read_ranges(kcodec.OffsetRange("orders", 0, 0, 5), {OPTIONS})',
    "scan_topic": f'kcodec.scan_topic("orders", {OPTIONS}).collect()',
}


def test_ctrl_c_ends_a_read_in_a_program_with_polars() -> None:
    """polars installs its handler with SA_RESTART, and runs a scan on a thread that Python does not interrupt."""
    with ExitStack() as stack:
        children: dict[str, subprocess.Popen[str]] = {}
        for name, call in PROGRAMS.items():
            command = [sys.executable, "-c", HEAD + call]
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            children[name] = stack.enter_context(child)
            stack.callback(child.kill)
        for name, child in children.items():
            assert child.stdout is not None
            assert any(WAITING in line for line in child.stdout), name
        for child in children.values():
            os.kill(child.pid, signal.SIGINT)
        for name, child in children.items():
            assert child.wait(timeout=20) == -signal.SIGINT, name
