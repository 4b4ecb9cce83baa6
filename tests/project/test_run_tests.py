# SPDX-License-Identifier: Apache-2.0
"""`make test` in two passes: every test runs once, and a failure in either pass is a failure of both."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import parallel_tests
import pytest
from run_tests import NO_TESTS, closing_line, exit_status

ROOT = Path(__file__).resolve().parent.parent.parent
PASSES, FAILS = "def test_it():\n    pass\n", "def test_it():\n    raise AssertionError\n"
#: In a worker, and all in the same one.
WORKER = """
import os
import pytest
SEEN = []
@pytest.mark.parametrize("number", range(8))
def test_it(number):
    assert os.environ["PYTEST_XDIST_WORKER"] and len(SEEN) == number
    SEEN.append(number)
"""
#: One module of each pass.
PARALLEL, QUIET = "test_some.py", "test_client_clock.py"


def run(folder: Path, modules: Mapping[str, str], *arguments: str) -> tuple[int, list[str]]:
    """Run tools/run_tests.py in a folder with these modules; return its exit status and its lines."""
    (folder / "conftest.py").write_text("pytest_plugins = ['parallel_tests']\n")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p xdist.plugin -p no:cacheprovider\n")
    for name, text in modules.items():
        (folder / name).write_text(text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KCODEC_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "run_tests.py", *arguments],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(ROOT / "tests" / "support"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize(
    ("parallel", "quiet", "arguments", "status", "ended"),
    [
        (WORKER, FAILS, (), 1, "1 failed, 8 passed"),
        (PASSES, WORKER, (), 0, "9 passed"),
        (FAILS, PASSES, (), 1, "1 failed, 1 passed"),
        (PASSES, PASSES, (f"{QUIET}::test_it",), 0, "1 passed"),
        (PASSES, PASSES, ("-k", "nothing"), NO_TESTS, "no tests ran"),
    ],
    ids=["quiet-fails", "quiet-workers", "parallel-fails", "one-selected", "none-selected"],
)
def test_two_passes_end_as_one(
    tmp_path: Path, parallel: str, quiet: str, arguments: tuple[str, ...], status: int, ended: str
) -> None:
    found, lines = run(tmp_path, {PARALLEL: parallel, QUIET: quiet}, *arguments)
    assert found == status, lines
    assert lines[-1].strip("= ").startswith(f"{ended} in ") and lines[-1].strip("= ").endswith("(both passes)")


#: Fails when it runs first, in either pass, or always.
FIRST = """
from pathlib import Path
import pytest
@pytest.mark.parametrize("number", range({number}))
def test_it(number):
    seen = Path(f"seen-{{number}}")
    if not seen.exists() or {always}:
        seen.write_text("")
        raise AssertionError("the machine was busy")
"""


@pytest.mark.parametrize(
    ("number", "always", "unstable", "status", "ended"),
    [
        (3, False, 3, 0, "4 passed"),
        (1, True, 0, 1, "1 failed, 1 passed"),
        (4, False, 0, 1, "4 failed, 1 passed"),
    ],
    ids=["unstable", "fails-again", "too-many"],
)
def test_a_few_failed_tests_run_once_more_alone(
    tmp_path: Path, number: int, always: bool, unstable: int, status: int, ended: str
) -> None:
    found, lines = run(tmp_path, {PARALLEL: FIRST.format(number=number, always=always), QUIET: PASSES})
    assert found == status, lines
    assert lines[-1].strip("= ").startswith(f"{ended} in ")
    assert len([line for line in lines if line.startswith(f"UNSTABLE {PARALLEL}::test_it[")]) == unstable
    assert any("the machine was busy" in line for line in lines)


@pytest.mark.parametrize(
    ("statuses", "status"), [((0, 0), 0), ((0, 5), 0), ((5, 0), 0), ((5, 5), 5), ((5, 1), 1), ((1, 0), 1), ((2,), 2)]
)
def test_one_exit_status(statuses: tuple[int, ...], status: int) -> None:
    assert exit_status(statuses) == status


def test_the_closing_line_counts_both_passes() -> None:
    line = closing_line(Counter({"passed": 15_000, "failed": 1, "skipped": 2}), 61.5)
    assert line.strip("=") == " 1 failed, 15000 passed, 2 skipped in 61.50s (both passes) "


def test_modules_that_are_scheduled_by_name_are_there() -> None:
    """One that was renamed would run in the other pass, or last."""
    assert {path.stem for path in (ROOT / "tests").rglob("test_*.py")} >= {*parallel_tests.QUIET, *parallel_tests.LONG}
    assert set(parallel_tests.LONG).isdisjoint(parallel_tests.QUIET)


def test_long_files_of_the_first_pass_begin_first(tmp_path: Path) -> None:
    """Groups with a shared fixture, then LONG in its order, then Spark, then the files with the most tests."""
    last_long, first_long = parallel_tests.LONG[-1], parallel_tests.LONG[0]
    shared = parallel_tests.SHARED[-1].replace(r"\b", "")
    texts = {
        "test_few": PASSES,
        "test_many": "import pytest\n\n\n@pytest.mark.parametrize('number', range(3))\ndef test_it(number): ...\n",
        last_long: PASSES,
        first_long: PASSES,
        "test_starts_spark": f"# pytest.mark.spark\n{PASSES}",
        "test_shares": f"# {shared}\n{PASSES}",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    found, lines = run(tmp_path, {}, "--collect-only", "-q", "-n", "0")
    assert found == 0, lines
    order = list(dict.fromkeys(line.partition(".py::")[0] for line in lines if ".py::" in line))
    assert order == ["test_shares", first_long, last_long, "test_starts_spark", "test_many", "test_few"]


def test_garbage_collection_leaves_out_the_collected_tests(request: pytest.FixtureRequest) -> None:
    """With all tests, a collection would take 0.4 s. `gc.get_objects` does not return what is exempt."""
    assert not any(tracked is request.session for tracked in gc.get_objects())
