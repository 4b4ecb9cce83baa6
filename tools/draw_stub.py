# SPDX-License-Identifier: Apache-2.0
"""Write the docstrings of the compiled core into its stub, src/kcodec/_fast.pyi, where editors look for them.

Usage: python tools/draw_stub.py [--check]         --check: write nothing, fail if the stub is not what would be written

Signatures are written by hand, and compared with the core by stubtest.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from kcodec import _fast

ROOT = Path(__file__).resolve().parent.parent
STUB = ROOT / "src" / "kcodec" / "_fast.pyi"
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def definitions(body: list[ast.stmt], owner: object) -> Iterator[tuple[Definition, str]]:
    """Yield the classes, functions, methods and properties of a stub that have a docstring in the core, with it."""
    seen = set()
    for node in body:
        if not isinstance(node, Definition) or node.name in seen:  # only the first overload has the docstring
            continue
        seen.add(node.name)
        found = vars(owner).get(node.name)
        found = getattr(owner, node.name) if isinstance(found, classmethod) else found
        text = getattr(found, "__doc__", None)
        if text and not node.name.startswith("_"):
            yield node, inspect.cleandoc(text)
        if isinstance(node, ast.ClassDef) and found is not None:
            yield from definitions(node.body, found)


def draw(source: str) -> str:
    """Return the stub with the docstrings of the core, formatted by `ruff format`."""
    lines = source.splitlines()
    found = list(definitions(ast.parse(source).body, _fast))
    for node, text in sorted(found, key=lambda one: one[0].lineno, reverse=True):
        first = node.body[0]
        is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)  # a docstring, or ...
        start, end = first.lineno - 1, first.end_lineno if is_text else first.lineno - 1
        quote = 'r"""' if "\\" in text else '"""'
        end_of_text = "\n" if "\n" in text else ""
        new = textwrap.indent(f'{quote}{text}{end_of_text}"""', " " * (node.col_offset + 4)).splitlines()
        head = lines[start][: first.col_offset].rstrip()
        lines[start:end] = [head, *new] if head and is_text else new
    ruff = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", "_fast.pyi", "-"]
    source = "\n".join(lines) + "\n"
    return subprocess.run(ruff, input=source, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def main(arguments: list[str]) -> int:
    """Write the stub, or with --check only compare it. Return the exit status."""
    source = STUB.read_text(encoding="utf-8")
    drawn = draw(source)
    if drawn == source:
        return 0
    if arguments == ["--check"]:
        print(f"{STUB.name} has not the docstrings of the core; run: python tools/draw_stub.py", file=sys.stderr)
        return 1
    STUB.write_text(drawn, encoding="utf-8")
    print(f"{STUB.name}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
