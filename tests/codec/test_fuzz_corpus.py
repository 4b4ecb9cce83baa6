# SPDX-License-Identifier: Apache-2.0
"""The short form of the fuzzing: every committed input, and what runs start from, under the address and the
undefined-behaviour sanitizer, with every property of its target held. The long form is tests/fuzz/hunt.py.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import fuzz_targets as fuzz
import pytest

MOST_CORPUS_BYTES = 1_000_000


def test_every_target_has_a_corpus_and_none_is_large() -> None:
    sizes = {folder.name: sum(path.stat().st_size for path in folder.iterdir()) for folder in fuzz.CORPUS.iterdir()}
    assert set(sizes) == {*fuzz.TARGETS}
    assert sum(sizes.values()) < MOST_CORPUS_BYTES
    assert min(sizes.values()) > 0


@pytest.mark.parametrize("name", fuzz.C_TARGETS)
def test_corpus_and_seeds_hold_under_sanitizers(name: str, tmp_path: Path) -> None:
    assert_replays(name, [str(fuzz.replay_program(name))], tmp_path)


@pytest.mark.parametrize("name", fuzz.PYTHON_TARGETS)
def test_corpus_and_seeds_of_python_hold(name: str, tmp_path: Path) -> None:
    assert_replays(name, fuzz.python_command(name), tmp_path)


def assert_replays(name: str, program: list[str], tmp_path: Path) -> None:
    seeds = fuzz.write_seeds(name, tmp_path)
    committed = len(list((fuzz.CORPUS / name).iterdir()))
    done = fuzz.run([*program, "--replay", str(fuzz.CORPUS / name), str(tmp_path)], 60)
    assert done.returncode == 0, done.stdout[-4000:]
    assert done.stdout.splitlines()[-1] == f"{committed + seeds} inputs replayed"
    assert committed and seeds


def test_a_byte_past_a_buffer_is_seen(tmp_path: Path) -> None:
    """The sanitizers are there, and buffers are exact: else the replays above would say nothing."""
    program = tmp_path / "past.c"
    program.write_text(
        '#include "pool.h"\n'
        "int main(void) {\n"
        "    Buffer buffer = {0};\n"
        "    if (buffer_acquire(&buffer, 100)) return 3;\n"
        "    ((volatile unsigned char *)buffer.data)[100 + BUFFER_SLACK] = 1;\n"
        "    return 0;\n"
        "}\n"
    )
    sources = [str(fuzz.CORE / "codec" / name) for name in ("pool.c", "platform.c")]
    command = ["gcc", *fuzz.FLAGS, str(program), *sources, "-o", str(tmp_path / "past"), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    done = fuzz.run([str(tmp_path / "past")], 20)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stdout
    assert os.fspath("past.c") in done.stdout
