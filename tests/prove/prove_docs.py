# SPDX-License-Identifier: Apache-2.0
"""The documentation site, built and searched; and its page on FastAPI, run with FastAPI on a real broker.

    PYTHONPATH=tools python tests/prove/prove_docs.py [--output FOLDER]

What `make docs` installs must be there. The site must build without a warning, load nothing from another host, and its
search must find the words of `build_docs.SEARCHED`.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import build_docs

from kcodec.testing.kafka import ApacheKafka

DOCS = build_docs.ROOT / "docs"


def site_problems(output: Path) -> list[str]:
    """Build the site and return what is wrong with it."""
    if build_docs.build(output):
        return ["the site does not build"]
    index = build_docs.search_index(output)
    for word in build_docs.SEARCHED:
        print(f"search: {word!r} is on {len(build_docs.pages_with(index, word))} pages")
    if build_docs.pages_with(index, "wordthatisnowhere"):
        return ["the search finds a word that is nowhere"]
    return build_docs.problems(output)


def fastapi_problems() -> list[str]:
    """Run the program of the page on FastAPI, and return what is wrong with its responses."""
    from fastapi.testclient import TestClient  # type: ignore[import-not-found,unused-ignore]

    text = (DOCS / "how-to" / "fastapi.md").read_text(encoding="utf-8")
    first, second = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    with ApacheKafka() as kafka:
        kafka.create_topic("orders", partitions=1)
        os.environ["SERVERS"] = kafka.bootstrap_servers
        names: dict[str, Any] = {"__name__": "app"}
        exec(compile(first + second, "fastapi.md", "exec"), names)
        with TestClient(names["app"]) as client:
            responses = [client.post(f"/orders/{number}", json={"item": "book"}) for number in range(3)]
        handled: list[int] = []
        has_all = threading.Event()

        async def handle(record: Any) -> None:
            handled.append(record.offset)
            if len(handled) == 1:
                raise ValueError("the first call fails")
            if record.offset == 2:
                has_all.set()

        consuming = names["FastAPI"](lifespan=names["lifespan_with_consumer"])
        consuming.state.handle = handle
        with TestClient(consuming):
            has_all.wait(60)
    found = [(response.status_code, response.json()) for response in responses]
    expected = [(201, {"partition": 0, "offset": number}) for number in range(3)]
    problems = [] if found == expected else [f"expected {expected}, got {found}"]
    if handled != [0, 0, 1, 2]:
        problems.append(f"the consumer in the background has handled the offsets {handled}")
    return problems


def main() -> int:
    """Run both; 0 if nothing is wrong."""
    parser = argparse.ArgumentParser(description="Build the documentation site and run the page on FastAPI.")
    parser.add_argument("--output", type=Path, default=build_docs.ROOT / "build" / "docs", help="folder of the site")
    problems = site_problems(parser.parse_args().output) + fastapi_problems()
    print("\n".join(problems) or "the site builds, its search works, and its page on FastAPI runs")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
