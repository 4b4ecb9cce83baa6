# SPDX-License-Identifier: Apache-2.0
"""Result files of tests of other projects: each command has one report, with its date and versions."""

from __future__ import annotations

import datetime
import importlib
import sys
from pathlib import Path

import kcodec

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
peer_reports = importlib.import_module("peer_reports")
peer_librdkafka = importlib.import_module("peer_librdkafka")
sys.path.remove(str(ROOT / "tools"))


def report(client: str, counts: str, *lines: str) -> list[str]:
    """Return the lines of a report as the tools make them."""
    return [f"{client}: {counts}", peer_reports.command_line("tools/run.py", [f"{client}=CHECKOUT"]), *lines]


def test_a_later_run_replaces_the_report_of_its_command(tmp_path: Path) -> None:
    """The reports of other commands stay, in their order."""
    path = tmp_path / "results.txt"
    first, second = report("one", "1 passed, 1 failed", "  failed, a reason:", "    test"), report("two", "3 passed")
    again, third = report("one", "2 passed"), report("three", "1 passed")
    for lines in (first, second, again, third, third):
        peer_reports.write_report(path, lines)
    assert path.read_text("utf-8") == "\n\n".join("\n".join(lines) for lines in (again, second, third)) + "\n"


def test_a_report_names_its_command_and_the_versions() -> None:
    line = peer_reports.command_line("tools/run.py", ["one=CHECKOUT", "-k", "test_a or test_b"])
    assert line.startswith(f"  python tools/run.py one=CHECKOUT -k 'test_a or test_b', on {datetime.date.today()}, ")
    assert f"kcodec {kcodec.__version__}, " in line


LIBRDKAFKA_LOG = """
[36m[0042_many_topics           /  0.000s] ================= Running test 0042_many_topics =================
[33m[0171_share_consumer_consume /  0.000s] WARN: SKIPPING TEST: included in TESTS_SKIP list
[33m[0173_share_local           /  0.000s] WARN: SKIPPING TEST: included in TESTS_SKIP list
[33m[0097_ssl_verify            /  0.000s] WARN: SKIPPING TEST: Test requires SSL_* env-vars set up by trivup
[33m[0004_conf                  /  0.000s] WARN: SKIPPING TEST: Filtered due to negative test flags
[31m### Test "0081_admin (do_test_AlterConfigs:725)" failed at 0081-admin.c:882:do_test_AlterConfigs() at Mon: ###
ConfigResource #1: expected NO_ERROR (0), got INVALID_REQUEST
--
[31m### Test "0081_admin (do_test_AlterConfigs:725)" failed at 0081-admin.c:891:do_test_AlterConfigs() at Mon: ###
See 1 previous failure(s)
"""


def test_results_of_librdkafka_have_the_reasons_of_its_log() -> None:
    """The first message of a test counts. Tests that need no broker, or that were not selected, are left out."""
    states = {"<MAIN>": "PASSED", "0042_many_topics": "PASSED", "0081_admin": "FAILED", "0099_commit": "RUNNING"}
    states |= dict.fromkeys(("0004_conf", "0097_ssl_verify", "0171_share_consumer_consume"), "SKIPPED")
    states |= dict.fromkeys(("0173_share_local", "0107_topic_recreate"), "SKIPPED")
    tests = [{"name": name, "state": state, "duration": 1.5} for name, state in states.items()]
    results = {one.test: (one.status, one.message) for one in peer_librdkafka.results_of(tests, LIBRDKAFKA_LOG)}
    assert results == {
        "0042_many_topics": ("passed", ""),
        "0081_admin": ("failed", "ConfigResource #1: expected NO_ERROR (0), got INVALID_REQUEST"),
        "0097_ssl_verify": ("skipped", "Test requires SSL_* env-vars set up by trivup"),
        "0099_commit": ("failed", "RUNNING"),
        "0171_share_consumer_consume": ("skipped", "needs share groups"),
    }
