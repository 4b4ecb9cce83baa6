# SPDX-License-Identifier: Apache-2.0
"""The two passes of `make test` (tools/run_tests.py): tests that can run on a busy machine, and tests that cannot.

With KCODEC_TESTS=parallel the modules of QUIET are left out, with KCODEC_TESTS=quiet all others; without it everything
runs. A worker of pytest-xdist takes the tests of a file, or of all files that share an expensive fixture, in one piece:
a broker, a Spark or a PostgreSQL is started once in each worker that needs it. With KCODEC_TEST_RESULTS=FILE the
numbers of the outcomes, and the tests that failed, are written to that file.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

#: Tests of real time, and of processor time that grows with the input, which could fail if there were more processes
#: than processors. The longest come first, so that at the end no worker waits for the other.
QUIET = (
    *("test_client_exit", "test_producer_interrupted", "test_silent_consumers", "test_producer_broker_faults"),
    *("test_call_timeouts_broker", "test_log_follow", "test_client_clock", "test_threads", "test_security_sessions"),
    *("test_client_broker", "test_session_broker_producer", "test_held_back", "test_client_fork"),
    *("test_producer_causes", "test_client_security", "test_testing_proxy", "test_client_addresses"),
    *("test_client_network", "test_session_interrupted", "test_silent_calls", "test_log_follow_changes"),
    *("test_growth", "test_auxiliary_growth"),
)
#: Fixtures that live for the whole run and that few files share, as those use them: the files go to one worker.
SHARED = (r"\bspark: SparkSession\b", r"\btransaction_cluster\b", r"\bpostgres_server\b")
#: Modules of the first pass that take more than ten seconds: searches, compilers, memory, brokers that are killed,
#: waits. The longest come first, after the groups of SHARED, so that at the end no worker waits for another.
LONG = (
    *("test_spark_topic_stream", "test_call_timeouts", "test_spark_secrets", "test_kerberos", "test_leaving_broker"),
    *("test_fetch_memory", "test_new_partitions", "test_bombs", "test_compat_confluent_both", "test_last_work"),
    *("test_admin_cluster", "test_compat_confluent_transactions", "test_log_sources", "test_log_seek"),
    *("test_remedies", "test_forgotten_transactions", "test_cli_java", "test_admin_transactions"),
    *("test_security_broker", "test_pending_commits", "test_transaction_chaos", "test_refused_logins"),
    *("test_group_types", "test_cli_restore", "test_broker_against_kafka", "test_session_broker", "test_run_tests"),
    *("test_cli_consume_group", "test_spark_cluster", "test_admin_operations", "test_documented_permissions"),
    *("test_validation", "test_compat_aiokafka_behaviour"),
    *("test_fuzz_corpus", "test_java_agreement", "test_kip447", "test_transaction_claims", "test_broker_limits"),
    *("test_cli_convert", "test_transaction_permissions", "test_transaction_faults", "test_acls_against_kafka"),
    *("test_delegation_tokens", "test_consumer_corruption_broker", "test_client_event_loops"),
    *("test_decode_property", "test_spark_workers", "test_spark_topic_plan", "test_admin"),
    *("test_consumer_membership_broker", "test_packaging", "test_ended_subscriptions", "test_cli_dump"),
    *("test_read_replicas", "test_copy", "test_cli_calls", "test_second_ctrl_c", "test_consumer_iteration"),
    *("test_cli_produce", "test_observe", "test_encode_java"),
)


def selected() -> str:
    """The pass that runs: "parallel", "quiet", or "" for everything."""
    return os.environ.get("KCODEC_TESTS", "")


def is_selected(path: Path) -> bool:
    """Whether the tests of a file belong to the pass that runs."""
    return not selected() or (path.stem in QUIET) == (selected() == "quiet")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Do not import files of the other pass."""
    return True if collection_path.suffix == ".py" and not is_selected(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of the command line that belong to the other pass."""
    left_out = [item for item in items if not is_selected(item.path)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if is_selected(item.path)]
    if selected() == "parallel":
        tests = Counter(group_of(item.path) for item in items)
        items.sort(key=lambda item: (rank(item.path), -tests[group_of(item.path)], group_of(item.path)))
    elif selected() == "quiet":
        items.sort(key=lambda item: QUIET.index(item.path.stem))


@cache
def group_of(path: Path) -> str:
    """The tests that one worker takes in one piece: those of a file, or of all files with a fixture of SHARED."""
    text = path.read_text(encoding="utf-8")
    return next((fixture for fixture in SHARED if re.search(fixture, text)), str(path))


@cache
def rank(path: Path) -> int:
    """Return the position of a group in the order of the first pass: SHARED, LONG, other files with Spark, the rest."""
    first = (*SHARED, *LONG)
    for name in (group_of(path), path.stem):
        if name in first:
            return first.index(name)
    return len(first) + ("pytest.mark.spark" not in path.read_text(encoding="utf-8"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Schedule groups. (The marks of --dist loadgroup have no effect with pytest 9: xdist 3.8 renames tests for it.)"""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(config.rootpath / nodeid.partition("::")[0])

    config.option.loadscopereorder = False  # pytest_collection_modifyitems has sorted them
    return Groups(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the results for the line about both passes."""
    if "KCODEC_TEST_RESULTS" in os.environ:
        stats = terminalreporter.stats
        counts = {outcome: len(reports) for outcome, reports in stats.items() if outcome}
        failed = [getattr(report, "nodeid", "") for name in ("failed", "error") for report in stats.get(name, [])]
        results = json.dumps({"counts": counts, "failed": failed})
        Path(os.environ["KCODEC_TEST_RESULTS"]).write_text(results, encoding="utf-8")
