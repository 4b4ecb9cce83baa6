# SPDX-License-Identifier: Apache-2.0
"""The function that Spark calls for each micro-batch of `exactly_once`, with stand-ins for the session and the sink."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kcodec.spark import ExactlyOnceError, sink_query


class Context:
    """As a SparkContext, whose calls of the JVM fail after `stop`."""

    def __init__(self) -> None:
        self._properties: dict[str, str] | None = {sink_query.QUERY_ID: "query", sink_query.RUN_ID: "run"}

    def getLocalProperty(self, name: str) -> str:
        assert self._properties is not None, "the context is stopped"
        return self._properties[name]

    def stop(self) -> None:
        self._properties = None


def test_a_session_that_stops_during_a_batch_is_reported_as_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the batch makes no call of the JVM, whose error would replace the reason."""
    context, checked = Context(), list[str]()

    def write(*_: Any) -> None:
        context.stop()
        raise RuntimeError(sink_query.CANCELLED[0])

    settings = SimpleNamespace(application="etl")
    sink: Any = SimpleNamespace(write=write, transactions=SimpleNamespace(settings=settings))
    frame: Any = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context))
    session: Any = None
    monkeypatch.setattr(sink_query, "_digest", lambda *_: "")
    callback = sink_query.QueryCallback(sink, session)
    monkeypatch.setattr(callback, "_check_end_later", checked.append)
    with pytest.raises(ExactlyOnceError, match=rf"batch 3 is aborted, as the query was stopped \({sink_query.STOPPED}"):
        callback(frame, 3)
    assert checked == ["run"]
