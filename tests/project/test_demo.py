# SPDX-License-Identifier: Apache-2.0
"""`make demo` without Spark: the story that it tells, and that a wrong row ends it with an error."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import interleaved_transactions
import pytest

from kcodec.broker import Broker

DEMO = Path(__file__).resolve().parent.parent.parent / "examples" / "demo.py"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The program, not its namesake in tools/, with the arguments of its first part. It raises the level of the logger,
    which later tests of the process need as it was."""
    spec = importlib.util.spec_from_file_location("example_demo", DEMO)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr("sys.argv", ["demo.py", "story"])
    spec.loader.exec_module(module)
    logger = logging.getLogger("kcodec")
    level = logger.level
    yield module
    logger.setLevel(level)


def test_the_demo_shows_its_story_on_the_embedded_broker(demo: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    demo.main()
    printed = capfd.readouterr().out
    for text in ("8 aborted, 4 plain, 21 committed, 6 open", "ProducerFencedError", "ABORT marker", "├▒", "▶┃"):
        assert text in printed
    assert "DIFFER" not in printed and "equal" in printed


def test_the_demo_fails_if_a_reader_gets_another_row(demo: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "read", lambda *_: [])
    with pytest.raises(SystemExit, match="a reader got other rows"):
        demo.main()


def test_interleaved_transactions_end_as_they_were_written(kcodec_broker: Broker) -> None:
    servers = kcodec_broker.bootstrap_servers
    written = interleaved_transactions.write(servers)
    try:
        assert "another producer with transactional_id" in written.fenced
        assert interleaved_transactions.read(servers, written.topic) == written.visible()
        held_back = sum(outcome in ("committed", "plain") for _, outcome in written.rows) - len(written.visible())
        assert held_back == 5
    finally:
        written.close()
    # Once the open transaction is aborted, what was committed after it is visible, too.
    assert len(kcodec_broker.committed(written.topic)) == len(written.visible()) + held_back
