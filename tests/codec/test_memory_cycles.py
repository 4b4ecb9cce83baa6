# SPDX-License-Identifier: Apache-2.0
"""What holds a caller's memoryview may lie in a cycle: the collector takes both away, in a process of its own.

An exception that is kept with its traceback is such a cycle. A class that lends a Py_buffer out must not be cleared by
the collector before the buffer is given back, or the memoryview crashes it.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

CYCLE = """
import gc, weakref
import kcodec

class Node:
    pass

def make(data):
    node = Node()
    node.itself = node
    node.held = [memoryview(data)]
    node.held.append({made})
    return weakref.ref(node)

data = bytes(61)
references = [make(data) for _ in range(100)]
gc.collect()
assert not [reference for reference in references if reference() is not None]
array = bytearray(data)
make(array)
gc.collect()
array.append(1)  # a BufferError if the buffer were still lent
print("collected")
"""


@pytest.mark.parametrize(
    "made",
    ["kcodec.batches(node.held[0])", "kcodec.decode(node.held[0], on_error='stop', binary_type='binary_view')"],
)
def test_a_cycle_around_a_lent_buffer_is_collected(made: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CYCLE.replace("{made}", made)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "collected\n", "")
