# SPDX-License-Identifier: Apache-2.0
"""Functions and objects that are pickled for Spark's workers, whose Python may lack kcodec or have another version."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import kcodec

if TYPE_CHECKING:
    import pyarrow as pa

#: Environment variables of Python processes that Spark starts, from 4.0 on, and before.
WORKER_VARIABLES = frozenset({"SPARK_PYTHON_RUNTIME", "PYTHON_WORKER_FACTORY_SECRET"})
#: Environment variable for the level of the logger kcodec in processes that Spark starts.
LOG_LEVEL = "KCODEC_LOG_LEVEL"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
#: Process id -> number of modules that were loaded at the last call of `prepare_worker`. A forked worker has a copy.
_frozen: dict[int, int] = {}
BatchFunction = Callable[[Iterator["pa.RecordBatch"]], Iterator["pa.RecordBatch"]]


def prepare_worker() -> None:
    """Set the log level of a Python process of Spark, and exempt its modules from garbage collections. Call this when a
    task begins, and in the process that plans a query. It does nothing in processes that Spark has not started."""
    if os.environ.keys() & WORKER_VARIABLES:
        _set_log_level()
        _freeze_loaded_modules()


def _set_log_level() -> None:
    """Apply KCODEC_LOG_LEVEL to the logger kcodec. A program cannot configure the logging of these processes. Without a
    handler, Python would write only warnings to stderr.

    Raise ValueError if the level is unknown.
    """
    level = os.environ.get(LOG_LEVEL, "").strip().upper()
    if not level:
        return
    logger = logging.getLogger("kcodec")
    if level not in LEVELS:
        raise ValueError(
            f"environment variable {LOG_LEVEL} is {os.environ[LOG_LEVEL]!r}: expected one of {', '.join(LEVELS)}"
        )
    logger.setLevel(level)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)


def _freeze_loaded_modules() -> None:
    """Exempt the loaded modules from later garbage collections.

    Spark collects garbage after each task of a Python worker that it uses again. If pyarrow and pandas are loaded, this
    can take longer than the rest of a task (docs/design/spark-sink.md). This function does nothing if no module was
    loaded since the last call.
    """
    if _frozen.get(os.getpid()) == len(sys.modules):
        return
    _frozen[os.getpid()] = len(sys.modules)
    gc.freeze()  # without a collection, as Spark collects after the task before


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
                f"Spark's workers have kcodec {kcodec.__version__} of {sys.executable}, but the driver has kcodec "
                f"{driver_version} of {driver_python}: install the same version on both"
            )
        from kcodec.spark.workers import prepare_worker

        function: BatchFunction = pickle.loads(pickled)
        prepare_worker()
        return function(batches)

    return check_and_call


class SentToTasks:
    """A reader or writer that Spark pickles for its tasks. A worker with another version of kcodec raises an
    error before it unpickles anything that may be different in its version."""

    def __reduce__(self) -> tuple[Any, ...]:
        from pyspark import cloudpickle

        pickled: bytes = cloudpickle.dumps((type(self), self.__getstate__()))  # type: ignore[no-untyped-call]
        return received, (kcodec.__version__, sys.executable, pickled)


def received(driver_version: str, driver_python: str, pickled: bytes) -> Any:
    """Return what `SentToTasks` pickled. Raise RuntimeError if this version of kcodec is not that of the driver."""
    if kcodec.__version__ != driver_version:
        raise RuntimeError(
            f"Spark's workers have kcodec {kcodec.__version__} of {sys.executable}, but the driver has kcodec "
            f"{driver_version} of {driver_python}: install the same version on both"
        )
    kind, state = pickle.loads(pickled)
    found = kind.__new__(kind)
    found.__dict__.update(state)
    return found
