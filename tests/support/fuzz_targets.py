# SPDX-License-Identifier: Apache-2.0
"""The fuzz targets of tests/fuzz: building those in C, the inputs from which they start, replaying and running them.

    C_TARGETS, PYTHON_TARGETS       their names; target_<name>.c and python_targets.py in tests/fuzz describe them
    TARGETS                         both
    build(name, folder, engine)     the program; engine "replay", "own" (gcc alone), "libfuzzer" (clang), or "arm64",
                                    a replay without sanitizers that qemu-aarch64 runs
    write_seeds(name, folder)       inputs out of the golden bytes and generated batches, next to the committed corpus

All C code is compiled with AddressSanitizer and UndefinedBehaviorSanitizer, and with exact buffers, so that every write
after the requested size is detected.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FUZZ = ROOT / "tests" / "fuzz"
CORPUS = FUZZ / "corpus"
CORE = ROOT / "src" / "kcodec" / "_fast"
CORE_FOLDERS = sorted(path for path in CORE.iterdir() if path.is_dir())
C_TARGETS = tuple(sorted(path.stem.removeprefix("target_") for path in FUZZ.glob("target_*.c")))
PYTHON_TARGETS = ("lying_index", "small_files")
TARGETS = C_TARGETS + PYTHON_TARGETS
HELPERS = ("arrow_walk", "harness", "slow_codecs")
DRIVER = ("driver", "mutate")
ENGINES = {"replay": "gcc", "own": "gcc", "libfuzzer": "clang", "arm64": "aarch64-linux-gnu-gcc"}  # and their compilers

WARNINGS = ["-std=gnu11", "-Wall", "-Wextra", "-Werror"]
SANITIZERS = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]
INCLUDE = ["-pthread", "-DKCODEC_EXACT_BUFFERS", *(f"-I{folder}" for folder in CORE_FOLDERS), f"-I{FUZZ}"]
FLAGS = [*WARNINGS, *SANITIZERS, *INCLUDE]
COVERAGE = {
    "replay": [],
    "own": ["-fsanitize-coverage=trace-pc,trace-cmp"],
    "libfuzzer": ["-fsanitize=fuzzer-no-link"],
    "arm64": [],
}
LINK = {"libfuzzer": ["-fsanitize=fuzzer,address,undefined"], "arm64": ["-static"]}
SEED_BYTES = 6_000  # maximum size of an input from which a run starts: small ones are fast
ENVIRONMENT = {
    "ASAN_OPTIONS": "abort_on_error=1:detect_stack_use_after_return=1:allocator_may_return_null=1"
    ":max_allocation_size_mb=1024",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
}


def has_libfuzzer() -> bool:
    """Return whether a clang is installed that can link libFuzzer."""
    if shutil.which("clang") is None:
        return False
    program = (
        b"#include <stddef.h>\nint LLVMFuzzerTestOneInput(const char *d, size_t s) { (void)d; (void)s; return 0; }"
    )
    with tempfile.TemporaryDirectory() as folder:
        command = ["clang", "-x", "c", "-fsanitize=fuzzer,address", "-", "-o", f"{folder}/probe"]
        return subprocess.run(command, input=program, capture_output=True, check=False).returncode == 0


def _compile(engine: str, source: Path, out: Path, flags: list[str]) -> Path:
    every = [*WARNINGS, "-O2", *INCLUDE] if engine == "arm64" else FLAGS
    command = [ENGINES[engine], *every, *flags, "-c", str(source), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{source.name} does not compile:\n{done.stderr[-4000:]}")
    return out


def build_core(folder: Path, engine: str) -> list[Path]:
    """The objects that all targets share, in `folder`."""
    drivers = () if engine == "libfuzzer" else DRIVER
    work: list[tuple[Path, list[str]]] = [(path, COVERAGE.get(engine, [])) for path in sorted(CORE.rglob("*.c"))]
    work += [(FUZZ / f"{name}.c", []) for name in (*HELPERS, *drivers)]
    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(_compile, engine, source, folder / f"{source.stem}.o", flags) for source, flags in work]
        return [future.result() for future in made]


def replay_program(name: str) -> Path:
    """The program of one target with the engine "replay", compiled only if the sources, flags or gcc have changed."""
    folder = ROOT / ".cache" / f"fuzz-{_digest()}"
    program = folder / f"fuzz_{name}"
    if not program.is_file():
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir=folder.parent) as scratch:
            made = Path(scratch)
            core = build_core(made, "replay")
            folder.mkdir(exist_ok=True)
            for each in C_TARGETS:
                build(each, made, "replay", core).replace(folder / f"fuzz_{each}")
    return program


@cache
def _digest() -> str:
    """Return a digest of everything that decides what the programs do."""
    gcc = subprocess.run([ENGINES["replay"], "--version"], capture_output=True, check=True).stdout
    sources = sorted(path for folder in (CORE, FUZZ) for path in folder.rglob("*.[ch]"))
    parts = [gcc, repr(FLAGS).encode(), Path(__file__).read_bytes(), *(path.read_bytes() for path in sources)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def build(name: str, folder: Path, engine: str, core: list[Path]) -> Path:
    """The program of one target, from the objects of build_core of the same engine."""
    object_file = _compile(engine, FUZZ / f"target_{name}.c", folder / f"target_{name}.o", COVERAGE.get(engine, []))
    program = folder / f"fuzz_{name}"
    link = LINK.get(engine, ["-fsanitize=address,undefined"])
    command = [ENGINES[engine], *link, "-pthread", str(object_file), *map(str, core), "-o", str(program), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} does not link:\n{done.stderr[-4000:]}")
    return program


def run(command: list[str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a target, with options of the sanitizers."""
    environment = {**os.environ, **ENVIRONMENT}
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        timeout=seconds,
        env=environment,
    )


# Seeds.


def _golden_pieces(largest: int) -> Iterator[bytes]:
    """Yield some consecutive batches of every log that a broker wrote."""
    import golden_data
    from edits import batch_positions

    for partition in golden_data.partitions(2):
        log = partition.log
        positions = [*batch_positions(log), len(log)]
        begin = 0
        for at in range(1, len(positions)):
            if positions[at] - positions[begin] > largest or at == len(positions) - 1:
                end = max(at - 1, begin + 1) if positions[at] - positions[begin] > largest else at
                if 0 < positions[end] - positions[begin] <= largest:
                    yield log[positions[begin] : positions[end]]
                begin = end


def _generated_payloads() -> Iterator[tuple[str, bytes]]:
    """Yield (codec, compressed records) in every format that a client writes."""
    from batch_writer import FLAVOURS, RecordSpec, build_batch

    for codec, flavours in FLAVOURS.items():
        for flavour in flavours:
            for count in (1, 30):
                records = [RecordSpec(value=b"value %d" % at * (at % 5)) for at in range(count)]
                yield codec, build_batch(records, compression=codec, flavour=flavour)[61:]


def _batches() -> Iterator[bytes]:
    options = (
        "01001000 0b000000 00000000", "0302000a 0e000000", "4110000c 0f000000", "a125850c 0f820500", "8742000b 0f010090"
    )  # fmt: skip
    heads = [bytes.fromhex(text.replace(" ", ""))[:8].ljust(8, b"\x00") for text in options]
    for number, piece in enumerate(_golden_pieces(SEED_BYTES)):
        yield heads[number % len(heads)] + piece


def _streams() -> Iterator[bytes]:
    numbers = {"snappy": 0, "lz4": 1, "zstd": 2, "gzip": 3, "none": 4}
    for codec, payload in _generated_payloads():
        yield bytes([numbers[codec], 16, 3]) + payload


def _values() -> Iterator[bytes]:
    for text in ("plain", "naïve €", "\U0001f600", "\ud800"):
        yield b"\x00\x00" + text.encode("utf-8", "surrogatepass")
    yield from (
        b"\x01\x00\xff\xff\xff\xff\x0f",
        b"\x01\x00" + b"\x80" * 9 + b"\x01",
        b"\x02\x40" + bytes(range(256)) * 3,
    )


def _legacy() -> Iterator[bytes]:
    import golden_data

    for number, (_, data, _) in enumerate(golden_data.legacy()):
        if len(data) <= SEED_BYTES:
            yield bytes([2 + number % 2, 10, 60, 0]) + data


def _noise() -> Iterator[bytes]:
    """Yield random bytes, for targets that create their values from arbitrary bytes."""
    chooser = random.Random(7)
    for number in range(24):
        head = bytes([chooser.choice((0x00, 0x10, 0x20, 0x81, 0x8C, 0x02)), chooser.randrange(128), 15 - number % 6])
        yield (
            head
            + bytes(13)
            + bytes(chooser.choice((chooser.randrange(256), chooser.randrange(40))) for _ in range(250))
        )


SEEDS: dict[str, Callable[[], Iterator[bytes]]] = {
    "arrow_import": _noise,
    "batches": _batches,
    "decompress": _streams,
    "encode": _noise,
    "legacy": _legacy,
    "values": _values,
}


def seeds_of(name: str) -> Iterator[bytes]:
    """The inputs of a target that are made, not committed."""
    if name in SEEDS:
        return SEEDS[name]()
    sys.path.insert(0, str(FUZZ))
    made: Iterator[bytes] = importlib.import_module("python_targets").SEEDS[name]()
    return made


def python_command(name: str) -> list[str]:
    """How the driver of a Python target is called."""
    return [sys.executable, str(FUZZ / "python_driver.py"), name]


def write_seeds(name: str, folder: Path) -> int:
    """Write the inputs from which a run of a target starts, in addition to its corpus. Return their number."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for count, data in enumerate(seeds_of(name), 1):
        (folder / f"seed-{count:04}").write_bytes(data)
    return count
