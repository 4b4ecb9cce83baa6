# SPDX-License-Identifier: Apache-2.0
"""Rust as a peer, where cargo is installed: kafka-protocol's RecordBatchDecoder (benchmarks/peers/rust).

It is built in the checkout's cache, with all that cargo downloads and its lock file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from peers.worker import Worker

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = Path(__file__).resolve().parent / "rust"
BUILD = ROOT / ".cache" / "bench" / "rust"


def environment() -> dict[str, str]:
    """Nothing outside the checkout is written."""
    return os.environ | {"CARGO_HOME": str(ROOT / ".cache" / "cargo"), "CARGO_TARGET_DIR": str(BUILD / "target")}


def version() -> dict[str, str]:
    """The versions of rustc and kafka-protocol; nothing where there is no cargo."""
    if not shutil.which("cargo"):
        return {}
    rust_version = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    manifest = (SOURCES / "Cargo.toml").read_text(encoding="utf-8")
    return {"rust": rust_version, "kafka-protocol": manifest.split('kafka-protocol = "=')[1].split('"')[0]}


def worker() -> Worker | None:
    """A worker, built if need be; None where there is no cargo."""
    if not shutil.which("cargo"):
        return None
    shutil.copytree(SOURCES, BUILD, dirs_exist_ok=True)
    subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=BUILD, env=environment(), check=True)
    return Worker("kafka-protocol", [str(BUILD / "target" / "release" / "fetch_worker")])
