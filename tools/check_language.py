# SPDX-License-Identifier: Apache-2.0
"""Report words of the project's old private vocabulary where people read them: source, documentation, test names.

Usage: python tools/check_language.py [--words] [FILE_OR_FOLDER ...]

WORDS has each word with its replacement. Everything in COVERED is searched whole: identifiers, comments, docstrings,
texts. Of the tests only names of files, classes and functions are searched. EXEMPT lists public names and quotations.
Each occurrence is printed as FILE:LINE: WORD, and the exit status is then 1. With --words the words are counted.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".py", ".pyi", ".pyx", ".pxi", ".pxd", ".c", ".h", ".md", ".toml", ".java", ".txt", ".cfg", ".in", ""}

#: Words to avoid, as regular expressions in lower case, and what to write instead.
WORDS = {
    "faces?": "API, public class",
    "carriers?": "I/O thread or event loop",
    "twins?": "counterpart",
    r"settl(?:e|es|ed|ing|ement|ements)": "complete (a batch), resolve (a transaction), handle (a response)",
    r"damag(?:e|es|ed|ing)": "corruption, corrupt",
    "fates?": "outcome",
    "goodbyes?": "leave heartbeat, LeaveGroup",
    "farewells?": "leave heartbeat, LeaveGroup",
    "anew": "again",
    "for ever": "forever",
    "is none": "is invalid, is not one of",
    "whoever": "a program is a thing: the caller, the process that",
    "nobody": "no process, no caller",
    "beside": "next to, compared with, in addition to",
    "so many": "the number, at most N",
    "so long": "the duration, for up to N",
    "so often": "the interval, every N",
    "somebody": "a program is a thing: the caller, another process",
    "told": "reported, passed, distinguished",
    "tells": "reports, shows, distinguishes",
    "carried by": "run by",
    "heart": "core",
    "probing": "sequence probe",
    "treatments?": "error disposition",
}

SKIPPED = {"kcodec.egg-info", "__pycache__", "results"}

#: Files and folders that are searched.
COVERED = (
    *("src", "docs", "tools", "examples", "benchmarks/README.md"),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "Makefile", "pyproject.toml", "setup.py"),
)
#: Files and folders in COVERED that are not searched, because they have not been rewritten yet.
REMAINING: tuple[str, ...] = ()
#: Folders of tests: names only.
TESTS: tuple[str, ...] = ("tests",)

#: Lines that may contain a word, each by its file (or "*") and a text of the line, with the reason.
EXEMPT: dict[tuple[str, str], str] = {
    ("*", ".beside("): "Segment.beside, a public name",
    ("src/kcodec/log/segment.py", "def beside("): "Segment.beside, a public name",
    ("*", ".settled("): "Log.settled, a public name",
    ("src/kcodec/log/partition.py", "def settled("): "Log.settled, a public name",
}
MOST_EXEMPT = 20


class Occurrence(NamedTuple):
    """A word of the vocabulary at a line of a file."""

    path: Path
    line: int
    word: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.word!r}: write {self.remedy}"


def compiled(word: str) -> re.Pattern[str]:
    """Return a pattern for a word in prose, snake_case, CamelCase and CAPITALS; a space matches a line break, too."""
    forms = []
    for form in (word, word[0].upper() + word[1:]):
        forms.append(form.replace(" ", r"\s+(?:(?:#:?|//|\*)\s*)?"))
    lower, title = forms
    patterns = [rf"(?<![A-Za-z]){lower}(?![a-z])", rf"(?<![A-Z]){title}(?![a-z])"]
    if " " not in word:
        patterns.append(rf"(?<![A-Za-z])(?i:{lower})(?<=[A-Z])(?![A-Za-z])")
    return re.compile("|".join(patterns))


PATTERNS = {compiled(word): remedy for word, remedy in WORDS.items()}
TEST_NAME = re.compile(r"^ *(?:async +)?(?:def|class) +([Tt]est\w+)", re.MULTILINE)


def occurrences(path: Path, text: str) -> Iterator[Occurrence]:
    """Yield the occurrences in a text of a file that are not exempt."""
    lines = text.splitlines()
    for pattern, remedy in PATTERNS.items():
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start())
            if not is_exempt(path, lines[line]):
                yield Occurrence(path, line + 1, " ".join(match[0].split()), remedy)


def is_exempt(path: Path, line: str) -> bool:
    """Return whether EXEMPT names this line."""
    name = str(path.relative_to(ROOT))
    for file, quoted in EXEMPT:
        if file in ("*", name) and quoted in line:
            used_exemptions.add((file, quoted))
            return True
    return False


used_exemptions: set[tuple[str, str]] = set()


def test_names(text: str) -> str:
    """Return the text with everything but the names of its functions and classes removed, line by line."""
    names = {text.count("\n", 0, match.start(1)): match[1] for match in TEST_NAME.finditer(text)}
    return "\n".join(names.get(line, "") for line in range(text.count("\n") + 1))


def files(names: tuple[str, ...]) -> Iterator[Path]:
    """Yield the text files below files and folders, without what is generated by compilers."""
    for name in names:
        path = ROOT / name
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in found:
            is_text = file.is_file() and file.suffix in SUFFIXES
            if is_text and not SKIPPED & set(file.parts) and file.name != Path(__file__).name:
                yield file


def is_remaining(path: Path) -> bool:
    """Return whether a file is in REMAINING."""
    name = path.relative_to(ROOT).as_posix()
    return any(name == one or name.startswith(f"{one}/") for one in REMAINING)


def find(covered: tuple[str, ...], tests: tuple[str, ...]) -> list[Occurrence]:
    """Return the occurrences in the covered files, and in the names of the tests."""
    found = [occurrence for path in files(covered) for occurrence in occurrences(path, path.read_text())]
    for path in files(tests):
        if not path.name.startswith("test_"):
            continue
        text = test_names(path.read_text()) if path.suffix == ".py" else ""
        found += occurrences(path, text)
        found += [one._replace(line=1) for one in occurrences(path, path.stem)]
    return sorted(found, key=lambda one: (str(one.path), one.line))


def main() -> int:
    """Print the occurrences, and return 1 if there are any, or if an exemption is not needed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="files and folders to search instead of those that are covered")
    parser.add_argument("--words", action="store_true", help="print the number of occurrences of each word as well")
    arguments = parser.parse_args()
    paths = [str(Path(path).resolve().relative_to(ROOT)) for path in arguments.paths]
    if paths:
        tests = tuple(path for path in paths if path.startswith("tests"))
        found = find(tuple(path for path in paths if path not in tests), tests)
    else:
        found = [one for one in find(COVERED, TESTS) if not is_remaining(one.path)]
    problems = [str(one) for one in found]
    if not paths:
        problems += [f"EXEMPT {key} is not needed any more" for key in EXEMPT if key not in used_exemptions]
    if len(EXEMPT) > MOST_EXEMPT:
        problems.append(f"EXEMPT has {len(EXEMPT)} entries, at most {MOST_EXEMPT} are allowed")
    for problem in problems:
        print(problem)
    if arguments.words:
        for word, count in Counter(one.word.lower() for one in found).most_common():
            print(f"{count:6} {word}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
