# SPDX-License-Identifier: Apache-2.0
"""Show how src/kcodec is divided: files and code lines of each package, import circles, classes of equal names.

Usage: python tools/structure.py [--check]

Code lines are handwritten lines without comments, docstrings and blank lines. Imports at the top of a module and those
under TYPE_CHECKING count for circles; imports inside functions and under `if __name__ == "__main__"` do not. With
--check the exit status is 1 if there is a circle or a repeated class name that EXPLAINED_CIRCLES and EXPLAINED_NAMES do
not explain, or an explanation that is no longer needed. `tests/project/test_layering.py` reads imports by the functions
of this module.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parent.parent / "src"
PATTERNS = ("*.py", "*.pyx", "*.pxi", "*.c", "*.h")
GENERATED = re.compile(r"generated (by|from) .*do not edit", re.IGNORECASE | re.DOTALL)

#: Import circles that are intended, each with the reason.
EXPLAINED_CIRCLES: dict[frozenset[str], str] = {}
#: Packages whose modules intentionally declare the same classes, for another API or client. Their names count once.
COUNTERPARTS = {
    "kcodec.client.aio.": "kcodec.client.",
    "kcodec.compat._aiokafka_classes": "kcodec.compat._kafka_python_classes",
}
#: Names of classes that several modules declare, each with the reason.
EXPLAINED_NAMES: dict[str, str] = {
    "Broker": "the embedded broker, public; a broker in the metadata of a cluster",
    "Delivery": "public, to be waited for; its state in flows",
    "FetchSession": "the broker's side and the consumer's side of KIP-227",
    "GroupMember": "as Admin shows it; as assignors take it (Kafka's name); both public",
    "InternalRecord": "for the coordinators of the embedded broker; decoded, public",
    "Listener": "of the embedded broker; of Apache Kafka in tests",
    "Partition": "of the embedded broker; in the metadata of a cluster",
    "PatternType": "of ACLs, in the embedded broker; as Admin takes it, public",
    "ProducerState": "of producer snapshots; of DescribeProducers responses; as Admin shows it, public",
    "ResourceType": "of ACLs, in the embedded broker; as Admin takes it, public",
    "ScramCredentialDeletion": "Kafka's name of a part of a request; as Admin takes it, public",
    "ScramCredentialInfo": "Kafka's name of a part of a response; as Admin shows it, public",
    "ScramCredentialUpsertion": "Kafka's name of a part of a request; as Admin takes it, public",
    "Segment": "that the embedded broker writes; that is read, public",
    "State": "of the transaction coordinator; of a transactional producer",
    "TableDelivery": "public, to be waited for; its state in flows",
    "Timer": "of the embedded broker's clock; of the client's scheduler",
    "Topic": "of the embedded broker; in the metadata of a cluster",
    "Topics": "of the embedded broker; of a log directory",
    "Transaction": "public, of a producer; in a timeline of a log",
}


class Import(NamedTuple):
    """One import, with the full name of its module.

    is_early: it is executed when the importing module is imported. is_typing: it is only for type checkers.
    name: the name imported from the module, which may be a module itself; "" for the module.
    """

    module: str
    is_early: bool
    is_typing: bool = False
    name: str = ""

    @property
    def inner(self) -> str:
        """Full name of the imported name, if it is a module."""
        return f"{self.module}.{self.name}"


def source_files(*patterns: str) -> list[Path]:
    """Return the files of src/kcodec that match any of the patterns, sorted."""
    return sorted(path for pattern in patterns for path in (SOURCE / "kcodec").rglob(pattern))


def module_name(path: Path) -> str:
    """Return the module of a file: kcodec.log for log/__init__.py, kcodec._fast for each file of the core."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    if path.suffix != ".py":
        return "kcodec._fast"
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.AST, package: list[str], early: bool = True, typing: bool = False) -> Iterator[Import]:
    """Yield every import below `tree`. Relative imports are resolved against `package`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, early, typing) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:
                if module == "kcodec":
                    yield Import(f"{module}.{alias.name}", early, typing)
                else:
                    yield Import(module, early, typing, alias.name)
        elif isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case):
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            condition = ast.unparse(node.test) if isinstance(node, ast.If) else ""
            inside = inside or "__main__" in condition
            yield from imports(node, package, early and not inside, typing or "TYPE_CHECKING" in condition)


def cython_imports(text: str) -> Iterator[Import]:
    """Yield the imports of a Cython file, from its import lines. `cimport` is ignored."""
    for indent, module in re.findall(r"^([ \t]*)(?:from[ \t]+([\w.]+)[ \t]+)?import[ \t]", text, re.MULTILINE):
        if module:
            yield Import(module, not indent)
    for indent, names in re.findall(r"^([ \t]*)import[ \t]+([\w., \t]+)", text, re.MULTILINE):
        yield from (Import(name.split()[0], not indent) for name in names.split(","))


def imports_of(path: Path) -> Iterator[Import]:
    """Return the imports of one file."""
    if path.suffix != ".py":
        return cython_imports(path.read_text(encoding="utf-8"))
    name = module_name(path)
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    return imports(parsed(path), package)


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of nodes that reach each other (Tarjan's algorithm), each sorted."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        numbers[node] = lowest[node] = len(numbers)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in numbers:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], numbers[other])
        if lowest[node] == numbers[node]:
            at = stack.index(node)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1:
                found.append(sorted(group))

    for node in list(graph):
        if node not in numbers:
            visit(node)
    return found


@cache
def module_circles() -> list[list[str]]:
    """Return the groups of modules that import each other, directly or through others."""
    modules = {module_name(path): path for path in source_files("*.py")}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        early = {(found.module, found.inner) for found in imports_of(path) if found.is_early}
        graph[name] = {inner if inner in modules else module for module, inner in early} - {name}
    return sorted(circles(graph))


@cache
def equal_names() -> dict[str, list[str]]:
    """Return the names of classes that several modules declare, with these modules. Counterparts count once."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for path in source_files("*.py"):
        module = counterpart = module_name(path)
        for prefix, other in COUNTERPARTS.items():
            if module.startswith(prefix):
                counterpart = other + module.removeprefix(prefix)
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].setdefault(counterpart, module)
    return {name: sorted(homes.values()) for name, homes in sorted(found.items()) if len(homes) > 1}


def is_generated(path: Path) -> bool:
    """Return whether the beginning of the file marks it as generated."""
    return GENERATED.search(path.read_text(encoding="utf-8")[:600]) is not None


def python_lines(path: Path) -> int:
    """Return the number of code lines of a Python file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    code = {at for at, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")}
    docstrings: set[int] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno:
            code.update(range(node.lineno, (node.end_lineno or 0) + 1))
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                docstrings.update(range(first.lineno, (first.end_lineno or 0) + 1))
    return len(code - docstrings)


def cython_lines(text: str) -> int:
    """Return the number of code lines of Cython source. A string in triple quotes that begins its line is a
    docstring."""
    text = re.sub(r'^[ \t]*r?""".*?"""[ \t]*$', "", text, flags=re.MULTILINE | re.DOTALL)
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in text.splitlines())


def c_lines(text: str) -> int:
    """Return the number of code lines of C source."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    return sum(bool(line.strip()) for line in text.splitlines())


def code_lines(path: Path) -> int:
    """Return the number of code lines of one file."""
    if path.suffix == ".py":
        return python_lines(path)
    text = path.read_text(encoding="utf-8")
    return c_lines(text) if path.suffix in {".c", ".h"} else cython_lines(text)


class Size(NamedTuple):
    """The size of a package, without its sub-packages."""

    package: str
    files: int
    lines: int
    largest: int
    circles: int


def sizes() -> list[Size]:
    """Return the size of each package, without generated files."""
    lines: dict[str, list[int]] = defaultdict(list)
    for path in source_files(*PATTERNS):
        if not is_generated(path):
            lines[".".join(path.parent.relative_to(SOURCE).parts)].append(code_lines(path))
    found = [{module.rpartition(".")[0] for module in circle} for circle in module_circles()]
    return [
        Size(name, len(of), sum(of), max(of), sum(name in circle for circle in found))
        for name, of in sorted(lines.items())
    ]


def report() -> Iterator[str]:
    """Yield the lines that the program prints, without the findings of --check."""
    rows = sizes()
    yield f"{'package':32} {'files':>5} {'lines':>6} {'largest':>7} {'circles':>7}"
    for row in rows:
        yield f"{row.package:32} {row.files:5} {row.lines:6} {row.largest:7} {row.circles:7}"
    total = [sum(column) for column in zip(*((row.files, row.lines) for row in rows), strict=True)]
    python = sum(row.lines for row in rows if not row.package.startswith("kcodec._fast."))
    yield f"{'all':32} {total[0]:5} {total[1]:6}   of these {python} in Python and _fast.pyx"
    for circle in module_circles():
        yield f"circle of imports: {', '.join(circle)}"
    for name, homes in equal_names().items():
        if name not in EXPLAINED_NAMES:
            yield f"equal names: {name} in {', '.join(homes)}"


def faults(
    circles: Iterable[Iterable[str]],
    names: Mapping[str, Iterable[str]],
    explained_circles: Mapping[frozenset[str], str],
    explained_names: Mapping[str, str],
) -> Iterator[str]:
    """Yield the findings of --check: circles and names that are not explained, and explanations that are not needed."""
    found = {frozenset(circle) for circle in circles}
    for circle in sorted(map(sorted, found - explained_circles.keys())):
        yield f"modules import each other in a circle: {', '.join(circle)}; move what they share below both"
    for circle in sorted(map(sorted, explained_circles.keys() - found)):
        yield f"EXPLAINED_CIRCLES has a circle that is gone: {', '.join(circle)}; remove it"
    for name in sorted(names.keys() - explained_names.keys()):
        yield f"several modules declare a class {name}: {', '.join(names[name])}; rename one, or explain it"
    for name in sorted(explained_names.keys() - names.keys()):
        yield f"EXPLAINED_NAMES has a name that one module declares: {name}; remove it"


def main() -> int:
    """Print the report and, with --check, the findings. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if there is something to correct")
    arguments = parser.parse_args()
    print("\n".join(report()))
    wrong = list(faults(module_circles(), equal_names(), EXPLAINED_CIRCLES, EXPLAINED_NAMES)) if arguments.check else []
    for fault in wrong:
        print(f"tools/structure.py: {fault}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
