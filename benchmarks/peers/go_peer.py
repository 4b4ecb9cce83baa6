# SPDX-License-Identifier: Apache-2.0
"""Go as a peer, where Go is installed: franz-go's ProcessFetchPartition (benchmarks/peers/go)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from peers.worker import Worker

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = Path(__file__).resolve().parent / "go"
BINARY = ROOT / ".cache" / "bench" / "go-worker"


def environment() -> dict[str, str]:
    """Modules and what is built stay in the checkout's cache."""
    folder = ROOT / ".cache" / "go"
    flags = "-buildvcs=false -modcacherw -mod=readonly"
    return os.environ | {"GOPATH": str(folder), "GOCACHE": str(folder / "build"), "GOFLAGS": flags}


def version() -> dict[str, str]:
    """The versions of Go and of franz-go; nothing where there is no Go."""
    if not shutil.which("go"):
        return {}
    go_version = subprocess.run(["go", "version"], capture_output=True, text=True, check=True).stdout.split()[2]
    module = (SOURCES / "go.mod").read_text(encoding="utf-8").split("twmb/franz-go ")[1].split()[0]
    return {"go": go_version, "franz-go": module}


def worker() -> Worker | None:
    """A worker, built if need be; None where there is no Go."""
    if not shutil.which("go"):
        return None
    subprocess.run(["go", "build", "-o", str(BINARY), "."], cwd=SOURCES, env=environment(), check=True)
    return Worker("franz-go", [str(BINARY)])
