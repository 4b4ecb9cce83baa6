# SPDX-License-Identifier: Apache-2.0
"""Build the documentation site and check that it has no warnings, no broken links and nothing loaded from other hosts,
and that its search finds certain words.

Usage: python tools/build_docs.py [--output DIRECTORY]

The site is static. Its search works without a server, and no page loads a font, a script or a style sheet from
another host.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
#: Words that the search must find; `tests/prove/prove_docs.py` builds the site and checks this.
SEARCHED = ("flush", "read_committed", "aborted", "SIGTERM", "install")
LOADED = re.compile(r"<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=\"((?:https?:)?//[^\"]+)\"")


def build(output: Path) -> int:
    """Run Sphinx; every warning is an error. Return its exit status."""
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "--builder",
        "html",
        "--fail-on-warning",
        "--nitpicky",
        "--quiet",
        "--fresh-env",
    ]
    return subprocess.run([*command, "--jobs", "auto", ROOT / "docs", output], check=False).returncode


def search_index(output: Path) -> dict[str, Any]:
    """Return the index that the search of the site uses."""
    text = (output / "searchindex.js").read_text(encoding="utf-8")
    found = re.fullmatch(r"Search\.setIndex\((.*)\)\s*", text, re.DOTALL)
    if not found:
        raise ValueError(f"{output / 'searchindex.js'}: not in the form that Sphinx writes")
    index: dict[str, Any] = json.loads(found[1])
    return index


def pages_with(index: dict[str, Any], word: str) -> list[str]:
    """Return the pages on which the search finds a word, in text or titles. Words are stemmed as in the browser."""
    snowballstemmer = importlib.import_module("snowballstemmer")  # comes with Sphinx, which tests do not need

    stem = snowballstemmer.stemmer("english" if "english" in snowballstemmer.algorithms() else "porter")
    known = {word.lower(), stem.stemWord(word.lower())}
    numbers: set[int] = set()
    for terms in (index["terms"], index["titleterms"]):
        for term in known & terms.keys():
            numbers |= set(terms[term] if isinstance(terms[term], list) else [terms[term]])
    return [index["docnames"][number] for number in sorted(numbers)]


def loaded_from_elsewhere(output: Path) -> list[str]:
    """Return what the pages load from other hosts."""
    found = []
    for page in sorted(output.rglob("*.html")):
        found += [f"{page.relative_to(output)}: {url}" for url in LOADED.findall(page.read_text(encoding="utf-8"))]
    for sheet in sorted(output.rglob("*.css")):
        urls = re.findall(r"(?:@import|url\()\s*['\"]?((?:https?:)?//[^'\")]+)", sheet.read_text(encoding="utf-8"))
        found += [f"{sheet.relative_to(output)}: {url}" for url in urls]
    return found


def problems(output: Path) -> list[str]:
    """Return what is wrong with a built site."""
    index = search_index(output)
    found = [f"the search does not find {word!r}" for word in SEARCHED if not pages_with(index, word)]
    return found + [f"loaded from another host: {one}" for one in loaded_from_elsewhere(output)]


def main() -> int:
    """Build and check the site. Return 0 if there are no problems."""
    parser = argparse.ArgumentParser(description="Build the documentation site and check it.")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "docs", help="folder of the site")
    output = parser.parse_args().output
    status = build(output)
    if status:
        return status
    for problem in (found := problems(output)):
        print(f"docs: {problem}", file=sys.stderr)
    if not found:
        print(f"{output / 'index.html'}: {len(search_index(output)['docnames'])} pages")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
