# SPDX-License-Identifier: Apache-2.0
"""Functions on their way to Spark's workers, whose Python may lack kcodec or have another version of it."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import kcodec

if TYPE_CHECKING:
    import pyarrow as pa

#: Processes whose modules are exempt from garbage collection, by process id: a forked worker has those of its parent.
_exempted: set[int] = set()
BatchFunction = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


def exempt_modules() -> None:
    """Exempt what a worker has loaded from later garbage collections; once in each process.

    Spark collects garbage after each task of a Python worker that it uses again. With pyarrow and pandas loaded that
    takes 40 ms of processor time, more than a task of the exactly-once sink needs for 100,000 rows.
    """
    import pyarrow as pa

    if os.getpid() in _exempted:
        return
    _exempted.add(os.getpid())
    pa.scalar(0)  # pyarrow imports pandas here, if it is installed
    gc.collect()
    gc.freeze()


def for_workers(function: BatchFunction) -> BatchFunction:
    """Return a function for ``mapInArrow`` that checks the Python of the worker, then calls the given one.

    A worker without kcodec would fail while it unpickles the given function, with the name of a missing module and no
    more. The one returned is unpickled without kcodec, as cloudpickle sends nested functions by value and everything
    that this one needs of kcodec is in bytes.
    """
    from pyspark import cloudpickle

    pickled: bytes = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    driver_python, driver_version = sys.executable, kcodec.__version__

    def check_and_call(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pickle
        import sys

        try:
            import kcodec
        except ImportError as error:
            raise ModuleNotFoundError(
                f"kcodec cannot be imported by {sys.executable}, the Python of Spark's workers: {error}. The driver "
                f"runs {driver_python}. Install kcodec for the workers, or set PYSPARK_PYTHON to a Python that has it "
                "before the session starts"
            ) from error
        if kcodec.__version__ != driver_version:
            raise RuntimeError(
                f"kcodec {kcodec.__version__} of {sys.executable}, the Python of Spark's workers, is not kcodec "
                f"{driver_version} of {driver_python}, the driver's: install the same version on both"
            )
        function: BatchFunction = pickle.loads(pickled)
        return function(batches)

    return check_and_call
