# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3, boundscheck=True, wraparound=False, nonecheck=True, freethreading_compatible=True
"""The compiled core, which decodes record batches to columns and encodes them. This file is its table of contents.

All code that processes bytes without the GIL is C. Each file in the folders of `_fast/` has one subject:

    fault.h        description of invalid data           bounds.h       reading untrusted bytes
    header.c       the header of a batch                 scan.c         reading headers to a table of batches
    visibility.c   isolation level and offset range      crc32c.c       the checksum of magic 2
    decompress.c   decompression by codec                snappy.c lz4.c zstd.c inflate.c
    records.c      records of one batch to columns       columns.c      a chunk: columns that are Arrow buffers
    legacy.c       messages of magic 0 and 1 to columns  crc32.c        the checksum of magic 0 and 1
    framing.c      schema ids of keys and values         opening.c      compressed messages of magic 0 and 1, views
    decode.c       decoding a table of batches, threads  small_batches.c  a faster path for small batches
    pool.c         a pool of output memory               platform.c     differences of operating systems
    utf8.c         UTF-8 of header names                 arrow_export.c export of chunks to Arrow
    encode.c       records to batches                    arrow_import.c columns of other programs
    encode_rows.c  Arrow rows to batches                 murmur2.c      partitions of keys
    text.c         formatting of chunks as text          validate.c     validation of records by a leader
    guard.h        protection against concurrent use     message_object.h  slots of protocol messages

The files included below have the Python classes and functions.
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
from libc.string cimport memcmp, memcpy, memset, strchr, strcmp

from kcodec.constants import Compression, ControlType, IsolationLevel, TimestampType
from kcodec.errors import (
    CorruptBatchError,
    DecodeError,
    EncodeError,
    LimitExceededError,
    TruncatedError,
    UnsupportedError,
)
from kcodec.integers import as_integer, shown
from kcodec.limits import DEFAULT_LIMITS, LARGEST_LIMIT, DecodeLimits

# declarations of the C code for Cython
include "_fast/codec/declarations.pxi"
include "_fast/codec/encode_declarations.pxi"
# conversion of faults to exceptions
include "_fast/codec/faults.pxi"
# protection of objects against concurrent use
include "_fast/codec/guard.pxi"
# access to the caller's bytes, and checks of arguments
include "_fast/codec/source.pxi"
# decompression of zstd and gzip by Python packages
include "_fast/codec/packages.pxi"
# AbortedTransaction, AbortedTransactions
include "_fast/codec/aborted.pxi"
# FrameBuffer: memory for the bytes that a connection receives
include "_fast/wire/frame_buffer.pxi"
# Record
include "_fast/codec/record.pxi"
# column names and layouts; Column
include "_fast/arrow/columns.pxi"
# DecodedRecords, Counts
include "_fast/codec/decoded.pxi"
# export by Arrow capsules and streams
include "_fast/arrow/arrow.pxi"
# TextTemplate: formatting of records as text
include "_fast/text/text.pxi"
# decode(): decoding of bytes in one call
include "_fast/codec/decode.pxi"
# Decoder: decoding of a file window by window
include "_fast/codec/decoder.pxi"
# RecordBatch, RecordBatches
include "_fast/codec/batches.pxi"
# RecordSteps: decoding chunk by chunk
include "_fast/compat/steps.pxi"
# RecordCursor: iteration over records
include "_fast/codec/cursor.pxi"
# decode_fetch(), FetchedRecords: one partition of a Fetch response
include "_fast/codec/fetched.pxi"
# deserialize_records(): conversion of keys and values to objects of the application
include "_fast/codec/deserialize.pxi"
# Delivery, RecordIterator, AsyncRecordIterator: iteration over the records of a consumer
include "_fast/codec/delivery.pxi"
# for the consumers of other clients, by kcodec.compat: records, batches and record sets
include "_fast/compat/client_rows.pxi"
include "_fast/compat/client.pxi"
# TransactionScanner
include "_fast/codec/scanner.pxi"
# import of Arrow data
include "_fast/arrow/arrow_import.pxi"
# compression
include "_fast/codec/compress.pxi"
# conversion of rows of Python objects
include "_fast/codec/rows.pxi"
# _Writer: settings of batches, and appending of rows and Arrow data
include "_fast/codec/writer.pxi"
# encode(), encode_batch(), EncodedBatches
include "_fast/codec/encode.pxi"
# RecordBatchBuilder
include "_fast/codec/builder.pxi"
# for the producers of other clients, by kcodec.compat: the batch builder
include "_fast/compat/client_builder.pxi"
# Partitions, partition_for()
include "_fast/codec/partition.pxi"
# SendLock, IoTurn, RecordAppender: appending of sent records to batches
include "_fast/sending/send_lock.pxi"
include "_fast/sending/io_turn.pxi"
include "_fast/sending/appender.pxi"
# kcodec.compat.confluent: events, messages, poll() and produce()
include "_fast/compat/events.pxi"
include "_fast/compat/message.pxi"
include "_fast/compat/message_feed.pxi"
include "_fast/compat/reports.pxi"
# validation of records by a leader
include "_fast/codec/validate.pxi"
# messages of the protocol: plans and objects, decoding, encoding
include "_fast/wire/messages.pxi"
include "_fast/wire/message_reader.pxi"
include "_fast/wire/message_writer.pxi"
# start-up: selection of CRC implementation and zstd library; functions for tests
include "_fast/codec/switches.pxi"
