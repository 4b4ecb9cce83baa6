# SPDX-License-Identifier: Apache-2.0
"""The consumer in the background of docs/how-to/fastapi.md, without FastAPI: what happens if the handler fails."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kcodec.broker import Broker

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "fastapi.md"
IMPORTS = "import os\nfrom contextlib import asynccontextmanager\nfrom kcodec.client import aio\n"


def test_a_handler_that_fails_is_logged_and_gets_the_record_again(
    kcodec_broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kcodec_broker.create_topic("orders", partitions=1)
    kcodec_broker.seed("orders", [b"0", b"1", b"2"])
    monkeypatch.setenv("SERVERS", kcodec_broker.bootstrap_servers)
    _, program = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert program.count("asyncio.sleep(5)") == 1
    names: dict[str, Any] = {}
    exec(compile(IMPORTS + program.replace("asyncio.sleep(5)", "asyncio.sleep(0.1)"), "fastapi.md", "exec"), names)

    async def main() -> list[bytes]:
        handled: list[bytes] = []
        has_all = asyncio.Event()

        async def handle(record: Any) -> None:
            handled.append(record.value)
            if len(handled) == 1:
                raise ValueError("the first call fails")
            if record.value == b"2":
                has_all.set()

        app = SimpleNamespace(state=SimpleNamespace(handle=handle))
        async with names["lifespan_with_consumer"](app):
            await asyncio.wait_for(has_all.wait(), 30)
        assert len(asyncio.all_tasks()) == 1
        return handled

    with caplog.at_level(logging.ERROR, "app"):
        assert asyncio.run(main()) == [b"0", b"0", b"1", b"2"]
    assert "the consumer has failed" in caplog.text
    assert "the first call fails" in caplog.text
