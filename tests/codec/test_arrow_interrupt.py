# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while a library reads an Arrow stream: the library raises its own error, and Python KeyboardInterrupt after
it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import time
from kcodec import _fast
{imports}

class Stream:
    def __arrow_c_stream__(self, requested_schema=None):
        return _fast.stream_capsule(("offset", "value"), "binary", self.batches())

    def batches(self):
        print("ready", flush=True)
        time.sleep(30)
        yield

try:
    {read}
except Exception as error:
    print("caught", type(error).__name__, flush=True)
print("went on", flush=True)
"""
READERS = {
    "polars": ("import polars", "polars.DataFrame(Stream())"),
    "pyarrow": ("import pyarrow", "pyarrow.RecordBatchReader.from_stream(Stream()).read_all()"),
}


@pytest.mark.parametrize("library", READERS)
def test_ctrl_c_is_raised_after_a_stream_was_read(library: str) -> None:
    """Also if the program catches every Exception of the library."""
    imports, read = READERS[library]
    program = PROGRAM.format(imports=imports, read=read)
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.2)
        os.kill(child.pid, signal.SIGINT)
        output, errors = child.communicate(timeout=20)
    finally:
        child.kill()
        child.wait()
    assert "went on" not in output
    assert child.returncode == -signal.SIGINT and "KeyboardInterrupt" in errors
