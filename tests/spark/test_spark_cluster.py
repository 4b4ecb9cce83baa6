# SPDX-License-Identifier: Apache-2.0
"""The same on a local-cluster: what the driver plans must reach executors that share nothing with it but files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from spark_truth import consumed, golden

pytestmark = pytest.mark.spark


def test_executors_that_are_other_processes(java_home: Path, tmp_path: Path) -> None:
    wanted = [golden("txn-mixed-0"), golden("txn-mixed-1"), golden("txn-open-0")]
    expected = sorted(
        [each.topic, each.partition, reported["offset"]]
        for each in wanted
        for reported in consumed(each, "read_committed")
    )
    script = Path(__file__).parent.parent / "support" / "spark_cluster.py"
    environment = {**os.environ, "JAVA_HOME": str(java_home), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"SPARK_WORKER_DIR": str(tmp_path / "work"), "SPARK_LOG_DIR": str(tmp_path / "log")}
    command = [sys.executable, str(script), *[str(each.path) for each in wanted]]
    ran = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    answers = json.loads(ran.stdout.splitlines()[-1])
    assert answers["source"] == expected
    assert answers["mapInArrow"] == expected
