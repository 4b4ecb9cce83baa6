# SPDX-License-Identifier: Apache-2.0
"""The compiled core against what a program may hand it: invalid Arrow files, code that calls back, several threads.

    python tests/prove/prove_hostile_core.py [--files 100000] [--seed 1] [--seconds 20] [--results FOLDER]

Made to be run with a core under sanitizers (`tools/prove.py --only hostile`), which end the process at their first
report. Without them it still tells what is wrong with values and exceptions.

Files: IPC files and streams of every type that encode() takes, with offsets, views, indices, lengths and metadata
edited, read through pyarrow and given to encode(), partition_for() and the encoder of send_arrow(). Whatever is not
refused with EncodeError, ValueError or TypeError must decode to the values that pyarrow shows.
Calls: objects whose methods call the object that is reading them. Threads: several on one object of the core, which
refuses all but one.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import random
import signal
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import kcodec
from kcodec import EncodeError, Record, RecordBatchBuilder, TimestampType, _fast

# ------------------------------------------------------------------------------------------------------------ files

ROWS = 24
PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
VALUE_TYPES: dict[str, pa.DataType] = {
    "binary": pa.binary(),
    "string": pa.string(),
    "large_binary": pa.large_binary(),
    "large_string": pa.large_string(),
    "binary_view": pa.binary_view(),
    "fixed_size_binary": pa.binary(16),
    "dictionary": pa.dictionary(pa.int8(), pa.binary()),
    "dictionary of large": pa.dictionary(pa.int32(), pa.large_string()),
}
HEADER_TYPES: dict[str, pa.DataType | None] = {
    "none": None,
    "list": pa.list_(PAIR),
    "large_list": pa.large_list(PAIR),
    "map": pa.map_(pa.string(), pa.binary()),
    "list of views": pa.list_(pa.struct([("key", pa.string_view()), ("value", pa.binary_view())])),
}


def table_of(value_type: str, header_type: str, chooser: random.Random) -> pa.Table:
    """Keys and values of one type, headers of another, nulls among them, sometimes a slice of a longer table."""
    kind = VALUE_TYPES[value_type]
    rows = ROWS + 8

    def payload(at: int) -> bytes | None:
        if chooser.random() < 0.15:
            return None
        return b"%016d" % at if kind == pa.binary(16) else b"%d" % (at % 7) * chooser.randint(0, 9)

    def column(values: list[bytes | None]) -> pa.Array:
        array = pa.array(values, pa.binary())
        if pa.types.is_dictionary(kind):
            return array.cast(kind.value_type).dictionary_encode().cast(kind)
        return array.cast(kind)

    columns = {"key": column([payload(at) for at in range(rows)]), "value": column([payload(at) for at in range(rows)])}
    headers = HEADER_TYPES[header_type]
    if headers is not None:
        pairs = [[(f"name{one}", payload(1)) for one in range(chooser.randint(0, 3))] for _ in range(rows)]
        lists = [[{"key": name, "value": value} for name, value in row] for row in pairs]
        columns["headers"] = pa.array(pairs if headers == HEADER_TYPES["map"] else lists, headers)
    columns["timestamp"] = pa.array(range(rows), pa.timestamp("ms"))
    first = chooser.choice((0, 0, 3))
    return pa.table(columns).slice(first, ROWS)


def packed(table: pa.Table, is_stream: bool) -> bytes:
    """The table as an IPC file or stream, in two batches."""
    sink = pa.BufferOutputStream()
    make = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with make(sink, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=ROWS // 2 + 1):
            writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def opened(data: bytes, is_stream: bool) -> Any:
    """What a program has after it read the file: a table, or the reader of a stream."""
    buffer = pa.py_buffer(data)
    return pa.ipc.open_stream(buffer) if is_stream else pa.ipc.open_file(buffer).read_all()


def buffers_in(data: bytes, is_stream: bool) -> list[tuple[int, int]]:
    """(position, size) of every buffer of the columns in the bytes of a file."""
    whole = pa.py_buffer(data)
    read = pa.ipc.open_stream(whole).read_all() if is_stream else pa.ipc.open_file(whole).read_all()
    found = []
    for column in read.columns:
        for chunk in column.chunks:
            arrays = [chunk, chunk.dictionary] if isinstance(chunk, pa.DictionaryArray) else [chunk]
            buffers = [buffer for array in arrays for buffer in array.buffers() if buffer is not None and buffer.size]
            found += [(buffer.address - whole.address, buffer.size) for buffer in buffers]
    return [(position, size) for position, size in found if 0 <= position <= len(data) - size]


def edited(data: bytes, places: list[tuple[int, int]], chooser: random.Random) -> bytes:
    """One to three edits: mostly numbers in the columns' buffers, sometimes bytes, sometimes the metadata."""
    made = bytearray(data)
    for _ in range(chooser.randint(1, 3)):
        kind = chooser.random()
        position, size = chooser.choice(places)
        if kind < 0.7 and size >= 4:
            is_wide = size >= 8 and chooser.random() < 0.4
            width, code = (8, "<q") if is_wide else (4, "<i")
            at = position + chooser.randrange(size // width) * width
            (before,) = struct.unpack_from(code, made, at)
            most = (1 << (8 * width - 1)) - 1
            near = (-before, before + 1, before - 1, before + chooser.randint(-300, 300))
            number = chooser.choice((*near, -1, 0, 1000, 5000, 1 << 20, most, -most - 1, chooser.randint(-most, most)))
            struct.pack_into(code, made, at, max(min(number, most), -most - 1))
        elif kind < 0.9:
            made[position + chooser.randrange(size)] = chooser.randrange(256)
        else:
            made[chooser.randrange(len(made))] = chooser.randrange(256)
    return bytes(made)


def shown(column: pa.ChunkedArray) -> list[bytes | None] | None:
    """The values as pyarrow gives them; None where it calls the column invalid."""
    values: list[bytes | None] = []
    for chunk in column.chunks:
        try:
            chunk.validate(full=True)
        except ValueError as error:
            if "UTF8" not in str(error):
                return None
            chunk = chunk.view(pa.large_binary() if pa.types.is_large_string(chunk.type) else pa.binary())
        values += [text.encode() if isinstance(text, str) else text for text in chunk.to_pylist()]
    return values


def has_one(table: pa.Table, name: str) -> bool:
    """Whether a name, which may have been edited, is that of one column."""
    try:
        return bool(table.column_names.count(name) == 1)
    except UnicodeDecodeError:
        return False


def agrees(table: pa.Table, encoded: Any) -> bool:
    """Whether the batches hold what pyarrow shows of the table, as far as it shows it."""
    records = list(kcodec.decode(encoded).records())
    for name in ("key", "value"):
        if not has_one(table, name):  # the name itself was edited
            continue
        try:
            expected = shown(table.column(name))
        except (ValueError, TypeError, NotImplementedError):  # text that is not UTF-8, in a dictionary
            continue
        if expected is not None and [getattr(record, name) for record in records] != expected:
            return False
    return len(records) == len(table)


REFUSED = (EncodeError, ValueError, TypeError)
READING = (pa.ArrowException, ValueError, TypeError, OSError, KeyError, MemoryError, NotImplementedError)


def read_file(data: bytes, is_stream: bool, chooser: random.Random, counts: Counter[str]) -> None:
    """One file through everything that takes Arrow."""
    try:
        source = opened(data, is_stream)
    except READING:
        counts["refused by pyarrow"] += 1
        return
    options: dict[str, Any] = {"compression": chooser.choice(("none", "none", "lz4")), "max_batch_bytes": 1 << 20}
    try:
        encoded = kcodec.encode(source, timestamp=0, **options)
    except REFUSED:
        counts["refused by encode"] += 1
    else:
        counts["encoded"] += 1
        if not is_stream and not agrees(source, encoded):
            raise AssertionError("encode() made other records than pyarrow shows")
    if is_stream or not has_one(source, "key"):
        return
    for call in (
        lambda: kcodec.partition_for(source.column("key"), 7),
        lambda: _fast.check_arrow_columns(source, ("key", "value", "headers")),
        lambda: sent(source),
    ):
        try:
            call()
        except (*REFUSED, NotImplementedError):  # pyarrow gathers no rows of views inside of lists
            counts["refused by others"] += 1


def sent(table: pa.Table) -> list[Any]:
    """The batches that send_arrow() would send."""
    from kcodec.producer.options import ProducerSettings
    from kcodec.producer.tables import table_batches

    return list(table_batches(table, 5, ProducerSettings(), 0, None))


def files(count: int, seed: int) -> Counter[str]:
    """`count` edited files, and first every file as it is."""
    chooser = random.Random(seed)
    made = []
    for value_type in VALUE_TYPES:
        for header_type in HEADER_TYPES:
            for is_stream in (False, True):
                data = packed(table_of(value_type, header_type, chooser), is_stream)
                made.append((data, buffers_in(data, is_stream), is_stream))
    counts: Counter[str] = Counter()
    for data, _, is_stream in made:
        read_file(data, is_stream, chooser, counts)
    if counts["encoded"] != len(made):
        raise AssertionError(f"only {counts['encoded']} of {len(made)} valid files were encoded")
    counts.clear()
    for _ in range(count):
        data, places, is_stream = chooser.choice(made)
        read_file(edited(data, places, chooser), is_stream, chooser, counts)
        counts["files"] += 1
    return counts


# ------------------------------------------------------------------------------------------------------------ calls


class CallingPair:
    """A header that calls something while its fields are read."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def __len__(self) -> int:
        self.call()
        return 2

    def __iter__(self) -> Iterator[object]:
        self.call()
        return iter(("name", b"value"))


class CallingName(str):
    """A header's name that calls something when it is encoded."""

    __slots__ = ("call",)
    call: Callable[[], object]

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        self.call()
        return b"name"


def calling_name(call: Callable[[], object]) -> CallingName:
    """Such a name."""
    name = CallingName("näme")
    name.call = call
    return name


class Calls:
    """Runs a call, counts how it ended."""

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()

    def __call__(self, call: Callable[[], object]) -> None:
        try:
            call()
        except (RuntimeError, TypeError, ValueError) as error:
            self.ended[type(error).__name__] += 1
        else:
            self.ended["done"] += 1


def remake_record_while_it_is_encoded(calls: Calls) -> None:
    """The fields of a record that encode() reads are changed by one of its headers."""
    holder: list[Record] = []

    def again() -> None:
        calls(lambda: Record.__init__(holder[0], 1, 1, 0, b"k" * 100, b"v", ()))

    key = bytes(bytearray(b"old key " * 20))
    holder.append(Record(0, 0, TimestampType.CREATE_TIME, key, b"v" * 100, (CallingPair(again),)))  # type: ignore[arg-type]
    del key
    kcodec.encode(holder)


def client_builder() -> Any:
    """A ClientBatchBuilder that fills one batch."""
    return _fast.ClientBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)


def append_while_appending(calls: Calls) -> None:
    """A builder is called by the names of the headers that it reads."""
    for builder in (client_builder(), client_builder()):
        many = [("h", b"x")] * 40

        def again(builder: Any = builder, many: Any = many) -> None:
            calls(lambda: builder.append(1, 1, b"inner key", b"inner", many))
            calls(lambda: builder.build())
            calls(lambda: builder.__init__(2, 0, False, -1, -1, -1, 1 << 20))

        builder.append(0, 0, b"outer key", b"outer", [(calling_name(again), b"x"), ("b", b"y")])
        (record,) = kcodec.decode(builder.build()).records()
        if (record.key, record.value) != (b"outer key", b"outer"):
            raise AssertionError(f"the record that was appended became {record}")
    own = RecordBatchBuilder(timestamp=0)
    own.append(b"k", b"v", [(calling_name(lambda: calls(lambda: own.append(b"i", b"i"))), b"x")])
    own.close()


def gzip_batch(members: int) -> bytes:
    """A batch of one record whose stream is many members, so that it takes a while to decompress."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))
    from batch_writer import RecordSpec, build_record
    from bombs import batch_of

    record = gzip.compress(build_record(RecordSpec(value=b"v"), 0), mtime=0)
    return batch_of(gzip.compress(b"", mtime=0) * members + record, 1, "gzip")


def interrupt_decoding(calls: Calls) -> None:
    """A signal handler, which runs while a batch is decompressed, calls the object that decodes."""
    data = gzip_batch(150_000)
    decoder = _fast.Decoder()
    fetched = _fast.FetchedRecords(data, topic="t", partition=0, start_offset=0)
    steps = _fast.RecordSteps(data)
    for user, other in (
        (lambda: decoder.feed(data), lambda: decoder.take(flush=True)),
        (lambda: fetched.take(10), lambda: fetched.take_decoded()),
        (lambda: next(steps), lambda: steps.leader_epoch),
    ):
        before = signal.signal(signal.SIGALRM, lambda *_, other=other: calls(other))
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        try:
            user()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def lines_that_vanish(calls: Calls) -> None:
    """Lines of a text template whose sequence makes them again at each look."""

    class Lines:
        def __len__(self) -> int:
            return 50

        def __getitem__(self, at: int) -> tuple[int, bytes]:
            return 0, b"line %d " % at * 500

    template = _fast.TextTemplate([("integer", "offset")])
    decoded = kcodec.decode(kcodec.encode([(b"k", b"v")], timestamp=0))
    calls(lambda: bytes(template.format(decoded, lines=Lines())))  # type: ignore[arg-type]


REENTRANT = (remake_record_while_it_is_encoded, append_while_appending, interrupt_decoding, lines_that_vanish)


def reentrant() -> Counter[str]:
    """All of the above, and objects that are made twice."""
    calls = Calls()
    for case in REENTRANT:
        case(calls)
    data = gzip_batch(1)
    batch: Any = _fast.ClientBatch(bytes(kcodec.encode([(b"k", b"v")], timestamp=0)))
    legacy = struct.pack(">qiIbbiI", 0, 1 << 20, 0, 1, 0, 0, 0) + bytes(1 << 20)
    calls(lambda: batch.__init__(legacy))
    batch.validate_crc()
    remade: tuple[tuple[Any, dict[str, Any]], ...] = (
        (_fast.FetchedRecords(data, topic="t", partition=0, start_offset=0), {"topic": "t", "partition": 0}),
        (_fast.RecordSteps(data), {}),
    )
    for made, arguments in remade:
        start = {"start_offset": 0} if arguments else {}
        calls(partial(made.__init__, data, **arguments, **start))
    half: Any = _fast.Decoder.__new__(_fast.Decoder)
    calls(lambda: half.__init__(limits="none"))
    calls(lambda: half.feed(data))
    return calls.ended


# ---------------------------------------------------------------------------------------------------------- threads


def shared_calls(data: bytes) -> list[Callable[[], object]]:
    """What several threads call: each of these has an object of its own, which all threads share."""
    decoder = _fast.Decoder(binary_type="binary_view", columns=kcodec.COLUMNS, topic="t", partition=1)
    fetched = _fast.FetchedRecords(data, topic="t", partition=0, start_offset=0)
    steps = _fast.RecordSteps(data)
    cursor: Any = kcodec.decode(data).records()
    builder = client_builder()
    scanner = _fast.TransactionScanner()
    lazy = kcodec.batches(data)
    offsets = itertools.count()
    return [
        lambda: (decoder.feed(data), decoder.take()),
        lambda: (fetched.take(50), fetched.take_decoded()),
        lambda: next(steps),
        lambda: (cursor.take(10), next(cursor)),
        lambda: builder.append(next(offsets), 0, b"k", b"v" * 50, [("h", b"x")]),
        lambda: scanner.feed(data, 0, len(data)),
        lambda: len(lazy),
    ]


def threads(seconds: float, count: int = 4) -> Counter[str]:
    """Threads that share one object of each kind: a call is done or refused, and nothing else may happen."""
    codecs: tuple[Any, ...] = ("gzip", "lz4", "zstd", "none", "gzip", "zstd")
    data = b"".join(
        bytes(kcodec.encode([(b"key", b"v" * 300)] * 200, timestamp=0, base_offset=200 * at, compression=codec))
        for at, codec in enumerate(codecs * 8)
    )
    ended: Counter[str] = Counter()
    lock = threading.Lock()
    wrong: list[Exception] = []
    deadline = time.monotonic() + seconds

    def run(call: Callable[[], object]) -> None:
        outcomes: Counter[str] = Counter()
        for _ in range(30):
            try:
                call()
                outcomes["done"] += 1
            except (RuntimeError, EncodeError) as error:  # EncodeError: another thread's offset was ahead
                outcomes[type(error).__name__] += 1
            except StopIteration:
                break
            except Exception as error:  # noqa: BLE001  reported by the main thread
                wrong.append(error)
                break
        with lock:
            ended.update(outcomes)

    while time.monotonic() < deadline:
        for call in shared_calls(data):
            started = [threading.Thread(target=run, args=(call,)) for _ in range(count)]
            for thread in started:
                thread.start()
            for thread in started:
                thread.join()
            if wrong:
                raise AssertionError("a thread ended otherwise than by a refusal") from wrong[0]
    return ended


# ------------------------------------------------------------------------------------------------------------ main


def reported(counts: Counter[str]) -> str:
    """The counts in a line."""
    return ", ".join(f"{name} {number:,}" for name, number in sorted(counts.items()))


def main() -> int:
    """Runs all three and writes what came of them."""
    parser = argparse.ArgumentParser(description="the core against odd Arrow files, calls and threads")
    parser.add_argument("--files", type=int, default=100_000, help="edited IPC files (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the edits (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20, help="for which threads share objects")
    parser.add_argument("--results", type=Path, help="folder of the result file")
    arguments = parser.parse_args()
    began = time.monotonic()
    lines = [f"IPC files, seed {arguments.seed}: {reported(files(arguments.files, arguments.seed))}"]
    lines.append(f"calls from within: {reported(reentrant())}")
    lines.append(f"threads on one object, {arguments.seconds:g} s: {reported(threads(arguments.seconds))}")
    sanitized = "prove-build" in str(_fast.__file__)
    lines.append(f"core {'with' if sanitized else 'without'} sanitizers, {time.monotonic() - began:.0f} s, 0 reports")
    print("\n".join(lines))
    if arguments.results is not None:
        about = f"prove_hostile_core.py --files {arguments.files} --seed {arguments.seed}, pyarrow {pa.__version__}"
        arguments.results.mkdir(parents=True, exist_ok=True)
        (arguments.results / "hostile-core.txt").write_text("\n".join([about, "", *lines]) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
