# SPDX-License-Identifier: Apache-2.0
"""Kafka's own classes as reference for record sets: the Java program of tests/java as a Python object.

    with JavaJudge() as judge:
        answer = judge.record_set(data)             # MemoryRecords, batch by batch
        answer = judge.consumer(data, ...)          # CompletedFetch: what a consumer delivers
        data = judge.batch(records, ...)            # MemoryRecordsBuilder; also marker, emptied_batch
        data = judge.rewritten(name, value, data)   # the setters of MutableRecordBatch
        answer = judge.filtered(data, choices, ...) # MemoryRecords.filterTo
        answer = judge.validated(data, settings)    # LogValidator
        answer = judge.produced(data, settings)     # UnifiedLog.appendAsLeader, behind the checks of a produce request
        partitions = judge.partitions(keys, 12)     # BuiltInPartitioner.partitionForKey

The program is compiled when its source or the jars change. It is started by the first call and kept running. Each call
has a time limit, after which the program is killed, and the next call starts a new one. It needs the jars of
tools/fetch_kafka_jars.py and Java. Without them JudgeUnavailable has the command to run, and no test is skipped.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO, Any

from java_answers import (
    Delivered,
    Filtered,
    JudgedRecord,
    JudgedRecordSet,
    ProduceResult,
    ProduceSettings,
    bytes_question,
    read_delivered,
    read_filtered,
    read_produce_result,
    read_record_set,
    read_written,
    record_question,
)

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = ROOT / "tests" / "java"
CLASSES = ROOT / ".cache" / "java-classes"
MAIN = "kcodec.judge.KafkaJudge"

# Small and quick to start: the questions are small, and the C1 compiler alone is best for seconds of work.
JVM_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
TIMEOUT_SECONDS = 60.0
SETTERS = ("setLastOffset", "setPartitionLeaderEpoch", "setMaxTimestamp CreateTime", "setMaxTimestamp LogAppendTime")
COMPILE_SECONDS = 120.0


class JudgeUnavailable(RuntimeError):
    """The program cannot run here. The message says what is missing and which command installs it."""


class JudgeFailed(RuntimeError):
    """The program ended or did not respond in time. This is a fault of the program or the machine, not a result."""


def _fetch_tool() -> ModuleType:
    """Return tools/fetch_kafka_jars.py as a module, which has the folder and the version of the jars, and Java."""
    spec = importlib.util.spec_from_file_location("fetch_kafka_jars", ROOT / "tools" / "fetch_kafka_jars.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FETCH = _fetch_tool()
KAFKA_VERSION: str = FETCH.KAFKA_VERSION


def java_and_jars() -> tuple[Path, Path]:
    """(java, folder of the jars), both known to be there."""
    libs: Path = FETCH.DEFAULT_LIBS
    if not FETCH.is_complete(libs):
        raise JudgeUnavailable("the jars of Apache Kafka are not in .cache/kafka-libs: run `make jars`")
    try:
        java: Path = FETCH.find_java()
    except FETCH.MissingTool as missing:
        raise JudgeUnavailable(str(missing)) from missing
    return java, libs


def compile_judge() -> Path:
    """The folder with the compiled programs of tests/java."""
    _, libs = java_and_jars()
    return compile_sources(sorted(SOURCES.glob("*.java")), class_path(libs), (libs / FETCH.STAMP).read_bytes())


def compile_sources(sources: Sequence[Path], path: str, stamp: bytes) -> Path:
    """The folder with the classes of these sources, compiled by the Eclipse compiler if sources or jars changed.

    path: the jars that they need. stamp: changes with the jars. The folder is named after a digest of sources and stamp
    and appears in one step, so test runs side by side do not disturb each other.
    """
    java, libs = java_and_jars()
    digest = hashlib.sha256(stamp)
    for source in sources:
        digest.update(source.read_bytes())
    target = CLASSES / digest.hexdigest()[:16]
    if target.is_dir():
        return target
    CLASSES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CLASSES) as scratch:
        compiled = Path(scratch, "classes")
        command = [str(java), "-jar", str(libs / f"ecj-{FETCH.ECJ_VERSION}.jar"), "-17", "-proc:none", "-nowarn"]
        command += ["-encoding", "UTF-8", "-cp", path, "-d", str(compiled), *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMPILE_SECONDS)
        if done.returncode:
            raise JudgeFailed(f"the Java sources do not compile:\n{done.stdout}{done.stderr}")
        with contextlib.suppress(FileExistsError, OSError):
            compiled.rename(target)
    if not target.is_dir():
        raise JudgeFailed(f"the compiled classes could not be moved to {target}")
    return target


def class_path(libs: Path) -> str:
    """Return all jars except the compiler, whose classes must not be on the class path of the program."""
    return ":".join(str(jar) for jar in sorted(libs.glob("*.jar")) if not jar.name.startswith("ecj-"))


class JavaJudge:
    """Kafka's classes in one long-running Java program, for one thread at a time."""

    def __init__(self, timeout: float = TIMEOUT_SECONDS) -> None:
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> JavaJudge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the program, by closing its input first; only ever this one process."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def version(self) -> str:
        """Return the version of Kafka's classes."""
        answer: str = self._ask(b"V")["version"]
        return answer

    def record_set(self, data: bytes) -> JudgedRecordSet:
        """Return what MemoryRecords and its batches read from `data`."""
        return read_record_set(self._ask(b"R" + data))

    def consumer(
        self,
        data: bytes,
        *,
        isolation_level: str = "read_uncommitted",
        aborted_transactions: Iterable[tuple[int, int]] = (),
        fetch_offset: int = 0,
        check_crcs: bool = True,
    ) -> Delivered:
        """What CompletedFetch delivers; `aborted_transactions` are pairs of producer id and first offset."""
        if isolation_level not in ("read_committed", "read_uncommitted"):
            raise ValueError(f"unknown isolation level {isolation_level!r}")
        aborted = list(aborted_transactions)
        question = struct.pack(
            ">cbbqi", b"C", isolation_level == "read_committed", check_crcs, fetch_offset, len(aborted)
        )
        question += b"".join(struct.pack(">qq", producer_id, first_offset) for producer_id, first_offset in aborted)
        return read_delivered(self._ask(question + data))

    def batch(
        self,
        records: Sequence[JudgedRecord],
        *,
        compression: int = 0,
        level: int | None = None,
        base_offset: int = 0,
        last_offset: int | None = None,
        log_append_time: int | None = None,
        delete_horizon_ms: int = -1,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        is_transactional: bool = False,
        is_control_batch: bool = False,
        partition_leader_epoch: int = 0,
    ) -> bytes:
        """A batch that MemoryRecordsBuilder writes: at least one record, offsets rising, `compression` a codec id.

        Raises WriterRefused.
        """
        end = records[-1].offset if last_offset is None else last_offset
        append_time = -1 if log_append_time is None else log_append_time
        question = struct.pack(">cbi", b"B", compression, -(1 << 31) if level is None else level)
        question += struct.pack(">bbb", log_append_time is not None, is_transactional, is_control_batch)
        question += struct.pack(">qqqq", base_offset, end, append_time, delete_horizon_ms)
        question += struct.pack(
            ">qhiii", producer_id, producer_epoch, base_sequence, partition_leader_epoch, len(records)
        )
        return self._written(question + b"".join(map(record_question, records)))

    def marker(
        self,
        offset: int,
        control_type: int,
        *,
        producer_id: int,
        producer_epoch: int,
        timestamp: int = 0,
        coordinator_epoch: int = 0,
        partition_leader_epoch: int = 0,
    ) -> bytes:
        """The batch of an end-transaction marker: `control_type` 0 is ABORT, 1 COMMIT."""
        question = struct.pack(">cqqi", b"M", offset, timestamp, partition_leader_epoch)
        return self._written(
            question + struct.pack(">qhhi", producer_id, producer_epoch, control_type, coordinator_epoch)
        )

    def emptied_batch(
        self,
        base_offset: int,
        last_offset: int,
        *,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int = -1,
        is_transactional: bool = False,
        is_control_batch: bool = False,
        max_timestamp: int = 0,
        is_log_append_time: bool = False,
        partition_leader_epoch: int = 0,
    ) -> bytes:
        """Return what the cleaner keeps of a batch whose records were all removed: its header, with a count of 0."""
        question = struct.pack(">cbbb", b"E", is_transactional, is_control_batch, is_log_append_time)
        question += struct.pack(">qqq", base_offset, last_offset, max_timestamp)
        return self._written(
            question + struct.pack(">qhii", producer_id, producer_epoch, base_sequence, partition_leader_epoch)
        )

    def rewritten(self, setter: str, value: int, data: bytes) -> bytes:
        """`data` after a setter of MutableRecordBatch, one of SETTERS, was called on every batch of it."""
        return self._written(struct.pack(">cbq", b"S", SETTERS.index(setter), value) + data)

    def filtered(self, data: bytes, choices: bytes, *, now: int = 0, delete_retention_ms: int = 0) -> Filtered:
        """Return the result of filterTo for `data`; for `choices` see BatchRewriter.filter. Raise WriterRefused."""
        question = struct.pack(">cqqi", b"F", now, delete_retention_ms, len(choices))
        return read_filtered(self._ask(question + choices + data))

    def validated(self, data: bytes, settings: ProduceSettings) -> ProduceResult:
        """Return the result of LogValidator."""
        return read_produce_result(self._ask(b"L" + settings.question() + data))

    def produced(self, data: bytes, settings: ProduceSettings) -> ProduceResult:
        """Return the response of a leader to a produce request with this record set."""
        return read_produce_result(self._ask(b"P" + settings.question() + data))

    def errors(self) -> list[dict[str, Any]]:
        """Kafka's table of errors: code, name, exception and retriable of each."""
        found: list[dict[str, Any]] = self._ask(b"N")["errors"]
        return found

    def shares(self, groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the results of assignors for groups; AssignJudge.java describes input and output."""
        found: list[dict[str, Any]] = self._ask(b"A" + json.dumps(groups).encode())["groups"]
        return found

    def partitions(self, keys: Sequence[bytes], partitions: int) -> list[int]:
        """The partition of each key."""
        question = struct.pack(">cii", b"K", partitions, len(keys)) + b"".join(map(bytes_question, keys))
        found: list[int] = self._ask(question)["partitions"]
        return found

    def _written(self, question: bytes) -> bytes:
        return read_written(self._ask(question))

    def _start(self) -> subprocess.Popen[bytes]:
        java, libs = java_and_jars()
        paths = f"{compile_judge()}:{class_path(libs)}"
        self._log = log = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the program runs)
        self._folder = tempfile.TemporaryDirectory(prefix="kcodec-judge-")  # its log, and libraries it unpacks
        folders = [f"-Djava.io.tmpdir={self._folder.name}", f"-Dkcodec.judge.directory={self._folder.name}"]
        command = [str(java), *JVM_OPTIONS, *folders, "-cp", paths, MAIN]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)

    def _ask(self, question: bytes) -> dict[str, Any]:
        """Send one call and read its result, within the time limit."""
        if self._process is None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        watchdog = threading.Timer(self._timeout, process.kill)
        watchdog.start()
        try:
            process.stdin.write(struct.pack(">i", len(question)) + question)
            process.stdin.flush()
            head = process.stdout.read(4)
            length = struct.unpack(">i", head)[0] if len(head) == 4 else 0
            body = process.stdout.read(length)
        except BrokenPipeError:
            head = body = b""
        finally:
            watchdog.cancel()
        if len(head) < 4 or len(body) < length:
            raise JudgeFailed(self._obituary())
        answer: dict[str, Any] = json.loads(body)
        return answer

    def _obituary(self) -> str:
        """Return why the program ended, with its stderr. The next call starts a new one."""
        assert self._process is not None
        assert self._log is not None
        code = self._process.wait()
        self._log.seek(0)
        reported = self._log.read().decode("utf-8", "replace").strip()
        self.close()
        return f"the Java judge ended with code {code} (killed after {self._timeout} s if -9):\n{reported}"
