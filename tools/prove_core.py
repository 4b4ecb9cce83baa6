# SPDX-License-Identifier: Apache-2.0
"""Parts of tools/prove.py about the compiled core: compilers, sanitizers, leaks, other processors."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from proving import FAILED, NOT_RUN, PASSED, ROOT, SCRATCH, Done, build_with, judged, run, test_files

COMPILERS = ("gcc", "clang")
WARNINGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread")
CORE = ROOT / "src" / "kcodec" / "_fast"
CORE_INCLUDES = [f"-I{path}" for path in sorted(CORE.iterdir()) if path.is_dir()]
KNOWN_ANSWERS = ROOT / "tests" / "c" / "known_answers.c"
MINGW = ("x86_64-w64-mingw32-gcc-posix", "x86_64-w64-mingw32-gcc")
WINE = ("wine64", "wine", "/usr/lib/wine/wine64")
# Under a sanitizer, limits of memory and the limit of ten milliseconds for a stall are meaningless.
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
    "test_public_api.py",
    "test_batches.py",
    "test_text.py",
    "test_protocol_schema.py",
    "test_protocol_objects.py",
    "test_messages.py",
    "test_messages_golden.py",
    "test_hostile_core.py",
)
NOT_UNDER_SANITIZERS = (
    "not go_on_while and not outlive_an_interpreter and not import_time and not light and not stay_in_the_pool"
    " and not memory_is_bounded and not takes_no_memory and not nothing_is_kept and not imported_alone"
)


def sanitizer_library(name: str) -> Path | None:
    """Return the path of gcc's run-time library of a sanitizer, or None."""
    if shutil.which("gcc") is None:
        return None
    found = Path(run(["gcc", f"-print-file-name={name}"]).last_line)
    return found if found.is_absolute() and found.exists() else None


def prove_warnings(arguments: argparse.Namespace) -> tuple[str, str]:
    """The extension, including the code that Cython generates, and the C code of the tests compile without warnings."""
    compilers = [name for name in COMPILERS if shutil.which(name)]
    if not compilers:
        return NOT_RUN, f"not installed: {', '.join(COMPILERS)}"
    for compiler in compilers:
        built = build_with(f"warnings-{compiler}", {"CC": compiler, "KCODEC_WERROR": "1"})
        if isinstance(built, str):
            return FAILED, f"{compiler}: {built}"
        for program in sorted((ROOT / "tests").glob("*/*.c")):
            command: list[str | Path] = [
                compiler,
                *WARNINGS,
                *CORE_INCLUDES,
                "-fsyntax-only",
                program,
            ]
            done = run(command)
            if done.status:
                return FAILED, f"{compiler}: {program.name}\n{done.output[-3000:]}"
    absent = sorted(set(COMPILERS) - set(compilers))
    versions = ", ".join(run([compiler, "--version"]).output.splitlines()[0] for compiler in compilers)
    return PASSED, versions + (f"; not installed: {', '.join(absent)}" if absent else "")


def sanitized() -> tuple[dict[str, str], str | None]:
    """Return the environment in which the sanitized core is imported, and the reason if it is missing."""
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
    """The tests of the core, compiled with AddressSanitizer and UndefinedBehaviorSanitizer and without optimization."""
    environment, missing = sanitized()
    if missing is not None:
        return (NOT_RUN if "not installed" in missing else FAILED), missing
    tests = test_files(SANITIZED_TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-k", NOT_UNDER_SANITIZERS]
    # -s: output captured by pytest would be lost when a sanitizer ends the process.
    first = run([*command, "-s", *tests], {**environment, "KCODEC_PROFILE": "short"})
    if first.status:
        return judged(first)
    edits = ["tests/fuzz/run.py", "--edits", str(arguments.edits // 5), "--seed", str(int(time.time()))]
    second = run([sys.executable, *edits], environment)
    if second.status:
        return judged(second)
    edits = ["tests/prove/prove_messages.py", "--edits", str(arguments.edits // 2), "--seed", str(int(time.time()))]
    third = run([sys.executable, *edits, "--kafka", "0"], environment)
    return judged(third, f"{first.last_line}; {second.last_line}; messages: {third.last_line}")


def prove_hostile(arguments: argparse.Namespace) -> tuple[str, str]:
    """100,000 edited Arrow files through pyarrow, calls from within calls and shared objects, under sanitizers."""
    environment, missing = sanitized()
    if missing is not None:
        return (NOT_RUN if "not installed" in missing else FAILED), missing
    # With pyarrow's own allocators the sanitizer could not check its buffers.
    environment["ARROW_DEFAULT_MEMORY_POOL"] = "system"
    # An edited file can ask pyarrow for more memory than there is, which pyarrow reports as an error.
    environment["ASAN_OPTIONS"] = f"{environment.get('ASAN_OPTIONS', '')}:allocator_may_return_null=1".lstrip(":")
    command = [
        sys.executable,
        "tests/prove/prove_hostile_core.py",
        "--files",
        str(arguments.edits),
        "--seed",
        str(int(time.time())),
    ]
    done = run([*command, "--results", arguments.results.resolve()], environment)
    return judged(done, f"{done.last_line}; see hostile-core.txt")


LEAKS = """
import gc, sys
sys.path.insert(0, "tests/support")
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
    """LeakSanitizer at the end of a process that decoded in every way finds no leaked block that the core allocated."""
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


def prove_fuzz(arguments: argparse.Namespace) -> tuple[str, str]:
    """Every fuzz target for two minutes under sanitizers, with libFuzzer if clang is installed."""
    return judged(
        run([sys.executable, "tests/fuzz/hunt.py", "--seconds", "120"]), "see tests/results/fuzz-*.txt for longer runs"
    )


def compile_alone(compiler: str, folder: Path, program: Path, flags: Sequence[str]) -> Done:
    """Compile the C files and a program that uses them with a cross compiler, into `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    sources = sorted(CORE.rglob("*.c"))
    command: list[str | Path] = [compiler, *WARNINGS, "-O2", "-static", *CORE_INCLUDES, program, *sources]
    return run([*command, "-o", folder / "program.exe", *flags])


def prove_arm64(arguments: argparse.Namespace) -> tuple[str, str]:
    """The C files compiled for ARM64: known answers, and the fuzz corpus with all its properties, run by qemu."""
    missing = [tool for tool in ("aarch64-linux-gnu-gcc", "qemu-aarch64") if shutil.which(tool) is None]
    if "aarch64-linux-gnu-gcc" in missing:
        return NOT_RUN, f"not installed: {', '.join(missing)}"
    built = compile_alone("aarch64-linux-gnu-gcc", SCRATCH / "arm64", KNOWN_ANSWERS, ["-ldl"])
    if built.status or missing:
        return judged(built, f"compiles; not run, as not installed: {', '.join(missing)}")
    known = run(["qemu-aarch64", SCRATCH / "arm64" / "program.exe"])
    if known.status:
        return judged(known)
    replayed = run([sys.executable, "tests/fuzz/hunt.py", "--replay-on", "arm64"])
    return judged(replayed, f"known answers: {known.last_line}; corpus: {replayed.last_line}")


def prove_windows(arguments: argparse.Namespace) -> tuple[str, str]:
    """The C files compiled for Windows by mingw, and known answers run by wine; not the extension itself."""
    compiler = next((name for name in MINGW if shutil.which(name)), None)
    if compiler is None:
        return NOT_RUN, f"not installed: {MINGW[0]}"
    built = compile_alone(compiler, SCRATCH / "windows", KNOWN_ANSWERS, [])
    wine = next((path for name in WINE if (path := shutil.which(name))), None)
    if built.status or wine is None:
        return judged(built, "compiles; not run, as wine is not installed")
    environment = {"WINEPREFIX": str(SCRATCH / "wine"), "WINEDEBUG": "-all"}
    return judged(run([wine, SCRATCH / "windows" / "program.exe"], environment))
