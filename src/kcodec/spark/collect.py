# SPDX-License-Identifier: Apache-2.0
"""The rows of a DataFrame, from a Spark job that Ctrl-C cancels.

If Ctrl-C interrupts `DataFrame.collect()` in PySpark, the job goes on and keeps its slots until its tasks end. In
addition, the response of the JVM is still unread, and the next call in this thread takes it for its own response.
The handler of PySpark for SIGINT cannot cancel the job either, because the connection of the thread is in use. The job
therefore runs in another thread, with the local properties (job group, description, pool) of the caller's thread.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from kcodec.errors import one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

log = logging.getLogger("kcodec.spark")
#: Seconds to wait for the end of a cancelled job. The job may not have begun when it is cancelled for the first time.
CANCEL_SECONDS = 10.0
CANCEL_AGAIN_SECONDS = 0.2
#: Maximum number of characters of an error in a log line.
MAX_ERROR_CHARACTERS = 300


def collect_rows(frame: DataFrame) -> list[Row]:
    """Return the rows of a DataFrame. If an exception such as KeyboardInterrupt interrupts the main thread meanwhile,
    cancel only the job of this call."""
    if threading.current_thread() is not threading.main_thread():  # a signal interrupts only the main thread
        return frame.collect()
    if ".connect." in type(frame).__module__:
        return _collected_remotely(frame)
    if not _is_pinned():
        return frame.collect()
    return _collected_in_thread(frame)


def _is_pinned() -> bool:
    """Return whether each thread of Python has its own thread in the JVM (PYSPARK_PIN_THREAD, true by default)."""
    from py4j.clientserver import ClientServer
    from pyspark import SparkContext

    return isinstance(SparkContext._gateway, ClientServer)


def _collected_in_thread(frame: DataFrame) -> list[Row]:
    from pyspark import InheritableThread

    context = frame.sparkSession.sparkContext
    tag = _new_tag()
    future: Future[list[Row]] = Future()

    def collect() -> None:
        context.addJobTag(tag)  # ends with this thread
        future.set_result(frame.collect())

    class JobThread(InheritableThread):
        """A thread whose errors are raised to the caller. InheritableThread sets the local properties before it calls
        `collect`, and this fails if the context was stopped or the JVM is lost."""

        def run(self) -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                super().run()
            except BaseException as error:
                if future.done():
                    raise
                future.set_exception(error)

    thread = JobThread(target=collect, name="kcodec-spark-job", daemon=True)
    try:
        thread.start()
        return future.result()
    except BaseException:
        # If the interruption came before the thread has run, cancel() returns True, and the thread starts no job.
        if not future.cancel() and not future.done():
            _cancel(lambda: context.cancelJobsWithTag(tag), future)
        raise


def _cancel(cancel: Callable[[], None], future: Future[Any]) -> None:
    """Cancel a job, and repeat this until its thread has ended or CANCEL_SECONDS have passed."""
    deadline = time.monotonic() + CANCEL_SECONDS
    while not future.done() and time.monotonic() < deadline:
        if not _is_cancelled(cancel):
            return
        time.sleep(CANCEL_AGAIN_SECONDS)
    if not future.done():
        log.warning("the Spark job of an interrupted call did not end in %g s after it was cancelled", CANCEL_SECONDS)


def _is_cancelled(cancel: Callable[[], object]) -> bool:
    """Cancel a job once. Return False and log the error if this fails, so that it does not replace the exception that
    has interrupted the call."""
    try:
        cancel()
    except Exception as error:  # noqa: BLE001  of Py4J or gRPC, for example because the JVM or the server is lost
        text = one_line(str(error), MAX_ERROR_CHARACTERS)
        log.warning("the Spark job of an interrupted call could not be cancelled: %s: %s", type(error).__name__, text)
        return False
    return True


def _collected_remotely(frame: DataFrame) -> list[Row]:
    """Return the rows of a DataFrame of Spark Connect."""
    session: Any = frame.sparkSession
    tag = _new_tag()
    session.addTag(tag)
    try:
        return frame.collect()
    except Exception:
        raise
    except BaseException:
        _is_cancelled(lambda: session.interruptTag(tag))
        raise
    finally:
        session.removeTag(tag)


def _new_tag() -> str:
    return f"kcodec-{uuid.uuid4().hex}"
