# SPDX-License-Identifier: Apache-2.0
"""Packs a folder of captured broker bytes and their truth into tests/golden/golden.tar.xz, the same bytes every time.

Run: make_golden_archive.py FOLDER. Names are sorted, times zero, owner 0; before packing, every file is compared with
the sizes and SHA-256 sums in FOLDER/manifest.json, so that a corrupt capture is not packed.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import lzma
import sys
import tarfile
from pathlib import Path

ARCHIVE = Path(__file__).resolve().parent.parent / "tests" / "golden" / "golden.tar.xz"


def check_against_manifest(folder: Path) -> int:
    """Return the number of files in the manifest. Raise SystemExit if a file is missing or differs from it."""
    files = json.loads((folder / "manifest.json").read_text("utf-8"))["files"]
    for entry in files:
        path = folder / entry["path"]
        data = path.read_bytes() if path.is_file() else None
        if data is None or len(data) != entry["size"] or hashlib.sha256(data).hexdigest() != entry["sha256"]:
            sys.exit(f"{entry['path']} is not what the manifest says")
    return len(files)


def pack(folder: Path) -> bytes:
    """Return an archive of all regular files below `folder`, sorted by name."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
            if not path.is_file():
                continue
            data = path.read_bytes()
            member = tarfile.TarInfo(path.relative_to(folder).as_posix())
            member.size = len(data)
            member.mode = 0o644
            archive.addfile(member, io.BytesIO(data))
    return lzma.compress(raw.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def main() -> None:
    """Check the files, and write the archive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    checked = check_against_manifest(folder)
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    ARCHIVE.write_bytes(pack(folder))
    print(f"{ARCHIVE.name}: {ARCHIVE.stat().st_size} bytes, {checked} files checked against the manifest")


if __name__ == "__main__":
    main()
