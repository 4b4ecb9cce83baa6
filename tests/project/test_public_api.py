# SPDX-License-Identifier: Apache-2.0
"""What a user meets first: the names, light imports, signatures, and what is said about a wrong argument."""

from __future__ import annotations

import doctest
import inspect
import json
import subprocess
import sys
import types
from typing import Any

import pytest
from batch_writer import RecordSpec, build_batch, end_transaction_marker

import kcodec
from kcodec import _fast

DATA = build_batch([RecordSpec(key=b"k", value=b"v", headers=((b"h", None),)), RecordSpec(key=None, value=b"w")])
CORE = {
    "decode",
    "batches",
    "DecodedRecords",
    "RecordBatch",
    "RecordBatches",
    "Record",
    "DecodeLimits",
    "DEFAULT_LIMITS",
}
ISOLATION = {"AbortedTransaction", "IsolationLevel", "Compression", "TimestampType", "ControlType"}
ERRORS = {"KcodecError", "DecodeError", "TruncatedError", "CorruptBatchError", "UnsupportedError", "LimitExceededError"}
PACKAGES = {"numpy", "crc32c", "pyarrow", "pyspark", "pandas", "zstandard", "isal", "lz4", "cramjam"}
HEAVY = PACKAGES | {"dataclasses", "typing", "re", "inspect", "difflib", "asyncio", "socket", "threading", "tempfile"}
HEAVY |= {"kcodec.log", "kcodec.spark"}


def run(program: str) -> Any:
    """The JSON that the program prints as its last line, in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout.splitlines()[-1])


# ------------------------------------------------------------------------------------------------------------- names


def test_the_names_are_there() -> None:
    assert set(kcodec.__all__) >= CORE | ISOLATION | ERRORS | {"open", "COLUMNS"}
    assert len(kcodec.__all__) == len(set(kcodec.__all__))
    for name in kcodec.__all__:
        assert getattr(kcodec, name) is not None
    assert set(kcodec.__all__) <= set(dir(kcodec))


def test_there_is_no_other_public_name() -> None:
    modules = {name for name, value in vars(kcodec).items() if isinstance(value, types.ModuleType)}
    public = {name for name in vars(kcodec) if not name.startswith("_")} - modules
    assert public <= set(kcodec.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'kcodec' has no attribute 'encode_everything'"):
        kcodec.encode_everything  # noqa: B018  looking it up is the test


def test_everything_public_says_what_it_is() -> None:
    silent = []
    for name in kcodec.__all__:
        value = getattr(kcodec, name)
        if not isinstance(value, type) and not callable(value):
            continue
        if not inspect.getdoc(value):
            silent.append(name)
        if isinstance(value, type) and value.__module__ == "kcodec._fast":
            functions = [part for part in vars(value) if not part.startswith("_") and callable(getattr(value, part))]
            silent += [f"{name}.{part}" for part in functions if not inspect.getdoc(getattr(value, part))]
    assert silent == []


def test_examples_in_the_core_are_true() -> None:
    tried = doctest.testmod(_fast)
    assert tried.failed == 0
    assert tried.attempted >= 2


def test_names_of_the_core_say_where_they_are_from() -> None:
    for name in ("Record", "DecodedRecords", "RecordBatch", "RecordBatches", "AbortedTransaction", "Column", "Counts"):
        assert getattr(kcodec, name).__module__ == "kcodec._fast"
        assert getattr(kcodec, name).__name__ == name


# ----------------------------------------------------------------------------------------------------------- imports


def test_the_import_is_light() -> None:
    imported = run(
        "import sys; before = set(sys.modules)\n"
        "import kcodec\n"
        "imported = sorted(set(sys.modules) - before)\n"
        "import json; print(json.dumps(imported))"
    )
    assert {"kcodec._fast", "kcodec.errors"} <= set(imported)
    assert set(imported) & HEAVY == set()


def test_the_clients_import_neither_codecs_nor_network() -> None:
    """A program imports the network, TLS and the core of a client with the first one; Arrow and codecs when used."""
    imported = run(
        "import json, sys\nfrom kcodec.client import Admin, Consumer, Producer\nprint(json.dumps(sorted(sys.modules)))"
    )
    used_later = {"ssl", "socket", "asyncio", "difflib", "kcodec.network.client", "kcodec.network.options"}
    used_later |= {"kcodec.producer.core", "kcodec.consumer.core", "kcodec.admin.flows", "kcodec.transactions.manager"}
    assert "kcodec.client.producer" in imported
    assert set(imported) & (PACKAGES | used_later) == set()


def test_methods_of_clients_are_documented_before_their_use() -> None:
    for module in ("kcodec.client", "kcodec.client.aio"):
        seen = run(
            f"import inspect, json; from {module} import Admin, Consumer\n"
            "wanted = [Admin.create_topics, Consumer.commit, Consumer.lag]\n"
            "print(json.dumps([[one.__name__, one.__doc__, str(inspect.signature(one)), type(one).__name__]\n"
            "                  for one in wanted]))"
        )
        assert [name for name, *_ in seen] == ["create_topics", "commit", "lag"]
        for _, text, signature, kind in seen:
            assert text and kind == "function"
            assert signature.startswith("(self, ") and "timeout" in signature


def test_decoding_without_compression_imports_nothing_heavy() -> None:
    program = (
        "import sys; before = set(sys.modules); import kcodec\n"
        f"data = bytes.fromhex('{DATA.hex()}')\n"
        "decoded = kcodec.decode(data, isolation_level='read_committed', aborted_transactions=[(1, 2)])\n"
        "rows = [record.offset for record in decoded.records()]\n"
        "batches = [batch.is_valid() for batch in kcodec.batches(data)]\n"
        "decoded.__arrow_c_stream__(), decoded.__arrow_c_array__(), repr(decoded)\n"
        "seen = sorted(set(sys.modules) - before)\n"
        "import json; print(json.dumps([rows, batches, seen]))"
    )
    rows, batches, seen = run(program)
    assert (rows, batches) == ([0, 1], [True])
    assert set(seen) & HEAVY == set()


def test_all_names_can_be_had_without_arrow_spark_and_pandas() -> None:
    program = (
        "import json, sys\n"
        "for name in ('pyarrow', 'pyspark', 'pandas', 'numpy', 'crc32c'): sys.modules[name] = None\n"
        "from kcodec import *\n"
        "import kcodec.spark as spark\n"
        "print(json.dumps([DecodeError.__name__, open.__module__, spark.__name__, len(decode(b''))]))"
    )
    name, module, spark, rows = run(program)
    assert (name, spark, rows) == ("DecodeError", "kcodec.spark", 0)
    assert module.startswith("kcodec.log")


# -------------------------------------------------------------------------------------------------------- signatures


def test_signatures_are_those_that_people_call() -> None:
    parameters = inspect.signature(kcodec.decode).parameters
    assert {name: parameter.default for name, parameter in list(parameters.items())[1:]} == {
        "columns": ("offset", "timestamp", "key", "value", "headers"),
        "isolation_level": "read_uncommitted",
        "aborted_transactions": None,
        "last_stable_offset": None,
        "start_offset": None,
        "end_offset": None,
        "control_records": "skip",
        "on_error": "raise",
        "check_crcs": True,
        "limits": kcodec.DEFAULT_LIMITS,
        "binary_type": "binary",
        "threads": 1,
        "framing": None,
        "verify_crc": None,  # deprecated name of check_crcs
    }
    assert {parameter.kind for parameter in list(parameters.values())[1:]} == {inspect.Parameter.KEYWORD_ONLY}
    assert list(inspect.signature(kcodec.batches).parameters) == ["data", "limits"]
    assert (kcodec.DEFAULT_LIMITS.max_batch_bytes, kcodec.DEFAULT_LIMITS.max_decompressed_bytes) == (
        128 << 20,
        128 << 20,
    )


def test_columns_are_those_of_the_table() -> None:
    assert set(kcodec.COLUMNS) == {
        *("offset", "timestamp", "timestamp_type", "key", "value", "headers", "base_offset", "producer_id"),
        *("producer_epoch", "sequence", "partition_leader_epoch", "is_transactional", "is_control", "control_type"),
        *("topic", "partition"),
    }


# ------------------------------------------------------------------------------------------------- wrong arguments


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"columns": ("ofset",)}, ValueError, "unknown column 'ofset'; did you mean 'offset'?"),
        ({"columns": ("offset", "headrs")}, ValueError, "unknown column 'headrs'; did you mean 'headers'?"),
        ({"columns": ("body",)}, ValueError, "unknown column 'body'; possible: offset, timestamp, "),
        ({"columns": ("topic",)}, ValueError, "unknown column 'topic'; possible: offset, timestamp, "),
        ({"columns": (1,)}, ValueError, "unknown column 1; possible: offset, timestamp, "),
        ({"columns": ("key", "key")}, ValueError, "column 'key' is requested twice"),
        ({"columns": "offset"}, TypeError, "columns must be a sequence of names, not the string 'offset'"),
        ({"columns": None}, TypeError, "columns"),
        ({"isolation_level": "read_commited"}, ValueError, "'read_commited'; did you mean 'read_committed'?"),
        ({"isolation_level": 7}, ValueError, "unknown isolation_level 7; possible: read_uncommitted, read_committed"),
        ({"isolation_level": None}, ValueError, "unknown isolation_level None; possible: read_uncommitted, "),
        ({"on_error": "rais"}, ValueError, "unknown on_error 'rais'; did you mean 'raise'?"),
        ({"on_error": "ignore"}, ValueError, "unknown on_error 'ignore'; possible: raise, stop, skip"),
        ({"control_records": "includ"}, ValueError, "unknown control_records 'includ'; did you mean 'include'?"),
        ({"control_records": True}, ValueError, "unknown control_records True; possible: skip, include"),
        ({"binary_type": "large-binary"}, ValueError, "'large-binary'; did you mean 'large_binary'?"),
        ({"threads": 0}, ValueError, "threads must be at least 1, not 0"),
        ({"threads": "two"}, (ValueError, TypeError), "threads must be "),
        ({"limits": 1 << 20}, TypeError, "limits must be a DecodeLimits, not int"),
        ({"start_offset": "3"}, TypeError, "start_offset must be an int or None, not str"),
        ({"end_offset": 3.0}, TypeError, "end_offset must be an int or None, not float"),
        ({"end_offset": True}, TypeError, "end_offset must be an int or None, not bool"),
        ({"last_stable_offset": "3"}, TypeError, "last_stable_offset must be an int or None, not str"),
        ({"aborted_transactions": 5}, TypeError, "aborted_transactions"),
        ({"aborted_transactions": [5]}, TypeError, "aborted_transactions"),
        ({"aborted_transactions": [(5,)]}, (TypeError, ValueError), "aborted_transactions"),
        ({"aborted_transactions": [("7", 0)]}, TypeError, "producer_id must be an int, not str"),
        ({"aborted_transactions": [(7, 1 << 64)]}, ValueError, "first_offset must be a 64-bit number"),
        ({"colums": ("offset",)}, TypeError, "unexpected keyword argument 'colums'"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_wrong_argument_is_named_with_what_is_possible(options: dict[str, Any], kind: Any, text: str) -> None:
    isolation = (
        {"isolation_level": "read_committed"} if {"aborted_transactions", "last_stable_offset"} & set(options) else {}
    )
    with pytest.raises(kind) as caught:
        kcodec.decode(DATA, **{**isolation, **options})
    assert text in str(caught.value)
    assert not isinstance(caught.value, kcodec.KcodecError)


@pytest.mark.parametrize("data", ["text", None, 5, [1, 2], object()], ids=["text", "None", "5", "list", "object"])
def test_what_is_not_bytes_like_is_a_type_error(data: Any) -> None:
    for function in (kcodec.decode, kcodec.batches):
        with pytest.raises(TypeError, match="bytes-like"):
            function(data)


@pytest.mark.parametrize(
    "data", [DATA, bytearray(DATA), memoryview(DATA), memoryview(DATA).cast("b")], ids=lambda d: type(d).__name__
)
def test_whatever_is_bytes_like_will_do(data: Any) -> None:
    assert kcodec.decode(data) == kcodec.decode(DATA)


def test_kafkas_words_and_the_enumerations_are_one() -> None:
    data = build_batch([RecordSpec()], is_transactional=True, producer_id=7) + end_transaction_marker(
        0, producer_id=7, base_offset=1
    )
    for level in kcodec.IsolationLevel:
        name: Any = str(level)
        assert kcodec.decode(data, isolation_level=level) == kcodec.decode(data, isolation_level=name)
    assert kcodec.decode(data, isolation_level=kcodec.IsolationLevel.READ_COMMITTED).counts.aborted == 1


@pytest.mark.parametrize("name", ["max_batch_bytes", "max_decompressed_bytes"])
def test_limits_are_finite_numbers(name: str) -> None:
    for value in (0, 60, -1, 1 << 31, 1 << 80):
        with pytest.raises(ValueError, match=f"{name} must be between 61 and "):
            kcodec.DecodeLimits(**{name: value})
    for wrong in (None, "64", 1.5, True):
        with pytest.raises(TypeError, match=f"{name} must be an int, not "):
            kcodec.DecodeLimits(**{name: wrong})  # type: ignore[arg-type]
    assert getattr(kcodec.DecodeLimits(**{name: 61}), name) == 61


@pytest.mark.parametrize("name", ["DecodedRecords", "Column", "RecordBatch"])
def test_results_are_made_by_kcodec_alone(name: str) -> None:
    with pytest.raises(TypeError, match=r"cannot be created directly: call (kcodec\.|DecodedRecords)"):
        getattr(kcodec, name)()


@pytest.mark.parametrize(
    "expression",
    [
        "repr(cls.__new__(cls))",
        "list(cls.__new__(cls).records())",
        "cls.__new__(cls)[0]",
        "cls.__new__(cls).schema.__arrow_c_schema__()",
        "cls.__new__(cls).__arrow_c_schema__()",
        "cls.__new__(cls).to_numpy('offset')",
        "cls.__new__(cls) == cls.__new__(cls)",
        "cls.__new__(cls).feed(bytes(70), 0)",
        "cls.__new__(cls).take(True)",
        "__import__('pickle').dumps(cls.__new__(cls))",
        "[getattr(cls.__new__(cls), name) for name in dir(cls)]",
        "cls(None)",
    ],
)
def test_a_half_made_object_is_an_error_not_a_crash(expression: str) -> None:
    """Nobody should make them with __new__, but nothing reachable from Python may end the process."""
    program = (
        "import json\nfrom kcodec import _fast\n"
        "classes = [value for value in vars(_fast).values() if isinstance(value, type)]\n"
        "for cls in [value for value in classes if value.__module__ == 'kcodec._fast']:\n"
        f"    try: {expression}\n"
        "    except Exception: continue\n"
        "print(json.dumps('alive'))"
    )
    assert run(program) == "alive"


def test_modules_are_there_as_soon_as_they_are_asked_for() -> None:
    code = (
        "import sys, kcodec\n"
        "before = [name for name in sys.modules if name.startswith('kcodec.')]\n"
        "found = [kcodec.compat.aiokafka.install, kcodec.compat.kafka_python.uninstall, kcodec.log.check_file,\n"
        "         kcodec.text, kcodec.validate, kcodec.filter_to]\n"
        "late = ('compat', 'log', 'text', 'validation', 'compaction')\n"
        "print([name for name in before if name.split('.')[1] in late])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert {"compat", "log", "spark", "text"} <= set(dir(kcodec))
