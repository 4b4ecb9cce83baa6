# SPDX-License-Identifier: Apache-2.0
"""The long proofs: what `make test` does in short, at length, and what it cannot do at all. Results go into a file.

    python tools/prove.py [--only NAME ...] [--edits 100000] [--results FOLDER] [--list]

Each part is a function below that gives an Outcome: passed, failed, or not run, with the reason. Written are
`prove-<date>.json` and `.txt` in tests/results (or FOLDER), after each part, so that an interrupted run leaves what it
had. A run with --only adds its parts to the file of the day. The exit status is 0 if no part failed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRATCH = ROOT / ".cache" / "prove-build"
PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
SECONDS_IN_A_PART = 4 * 3600
# Under a sanitizer the memory bounds and the ten milliseconds of a stall say nothing.
SANITIZED_TESTS = (
    "test_golden.py",
    "test_hostile.py",
    "test_isolation.py",
    "test_compression.py",
    "test_crc32c.py",
    "test_decode_property.py",
    "test_arrow.py",
    "test_arrow_memory.py",
    "test_arrow_header_names.py",
    "test_threads.py",
    "test_public_face.py",
    "test_batches.py",
)
NOT_UNDER_SANITIZERS = "not go_on_while and not outlive_an_interpreter and not import_time and not light"


@dataclass
class Outcome:
    """How a part ended."""

    name: str
    status: str
    detail: str
    seconds: float = 0.0


@dataclass
class Done:
    """A command that ran: its exit status and the end of what it said."""

    status: int
    output: str

    @property
    def last_line(self) -> str:
        """The last line that is not empty."""
        lines = [line for line in self.output.splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""


def run(command: Sequence[str | Path], environment: dict[str, str] | None = None, folder: Path = ROOT) -> Done:
    """Runs it with the environment added; what it says is kept, not shown."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        timeout=SECONDS_IN_A_PART,
    )
    return Done(done.returncode, done.stdout)


def judged(done: Done, detail: str | None = None) -> tuple[str, str]:
    """(status, detail) of a command that says in its exit status whether all is well."""
    if done.status == 0:
        return PASSED, detail or done.last_line
    lines = done.output.splitlines()
    found = [at for at, line in enumerate(lines) if re.search("runtime error|ERROR: .*Sanitizer|^E  ", line)]
    told = [*lines[found[0] : found[0] + 20], "...", *lines[-10:]] if found else lines[-40:]
    return FAILED, "\n".join([f"exit status {done.status}", *told])


# --------------------------------------------------------------------------------------------------------------- parts


def prove_edits(arguments: argparse.Namespace) -> tuple[str, str]:
    """Random edits of golden and generated sets: kcodec gives what the oracle gives."""
    seed = int(time.time())
    command = [sys.executable, "tests/fuzz/run.py", "--edits", str(arguments.edits), "--seed", str(seed)]
    return judged(run([*command, "--minutes", "120"]))


def prove_long(arguments: argparse.Namespace) -> tuple[str, str]:
    """All tests but Spark's with long searches."""
    return judged(
        run([sys.executable, "-m", "pytest", "-q", "-m", "not spark", "--no-header"], {"KCODEC_PROFILE": "long"})
    )


def prove_spark(arguments: argparse.Namespace) -> tuple[str, str]:
    """Spark's tests on this Spark, then on the older ones."""
    program = ROOT / "tests" / "prove_spark_versions.py"
    if not program.exists():
        return NOT_RUN, "tests/prove_spark_versions.py is not there"
    return judged(run([sys.executable, program]), "see the versions in its own output")


def sanitizer_library(name: str) -> Path | None:
    """Where gcc keeps the run-time library of a sanitizer."""
    if shutil.which("gcc") is None:
        return None
    found = Path(run(["gcc", f"-print-file-name={name}"]).last_line)
    return found if found.is_absolute() and found.exists() else None


def build_with(name: str, environment: dict[str, str]) -> Path | str:
    """A copy of the sources built with these switches; the folder to import it from, or what went wrong."""
    folder = SCRATCH / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for part in ("src", "setup.py", "pyproject.toml", "LICENSE", "NOTICE", "README.md"):
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
        elif source.exists():
            shutil.copy(source, folder / part)
    done = run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], environment, folder)
    return folder / "src" if done.status == 0 else f"the build failed\n{done.output[-3000:]}"


def sanitized() -> tuple[dict[str, str], str | None]:
    """(the environment in which the sanitized core is imported, why there is none)."""
    library = sanitizer_library("libasan.so")
    if library is None:
        return {}, "gcc or its libasan is not installed"
    built = build_with("sanitized", {"KCODEC_SANITIZE": "address,undefined", "KCODEC_DEBUG": "1"})
    if isinstance(built, str):
        return {}, built
    environment = {
        "PYTHONPATH": str(built),
        "LD_PRELOAD": str(library),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:detect_stack_use_after_return=1:strict_string_checks=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    }
    where = run([sys.executable, "-c", "import kcodec._fast; print(kcodec._fast.__file__)"], environment)
    if str(SCRATCH) not in where.last_line:
        return {}, f"the sanitized core is not what is imported: {where.output[-1000:]}"
    return environment, None


def prove_sanitizers(arguments: argparse.Namespace) -> tuple[str, str]:
    """The tests of the core with AddressSanitizer and UndefinedBehaviorSanitizer built in, without optimisation."""
    environment, missing = sanitized()
    if missing is not None:
        return (NOT_RUN if "not installed" in missing else FAILED), missing
    tests = [f"tests/{name}" for name in SANITIZED_TESTS if (ROOT / "tests" / name).exists()]
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-k", NOT_UNDER_SANITIZERS]
    # -s: what pytest captures would be lost with the process when a sanitizer ends it
    first = run([*command, "-s", *tests], {**environment, "KCODEC_PROFILE": "short"})
    if first.status:
        return judged(first)
    edits = ["tests/fuzz/run.py", "--edits", str(arguments.edits // 5), "--seed", str(int(time.time()))]
    second = run([sys.executable, *edits], environment)
    return judged(second, f"{first.last_line}; {second.last_line}")


LEAKS = """
import gc, sys
sys.path.insert(0, "tests")
import pyarrow as pa
import kcodec
from bombs import bomb
from batch_writer import FLAVOURS, RecordSpec, build_batch
limits = kcodec.DecodeLimits(max_decompressed_bytes=1 << 20)
for repeat in range(20):
    for codec, flavours in FLAVOURS.items():
        for flavour in flavours:
            records = [RecordSpec(value=b"v" * 3000, headers=((b"h", b"x"),))] * 5
            data = build_batch(records, compression=codec, flavour=flavour)
            for kind in ("binary", "large_binary", "binary_view"):
                pa.table(kcodec.decode(data * 2, binary_type=kind, columns=kcodec.COLUMNS[:-2]))
                kcodec.decode(data + data[:70] + b"wrong" + data[75:], on_error="stop", binary_type=kind, threads=2)
                kcodec.decode(data[:-5] + b"wrong" + data, on_error="skip", isolation_level="read_committed")
    for name in ("zstd", "lz4", "gzip"):
        kcodec.decode(bomb(name, 1 << 23), limits=limits, on_error="stop")
gc.collect()
print("ended")
"""


def prove_leaks(arguments: argparse.Namespace) -> tuple[str, str]:
    """LeakSanitizer at the end of a process that decoded in every way: no lost block that the core had asked for."""
    environment, missing = sanitized()
    if missing is not None:
        return (NOT_RUN if "not installed" in missing else FAILED), missing
    with tempfile.TemporaryDirectory() as folder:
        options = environment["ASAN_OPTIONS"].replace("detect_leaks=0", "detect_leaks=1")
        log = Path(folder, "report")
        environment["ASAN_OPTIONS"] = f"{options}:log_path={log}:exitcode=0:fast_unwind_on_malloc=0"
        done = run([sys.executable, "-c", LEAKS], environment)
        if "ended" not in done.output:
            return FAILED, f"the program did not end\n{done.output[-2000:]}"
        reports = "".join(path.read_text("utf-8", "replace") for path in Path(folder).glob("report*"))
    blocks = re.split(r"\n\n+", reports)
    ours = [block for block in blocks if re.search(r"leak of .* allocated from", block) and "kcodec/_fast" in block]
    ours = [block for block in ours if re.search(r"#[1-6] .*kcodec/_fast", block)]
    if ours:
        return FAILED, f"{len(ours)} lost blocks of the core\n" + "\n\n".join(ours[:3])
    return PASSED, "no lost block of the core (those of interpreter and libraries are not counted)"


def prove_arm64(arguments: argparse.Namespace) -> tuple[str, str]:
    """The C files compiled for ARM64, and the checksum's ARM64 path run by qemu."""
    missing = [tool for tool in ("aarch64-linux-gnu-gcc", "qemu-aarch64") if shutil.which(tool) is None]
    if "aarch64-linux-gnu-gcc" in missing:
        return NOT_RUN, f"not installed: {', '.join(missing)}"
    folder = SCRATCH / "arm64"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sources = sorted((ROOT / "src" / "kcodec" / "_fast").glob("*.c"))
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-static", "-pthread"]
    program = ROOT / "tests" / "c" / "known_answers.c"
    command: list[str | Path] = [
        "aarch64-linux-gnu-gcc",
        *flags,
        "-I",
        ROOT / "src" / "kcodec" / "_fast",
        program,
        *sources,
    ]
    built = run([*command, "-o", folder / "known_answers", "-ldl"])
    if built.status or missing:
        return judged(built, f"compiles; not run, as not installed: {', '.join(missing)}")
    return judged(run(["qemu-aarch64", folder / "known_answers"]))


def prove_big(arguments: argparse.Namespace) -> tuple[str, str]:
    """A log of a gigabyte streamed in a fresh process below 200 MB."""
    program = ROOT / "tests" / "prove_big_file.py"
    return judged(run([sys.executable, program, SCRATCH]))


PARTS: dict[str, Callable[[argparse.Namespace], tuple[str, str]]] = {
    "edits": prove_edits,
    "sanitizers": prove_sanitizers,
    "leaks": prove_leaks,
    "arm64": prove_arm64,
    "big": prove_big,
    "long": prove_long,
    "spark": prove_spark,
}


# ------------------------------------------------------------------------------------------------------------- results


def machine() -> dict[str, str]:
    """What the results were found on."""
    commit = run(["git", "rev-parse", "--short", "HEAD"])
    return {
        "commit": commit.last_line if commit.status == 0 else "unknown",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": str(os.cpu_count()),
    }


def write(outcomes: dict[str, Outcome], folder: Path) -> Path:
    """Both files of the day; parts that an earlier run of the day did are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / f"prove-{datetime.date.today().isoformat()}"
    found: dict[str, dict[str, object]] = {}
    if base.with_suffix(".json").exists():
        found = json.loads(base.with_suffix(".json").read_text("utf-8"))["parts"]
    about = machine()
    found |= {name: {**asdict(outcome), "commit": about["commit"]} for name, outcome in outcomes.items()}
    base.with_suffix(".json").write_text(json.dumps({"machine": about, "parts": found}, indent=1) + "\n", "utf-8")
    lines = [f"{name}: {value}" for name, value in about.items()] + [""]
    for name, part in found.items():
        first, *rest = str(part["detail"]).splitlines() or [""]
        lines.append(f"{name:<11} {part['status']:<8} {part['seconds']:>7.0f} s  {first}")
        lines += [f"    {line}" for line in rest]
    base.with_suffix(".txt").write_text("\n".join(lines) + "\n", "utf-8")
    return base.with_suffix(".txt")


def main() -> int:
    """Runs the parts asked for, or all."""
    parser = argparse.ArgumentParser(description="the long proofs")
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), help="these parts")
    parser.add_argument("--edits", type=int, default=100_000, help="random edits (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=ROOT / "tests" / "results", help="folder of the result files")
    parser.add_argument("--list", action="store_true", help="what the parts are")
    arguments = parser.parse_args()
    if arguments.list:
        for name, part in PARTS.items():
            print(f"{name:<11} {part.__doc__}")
        return 0
    outcomes: dict[str, Outcome] = {}
    for name in arguments.only or PARTS:
        print(f"{name} ...", flush=True)
        began = time.monotonic()
        try:
            status, detail = PARTS[name](arguments)
        except subprocess.TimeoutExpired as late:
            status, detail = FAILED, f"no end after {late.timeout:.0f} s"
        outcomes[name] = Outcome(name, status, detail.replace(str(ROOT), "."), time.monotonic() - began)
        written = write(outcomes, arguments.results)
        print(f"{name}: {status}, {outcomes[name].detail}", flush=True)
    print(f"written to {written.relative_to(Path.cwd()) if written.is_relative_to(Path.cwd()) else written}")
    return 1 if any(outcome.status == FAILED for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
