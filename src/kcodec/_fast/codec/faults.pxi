# SPDX-License-Identifier: Apache-2.0
# Conversion of a Fault to a Python exception. This file has all messages and classes of decoding errors.

_TEXTS = {
    FAULT_BATCH_LENGTH_TOO_SMALL: "{field} {found} is below {expected}, the minimum of a batch",
    FAULT_BATCH_LENGTH_LIMIT: "{field} {found} exceeds max_batch_bytes {expected}; "
                              "raise the limit if the batch is that large",
    FAULT_MAGIC: "magic {found} is not supported; expected 0, 1 or 2",
    FAULT_CRC: "the stored CRC {found:#010x} does not match the CRC of the bytes, {expected:#010x}",
    FAULT_COMPRESSION_ID: "compression id {found} is unknown; expected 0 to {expected}",
    FAULT_FIELD_NEGATIVE: "{field} {found} is negative",
    FAULT_OFFSET_OVERFLOW: "last_offset_delta {found} makes the last offset exceed 64 bits",
    FAULT_BASE_OFFSET_ORDER: "{field} {found} is not above {expected}, the last offset before it",
    FAULT_COUNT_TOO_BIG: "records_count is {found}, but {expected} bytes cannot hold that many records",
    FAULT_BYTES_LEFT: "{found} bytes are left after the {expected} records of records_count",
    FAULT_VARINT_CUT: "{field} is incomplete: the record ends within it",
    FAULT_VARINT_LONG: "{field} is a varint of more than {expected} bytes",
    FAULT_LENGTH_BEYOND: "{field} is {found}, but {expected} bytes remain",
    FAULT_LENGTH_NEGATIVE: "{field} {found} is negative",
    FAULT_RECORD_LENGTH_MISMATCH: "record_length is {found}, but the fields take {expected} bytes",
    FAULT_OFFSET_DELTA_RANGE: "offset_delta {found} is outside 0 to {expected}, the last_offset_delta",
    FAULT_OFFSET_DELTA_ORDER: "offset_delta {found} is not above the previous one, {expected}, in a compressed batch",
    FAULT_MESSAGE_TOO_SMALL: "{field} {found} in a compressed message is below {expected}, the minimum",
    FAULT_MESSAGE_MAGIC: "magic {found} is not supported inside a compressed message; expected 0 or 1",
    FAULT_MESSAGE_CRC: "the CRC {found:#010x} stored in a message inside a compressed message does not match the CRC "
                       "of the bytes, {expected:#010x}",
    FAULT_MESSAGE_COMPRESSED: "a message inside a compressed message is itself compressed (compression id {found})",
    FAULT_WRAPPER_NULL: "a compressed message has no value, so it contains no messages",
    FAULT_WRAPPER_EMPTY: "a compressed message contains no whole message in its {found} decompressed bytes",
    FAULT_WRAPPER_OFFSET: "{field} {found} of a compressed message is below {expected}, the relative offset of the "
                          "last message inside, and is not 0",
    FAULT_CONTROL_KEY_SHORT: "{field}: {size}, expected at least {expected} bytes",
    FAULT_CONTROL_KEY_VERSION: "{field} {found} is negative",
    FAULT_TIMESTAMP_OVERFLOW: "timestamp {found} ms at offset {expected} does not fit into microseconds",
    FAULT_COMPRESSED_CUT: "the {field} stream is incomplete",
    FAULT_COMPRESSED_BAD: "the {field} stream is corrupt: {detail}",
    FAULT_DECOMPRESSED_LIMIT: "{field} stream of {found} bytes or more exceeds max_decompressed_bytes {expected}; "
                              "raise the limit if the data is that large",
}


cdef str _static_text(const char *text):
    return "" if text == NULL else text.decode("ascii")


cdef object _error_of(const Fault *fault, object path=None, object next_offset=None):
    """Return the exception for a fault: a DecodeError, MemoryError, or the Python exception that caused it."""
    if fault.code == FAULT_NO_MEMORY:
        return MemoryError(f"no memory for {_static_text(fault.field)}")
    if fault.code == FAULT_PYTHON:
        return _python_errors.pop(fault.found)
    cdef int64_t found = fault.found, expected = fault.expected
    reason = _TEXTS[fault.code].format(
        field=_static_text(fault.field), found=found, expected=expected, detail=_static_text(fault.detail),
        size="null" if found < 0 else f"{found} bytes",
    )
    fields = {
        "position": fault.position if fault.has_base_offset else None,
        "base_offset": fault.base_offset if fault.has_base_offset else None,
        "record": fault.record if fault.record >= 0 else None,
        "path": path,
        "next_offset": next_offset,
    }
    if fault.code == FAULT_CRC or fault.code == FAULT_MESSAGE_CRC:
        return CorruptBatchError(reason, stored_crc=found, computed_crc=expected, **fields)
    if fault.code in (FAULT_MAGIC, FAULT_MESSAGE_MAGIC, FAULT_COMPRESSION_ID):
        return UnsupportedError(reason, **fields)
    if fault.code == FAULT_BATCH_LENGTH_LIMIT:
        return LimitExceededError(reason, limit="max_batch_bytes", value=expected, claimed=found, **fields)
    if fault.code == FAULT_DECOMPRESSED_LIMIT:
        return LimitExceededError(reason, limit="max_decompressed_bytes", value=expected, claimed=found, **fields)
    return DecodeError(reason, **fields)
