# SPDX-License-Identifier: Apache-2.0
"""Coverage-guided fuzzing of the C core and of the Python parsers of files, under sanitizers.

    python tests/fuzz/hunt.py [--target NAME ...] [--seconds 60] [--engine own|libfuzzer] [--seed N] [--work FOLDER]
                              [--shrink | --replay-on arm64] [--results FILE] [--list]

Each target changes inputs at random and keeps those that reach code none reached before, beginning with the committed
corpus (tests/fuzz/corpus/<target>), golden bytes and generated batches. Its properties are in its own source. C targets
run on clang's libFuzzer where clang is installed, else on our own driver, which needs gcc alone.

What breaks a property, crashes, hangs or loses memory is written to WORK/<target>/found-*, and the exit status is 1.
--shrink rewrites the corpus: the smallest set found that reaches everything. --replay-on arm64 asks the C targets about
the corpus and the seeds once, compiled for ARM64 and run by qemu. --results appends a line a target.
"""

from __future__ import annotations

import argparse
import datetime
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

import fuzz_targets as fuzz

LONGEST = 8192
SLACK_SECONDS = 120  # for start-up and for the last input
CORPUS_BYTES = 150_000  # of a target's corpus: --shrink leaves out what is longest beyond
LONGEST_KEPT = 3000


def found_by_own_driver(folder: Path) -> bytes:
    """The input that was at work when the process ended."""
    raw = (folder / "finds" / "at-work").read_bytes()
    return raw[4 : 4 + struct.unpack_from("=I", raw)[0]]


def hunt(name: str, program: list[str], engine: str, folder: Path, seconds: int, seed: int) -> tuple[bool, str]:
    """(whether all held, what to say) of one target."""
    finds = folder / "finds"
    finds.mkdir(parents=True, exist_ok=True)
    fuzz.write_seeds(name, folder / "seeds")
    sources = [str(path) for path in (folder / "seeds", fuzz.CORPUS / name) if path.is_dir()]
    if engine == "libfuzzer":
        options = [
            f"-max_total_time={seconds}",
            f"-seed={seed}",
            f"-max_len={LONGEST}",
            "-timeout=10",
            "-rss_limit_mb=3000",
        ]
        command = [*options, "-print_final_stats=1", f"-artifact_prefix={folder}/found-", str(finds), *sources]
    else:
        command = [
            "--seconds",
            str(seconds),
            "--seed",
            str(seed),
            "--longest",
            str(LONGEST),
            "--finds",
            str(finds),
            *sources,
        ]
    try:
        done = fuzz.run([*program, *command], seconds + SLACK_SECONDS)
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        status, output = 1, f"no end after {late.timeout:.0f} s"
    (folder / "log").write_text(output, "utf-8")
    if status == 0:
        return True, reported(engine, output)
    if engine == "own":
        (folder / f"found-{int(time.time())}").write_bytes(found_by_own_driver(folder))
    return False, "\n".join([*output.splitlines()[-60:], f"inputs: {sorted(map(str, folder.glob('found-*')))}"])


def reported(engine: str, output: str) -> str:
    """The line that says what was done."""
    if engine == "own":
        return output.strip().splitlines()[-1]
    runs = re.search(r"stat::number_of_executed_units: (\d+)", output)
    last = re.findall(r"cov: (\d+) ft: (\d+)", output)[-1]
    return f"{runs.group(1) if runs else '?'} inputs, {last[0]} edges, {last[1]} features reached, nothing found"


def shrink(name: str, program: list[str], folder: Path) -> str:
    """Rewrites the corpus with the help of our own drivers: smallest first, each for what it adds."""
    kept, sources = folder / "kept", folder / "small"
    for path in (kept, sources):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
    for place in (folder / "finds", folder / "seeds", fuzz.CORPUS / name):
        for path in sorted(place.glob("*")) if place.is_dir() else []:
            if path.stat().st_size <= LONGEST_KEPT and path.name != "at-work":
                shutil.copy(path, sources / f"{place.name}-{path.name}")
    done = fuzz.run([*program, "--shrink", str(kept), str(sources)], 900)
    if done.returncode:
        raise RuntimeError(done.stdout[-3000:])
    target = fuzz.CORPUS / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    total = count = 0
    for path in sorted(kept.iterdir(), key=lambda path: (path.stat().st_size, path.name)):
        if total + path.stat().st_size > CORPUS_BYTES:
            break
        total += path.stat().st_size
        count += 1
        shutil.copy(path, target / path.name)
    return f"{done.stdout.strip().splitlines()[-1]}; {count} committed, {total} bytes"


def replay_on_arm64(folder: Path) -> int:
    """The exit status."""
    core = fuzz.build_core(folder, "arm64")
    failed = 0
    for name in fuzz.C_TARGETS:
        program = fuzz.build(name, folder, "arm64", core)
        fuzz.write_seeds(name, folder / name)
        command = ["qemu-aarch64", str(program), "--replay", str(folder / name), str(fuzz.CORPUS / name)]
        done = fuzz.run(command, 900)
        failed += done.returncode != 0
        print(f"{name}: {done.stdout.strip().splitlines()[-1] if done.stdout else 'no word'}", flush=True)
    print(f"{len(fuzz.C_TARGETS)} targets on ARM64, {failed} failed")
    return 1 if failed else 0


def engine_for(asked: str | None) -> str:
    """What C targets run on."""
    return asked or ("libfuzzer" if fuzz.has_libfuzzer() else "own")


def keep(work: Path) -> Path:
    """Copy the inputs that were found to a folder that is not removed. Return this folder."""
    kept = Path(tempfile.mkdtemp(prefix="kcodec-found-"))
    for found in work.glob("*/found-*"):
        (kept / found.parent.name).mkdir(exist_ok=True)
        shutil.copy(found, kept / found.parent.name)
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description="coverage-guided fuzzing under sanitizers")
    parser.add_argument("--target", nargs="+", choices=fuzz.TARGETS, default=list(fuzz.TARGETS), help="default: all")
    parser.add_argument("--seconds", type=int, default=60, help="of each target (default: %(default)s)")
    parser.add_argument("--engine", choices=("own", "libfuzzer"), help="default: libfuzzer where clang has it")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000_007, help="of what is random")
    parser.add_argument(
        "--work",
        type=Path,
        help="where finds and logs go (default: a folder that is removed; what broke a property is kept)",
    )
    parser.add_argument("--shrink", action="store_true", help="rewrite the committed corpus from WORK instead")
    parser.add_argument("--replay-on", choices=("arm64",), help="replay what is committed there, nothing else")
    parser.add_argument("--results", type=Path, help="a file that gets a line a target")
    parser.add_argument("--list", action="store_true", help="what the targets are")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(fuzz.TARGETS))
        return 0
    if arguments.replay_on:
        with tempfile.TemporaryDirectory(prefix="kcodec-fuzz-") as scratch:
            return replay_on_arm64(Path(scratch))
    for_c = "own" if arguments.shrink else engine_for(arguments.engine)
    with tempfile.TemporaryDirectory(prefix="kcodec-fuzz-") as scratch:
        work = arguments.work or Path(scratch)
        build = Path(scratch, "build")
        build.mkdir()
        core = fuzz.build_core(build, for_c) if set(arguments.target) & set(fuzz.C_TARGETS) else []
        failed = 0
        for name in arguments.target:
            in_c = name in fuzz.C_TARGETS
            program = [str(fuzz.build(name, build, for_c, core))] if in_c else fuzz.python_command(name)
            engine = for_c if in_c else "own"
            folder = work / name
            if arguments.shrink:
                print(f"{name}: {shrink(name, program, folder)}", flush=True)
                continue
            began = time.monotonic()
            held, text = hunt(name, program, engine, folder.resolve(), arguments.seconds, arguments.seed)
            failed += not held
            line = f"{name} ({engine}, {time.monotonic() - began:.0f} s, seed {arguments.seed}): {text}"
            print(line, flush=True)
            if arguments.results:
                with arguments.results.open("a", encoding="utf-8") as file:
                    file.write(f"{datetime.datetime.now():%Y-%m-%d %H:%M} {line}\n")
        if failed and arguments.work is None:
            print(f"the inputs are kept in {keep(work)}", flush=True)
        return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
