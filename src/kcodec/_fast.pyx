# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, boundscheck=True, wraparound=False, nonecheck=True, freethreading_compatible=True
"""The compiled core: record batches to columns. This file is its table of contents.

Everything that touches bytes without the GIL is C, one subject a file, in `_fast/`:

    fault.h        what was wrong and where              bounds.h       reading untrusted bytes
    header.c       the 61-byte header                    scan.c         a walk over headers -> batch table
    visibility.c   isolation, before decompression       crc32c.c       the checksum, four ways
    decompress.c   codec -> function                     snappy.c lz4.c zstd.c
    records.c      one batch -> columns                  columns.c      a chunk: columns that are Arrow buffers
    legacy.c       messages of magic 0 and 1 -> columns  crc32.c        their checksum
    framing.c      schema ids split off keys, values     opening.c      old messages, views
    decode.c       the run over a table, threads         pool.c         output memory that is used again
    utf8.c         header names                          arrow_export.c chunks as Arrow
    encode.c       records -> batches                    arrow_import.c columns that others made
    murmur2.c      keys -> partitions                    text.c         chunks as text
    validate.c     a leader's look at records         guard.h        one caller at a time

What Python sees is made by the parts included below.
"""

import itertools
import sys

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport (
    PyBUF_FORMAT,
    PyBUF_ND,
    PyBUF_READ,
    PyBUF_SIMPLE,
    PyBUF_STRIDES,
    PyBUF_WRITABLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from cpython.exc cimport PyErr_CheckSignals
from cpython.list cimport PyList_GET_ITEM, PyList_New, PyList_SET_ITEM
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyTypeObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF, PyObject
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset, strcmp

from kcodec.constants import Compression, ControlType, IsolationLevel, TimestampType
from kcodec.errors import (
    CorruptBatchError,
    DecodeError,
    EncodeError,
    LimitExceededError,
    TruncatedError,
    UnsupportedError,
)
from kcodec.limits import DEFAULT_LIMITS, LARGEST_LIMIT, DecodeLimits

# the C parts, as Cython knows them
include "_fast/codec/declarations.pxi"
include "_fast/codec/encode_declarations.pxi"
# Fault -> exception, the one place
include "_fast/codec/faults.pxi"
# one caller at a time
include "_fast/codec/guard.pxi"
# the caller's bytes, and limits
include "_fast/codec/source.pxi"
# zstd and gzip by their Python packages
include "_fast/codec/packages.pxi"
# AbortedTransaction, AbortedTransactions
include "_fast/codec/aborted.pxi"
# FrameBuffer: where a connection receives
include "_fast/wire/frame_buffer.pxi"
# Record
include "_fast/codec/record.pxi"
# column names and layouts; Column
include "_fast/arrow/columns.pxi"
# DecodedRecords, Counts
include "_fast/codec/decoded.pxi"
# capsules, streams
include "_fast/arrow/arrow.pxi"
# TextTemplate: records as text
include "_fast/text/text.pxi"
# decode(): one call over bytes
include "_fast/codec/decode.pxi"
# Decoder: windows of a file
include "_fast/codec/decoder.pxi"
# RecordBatch, RecordBatches
include "_fast/codec/batches.pxi"
# RecordSteps: a chunk at a time, as asked for
include "_fast/compat/steps.pxi"
# RecordCursor: Records, one or some at a time
include "_fast/codec/cursor.pxi"
# decode_fetch(), FetchedRecords: one partition of a Fetch answer
include "_fast/codec/fetched.pxi"
# deserialize_records(): keys and values as objects of the application
include "_fast/codec/deserialize.pxi"
# Delivery, RecordIterator, AsyncRecordIterator: records of a consumer one by one
include "_fast/codec/delivery.pxi"
# what kcodec.compat gives to other clients' consumers: records, then batches and sets of them
include "_fast/compat/client_rows.pxi"
include "_fast/compat/client.pxi"
# TransactionScanner
include "_fast/codec/scanner.pxi"
# Arrow data of others, and its rows
include "_fast/arrow/arrow_import.pxi"
# compression by packages
include "_fast/codec/compress.pxi"
# one row of Python objects
include "_fast/codec/rows.pxi"
# _Writer: settings, sources
include "_fast/codec/writer.pxi"
# encode(), encode_batch(), EncodedBatches
include "_fast/codec/encode.pxi"
# RecordBatchBuilder
include "_fast/codec/builder.pxi"
# what kcodec.compat gives to other clients' producers
include "_fast/compat/client_builder.pxi"
# Partitions, partition_for()
include "_fast/codec/partition.pxi"
# SendLock, RecordAppender: a record on its way from `send` into a batch
include "_fast/sending/send_lock.pxi"
include "_fast/sending/io_turn.pxi"
include "_fast/sending/appender.pxi"
# clients in the shape of confluent_kafka: their events, messages, poll() and produce()
include "_fast/compat/events.pxi"
include "_fast/compat/message.pxi"
include "_fast/compat/message_feed.pxi"
include "_fast/compat/reports.pxi"
# what a leader finds in records
include "_fast/codec/validate.pxi"
# messages of the protocol: plans and objects, bytes -> message, message -> bytes
include "_fast/wire/messages.pxi"
include "_fast/wire/message_reader.pxi"
include "_fast/wire/message_writer.pxi"
# processor paths, system libraries, memory: start-up and tests
include "_fast/codec/switches.pxi"
