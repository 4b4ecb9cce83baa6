# SPDX-License-Identifier: Apache-2.0
"""The exceptions of kcodec: about bytes, values and brokers. A wrong argument (an unknown column, an unknown option) is
a plain ValueError or TypeError.

    KcodecError
    ├─ DecodeError(ValueError)      the bytes that were read are invalid
    │  ├─ TruncatedError            the bytes of a batch end before its records
    │  ├─ CorruptBatchError         the CRC does not match
    │  ├─ UnsupportedError          a magic or compression id that cannot be read
    │  ├─ LimitExceededError        a limit of DecodeLimits
    │  └─ DeserializationError      a deserializer of the application failed for a record
    ├─ EncodeError(ValueError)      the values to write are invalid
    ├─ BufferFullError(BufferError) a producer's buffer stayed full
    ├─ DeliveryErrors(ExceptionGroup)       records of a producer failed, and nothing had retrieved their errors
    ├─ TopicDeliveryError           a member of it: the records of one topic that failed with one kind of error
    ├─ AdminError(ExceptionGroup)   some items of an Admin call failed
    ├─ RecordValidationError(ValueError)    a leader would refuse this batch, with Kafka's error code
    ├─ TransactionStateError        this call is illegal now
    ├─ BrokerError                  a broker responded with an error code
    │  ├─ ProducerFencedError       another producer with this transactional id took over
    │  ├─ TransactionTimedOutError  the coordinator aborted the transaction after its timeout
    │  ├─ AbortableTransactionError the transaction must be aborted; the producer stays usable
    │  ├─ FatalTransactionError     the producer must be closed
    │  ├─ AuthorizationError        a permission on `resource` is missing
    │  └─ OffsetOutOfRangeError     a consumer's position is outside of the log, and auto_offset_reset is "none"
    │     └─ LogTruncationError     the log was cut below the position, by an unclean election (KIP-320)
    ├─ NoOffsetForPartitionError    a group has no committed offset, and auto_offset_reset is "none"
    └─ TransportError(ConnectionError)      no response, or an invalid one
       ├─ RequestTimedOutError(TimeoutError)    one request, by its own deadline
       ├─ DeliveryTimeoutError(TimeoutError)    a record, or a call, by the user's deadline
       ├─ UnknownOutcomeError       a commit, an abort or a call of Admin was requested and got no response
       └─ AuthenticationError       TLS or SASL: the broker refused the client, or the client the broker

Texts say where, what was found and what was expected:
``batch at byte 1841 (base_offset 512), record 7: value_length is 900, but 12 bytes remain``.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from kcodec._fast import DecodedRecords, Record
    from kcodec.offsets import TopicPartition


def one_line(text: str, most: int | None = None) -> str:
    """Return a text with each unprintable character escaped as in a Python literal, cut after `most` characters.

    Names and messages from a broker or a file may hold line ends and terminal controls, which could forge lines of a
    log. Every text that leaves kcodec in an exception or a log record passes through here.
    """
    if most is not None and len(text) > most:
        return one_line(text[:most])[:most] + "..."
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


class KcodecError(Exception):
    """The root of all errors that kcodec defines. Their text is one line: see `one_line`.

    remedy: what the application should do: "retry" (the same call), "abort" (the transaction, then go on), "recreate"
            (close this client, make another), "stop" (something must be changed first); None where none of them fits.
    possibly_sent: whether a broker may have acted on the request, or may still do so, although it failed. If the error
            of a record has it, a program that sends the record again may write it twice.
    """

    remedy: str | None = None
    possibly_sent: bool = False

    def __str__(self) -> str:
        return one_line(self._text())

    def _text(self) -> str:
        """Return the text before unprintable characters are escaped."""
        return super().__str__()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args), vars(self)


def _rebuild(cls: type[KcodecError], arguments: tuple[Any, ...]) -> KcodecError:
    """Return an error without its fields, which unpickling adds; constructors have required keywords."""
    error = cls.__new__(cls, *arguments)
    error.args = arguments  # OSError leaves them to its constructor
    return error


class DecodeError(KcodecError, ValueError):
    """Bytes that are not a valid record batch.

    reason:      what is wrong, without the location.
    position:    byte in the input or file where the batch begins; None when no batch is meant.
    base_offset: of that batch, None if it was not readable.
    record:      index of the record within the batch, None if the batch as a whole is meant.
    path:        the file, None for bytes in memory.
    next_offset: where a reader can continue behind the corruption, None if it is unknown.
    decoded:     the records before the corruption (DecodedRecords), if there are any.
    topic_partition: where a consumer read them, else None.
    """

    remedy = "stop"

    def __init__(
        self,
        reason: str,
        *,
        position: int | None = None,
        base_offset: int | None = None,
        record: int | None = None,
        path: str | None = None,
        next_offset: int | None = None,
        decoded: DecodedRecords | None = None,
        topic_partition: TopicPartition | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position
        self.base_offset = base_offset
        self.record = record
        self.path = path
        self.next_offset = next_offset
        self.decoded = decoded
        self.topic_partition = topic_partition

    def _text(self) -> str:
        place = f"{self.topic_partition}: " if self.topic_partition is not None else ""
        place += f"{self.path}: " if self.path is not None else ""
        if self.position is not None:
            place += f"batch at byte {self.position}"
            if self.base_offset is not None:
                place += f" (base_offset {self.base_offset})"
            if self.record is not None:
                place += f", record {self.record}"
            place += ": "
        return place + self.reason


class TruncatedError(DecodeError):
    """The bytes of a batch end before its records. ``needed`` and ``available`` are numbers of bytes."""

    def __init__(self, reason: str, *, needed: int, available: int, **fields: Any) -> None:
        super().__init__(reason, **fields)
        self.needed = needed
        self.available = available


class CorruptBatchError(DecodeError):
    """The CRC-32C that a batch stores does not match its bytes."""

    def __init__(self, reason: str, *, stored_crc: int, computed_crc: int, **fields: Any) -> None:
        super().__init__(reason, **fields)
        self.stored_crc = stored_crc
        self.computed_crc = computed_crc


class UnsupportedError(DecodeError):
    """A format, codec or version that kcodec does not support, or a request that the broker does not support.

    If a batch is the cause, ``decoded`` holds the records before it.
    """


class LimitExceededError(DecodeError):
    """A limit was reached: ``limit`` is its name in DecodeLimits, ``value`` its setting, ``claimed`` the size found."""

    def __init__(self, reason: str, *, limit: str, value: int, claimed: int, **fields: Any) -> None:
        super().__init__(reason, **fields)
        self.limit = limit
        self.value = value
        self.claimed = claimed


class DeserializationError(DecodeError):
    """A function given as `key_deserializer` or `value_deserializer` failed for a record (Java:
    RecordDeserializationException, KIP-334 and KIP-1036). `__cause__` is the exception of the function.

    topic_partition, offset: where the record is stored.
    next_offset: the offset after it, at which the consumer continues after a `seek`.
    field:       "key" or "value".
    raw_record:  the record with key and value as bytes.
    """

    def __init__(self, reason: str, *, offset: int, field: str, raw_record: Record, **fields: Any) -> None:
        super().__init__(reason, **fields)
        self.offset = offset
        self.field = field
        self.raw_record = raw_record


class EncodeError(KcodecError, ValueError):
    """A value that a record batch cannot hold, or that Kafka's own producer refuses.

    reason: what is wrong, without the location.
    field:  the field or argument by Kafka's name, None if no single one is meant.
    value:  what was given for it.
    row:    of the source, counted from 0; None if no row is meant.
    """

    def __init__(self, reason: str, *, field: str | None = None, value: object = None, row: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.field = field
        self.value = value
        self.row = row

    def _text(self) -> str:
        return self.reason if self.row is None else f"row {self.row}: {self.reason}"


class BufferFullError(KcodecError, BufferError):
    """A producer's `buffer_memory` was full for `max_block_ms`: records come faster than brokers acknowledge them."""

    remedy = "retry"


class TopicDeliveryError(KcodecError):
    """Records of one topic that failed with one kind of error; a member of `DeliveryErrors`.

    topic:  the topic's name.
    kind:   the name of the broker's error ("MESSAGE_TOO_LARGE"), else the name of the exception's class.
    count:  the number of records.
    remedy, possibly_sent: those of that error.

    `__cause__` is the error of the first of these records.
    """

    def __init__(self, reason: str, *, topic: str, kind: str, count: int, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.topic = topic
        self.kind = kind
        self.count = count
        self.remedy = remedy


class DeliveryErrors(KcodecError, ExceptionGroup[TopicDeliveryError]):
    """Records were not delivered: raised by a producer's `flush` and `close`, for those records that failed since the
    last such call and whose error nothing has retrieved (`result`, `exception`, `error`, `await` or a callback).

    Each member is a `TopicDeliveryError`; `count` is the number of records of all members. The text describes the first
    members and counts the records of the others; `exceptions` has all of them.
    """

    @property
    def possibly_sent(self) -> bool:  # type: ignore[override]
        """Whether a broker may have stored some of the records."""
        return any(isinstance(member, KcodecError) and member.possibly_sent for member in self.exceptions)

    @property
    def count(self) -> int:
        """The number of records that failed."""
        return sum(member.count for member in self.exceptions if isinstance(member, TopicDeliveryError))

    def derive(self, members: Sequence[Any], /) -> DeliveryErrors:  # type: ignore[override]
        """Return the part of the group that `split` and `except*` select."""
        return DeliveryErrors(self.message, members)


class AdminError(KcodecError, ExceptionGroup[Exception]):
    """A call of `Admin` failed for some of its items.

    errors:  item -> its error.
    results: item -> its result, of the items that succeeded.
    """

    errors: dict[Any, KcodecError]
    results: dict[Any, Any]

    def __new__(cls, message: str, errors: Mapping[Any, KcodecError], results: Mapping[Any, Any]) -> AdminError:
        """Create the group from the errors of the items."""
        made = super().__new__(cls, message, list(errors.values()))
        made.errors, made.results = dict(errors), dict(results)
        return made

    def __init__(self, message: str, errors: Mapping[Any, KcodecError], results: Mapping[Any, Any]) -> None:
        super().__init__(message, list(errors.values()))

    @property
    def possibly_sent(self) -> bool:  # type: ignore[override]
        """Whether a broker may have acted on the request for some of the items that failed."""
        return any(error.possibly_sent for error in self.errors.values())

    def derive(self, exceptions: Sequence[Exception], /) -> AdminError:  # type: ignore[override]
        """Return a group of these exceptions, for `split` and `except*`."""
        kept = {item: error for item, error in self.errors.items() if any(error is one for one in exceptions)}
        return AdminError(self.message, kept, self.results)

    def _text(self) -> str:
        return "; ".join([self.message, *map(str, self.errors.values())])

    def __reduce__(self) -> tuple[Any, ...]:
        return AdminError, (self.message, self.errors, self.results)


class RecordValidationError(KcodecError, ValueError):
    """A leader would refuse this batch in a Produce request (Kafka: RecordValidationException, Errors).

    reason:         what is wrong, without the location.
    code, name:     Kafka's error (`kcodec.protocol.error_codes.ErrorCode`), as a number and by name.
    position:       byte in the input where the batch begins, None when no batch is meant.
    base_offset:    of that batch, None if it was not readable.
    record_indexes: of the records that are refused each by itself (no key, a timestamp out of range); a Produce
                    response names them, too. At most `validate.MAX_RECORD_INDEXES`.
    """

    def __init__(
        self,
        reason: str,
        *,
        code: int,
        name: str,
        position: int | None = None,
        base_offset: int | None = None,
        record_indexes: tuple[int, ...] = (),
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = int(code)  # not a member of ErrorCode, whose repr is not the number
        self.name = name
        self.position = position
        self.base_offset = base_offset
        self.record_indexes = record_indexes

    def _text(self) -> str:
        place = ""
        if self.position is not None:
            place = f"batch at byte {self.position}"
            place += f" (base_offset {self.base_offset}): " if self.base_offset is not None else ": "
        return f"{place}{self.reason} [{self.name}, {self.code}]"


class TransactionStateError(KcodecError):
    """This call is illegal in the transaction's state. state, event: as `kcodec.transactions.state` names them."""

    def __init__(self, reason: str, *, state: str, event: str) -> None:
        super().__init__(reason)
        self.state = state
        self.event = event


class BrokerError(KcodecError):
    """A broker responded with an error code (Kafka: org.apache.kafka.common.protocol.Errors).

    reason:    what was requested, of which resource, and what the code means.
    code:      Kafka's number; name: Kafka's name of it, "UNKNOWN" for a code that kcodec does not know.
    retriable: whether Kafka calls the error retriable: the same request may succeed later.
    remedy:    what the application should do: "retry" (the same call), "abort" (the transaction, then go on),
               "recreate" (close this producer, make another), "stop" (something must be changed first).
    resource:  the topic, group, transactional id or partition that is meant, where one is.
    possibly_sent: of the error of a record, whether a broker may have stored the record nevertheless.
    """

    remedy: str

    def __init__(
        self,
        reason: str,
        *,
        code: int,
        name: str,
        retriable: bool = False,
        remedy: str = "stop",
        resource: object = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = int(code)  # not a member of ErrorCode, whose repr is not the number
        self.name = name
        self.retriable = retriable
        self.remedy = remedy
        self.resource = resource

    def _text(self) -> str:
        return f"{self.reason} [{self.name}, {self.code}; remedy: {self.remedy}]"


class ProducerFencedError(BrokerError):
    """Another producer with the same transactional id took over (its epoch is higher): this one can no longer write."""


class TransactionTimedOutError(BrokerError):
    """The coordinator aborted the transaction after `transaction_timeout_ms`; no other producer took over."""


class AbortableTransactionError(BrokerError):
    """The transaction cannot be committed any more; abort it, and the producer is usable again."""


class FatalTransactionError(BrokerError):
    """The producer cannot be used any more, with or without an abort: close it and create another."""


class AuthorizationError(BrokerError):
    """A permission is missing. ``resource`` is the topic, group or transactional id (None: the cluster)."""


class OffsetOutOfRangeError(BrokerError):
    """A consumer's position is not in the log (any more), and `auto_offset_reset="none"` leaves the next
    position to the application: call seek.

    partition:        the TopicPartition.
    position:         where the consumer wanted to read.
    log_start_offset, log_end_offset: the log of the leader; -1 if it is unknown.
    """

    def __init__(
        self,
        reason: str,
        *,
        partition: TopicPartition,
        position: int,
        log_start_offset: int = -1,
        log_end_offset: int = -1,
        code: int = 1,
        name: str = "OFFSET_OUT_OF_RANGE",
        **fields: Any,
    ) -> None:
        super().__init__(reason, code=code, name=name, **fields)
        self.partition = partition
        self.position = position
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset


class LogTruncationError(OffsetOutOfRangeError):
    """Records that were read already are not in the log any more: a replica that lacked them became the leader.

    position_epoch:                    the leader epoch of the last record consumed.
    divergent_offset, divergent_epoch: up to where the log is still what was read, and the leader epoch there; -1
                                       where the leader does not know. (Kafka: LogTruncationException)
    """

    def __init__(
        self,
        reason: str,
        *,
        position_epoch: int,
        divergent_offset: int = -1,
        divergent_epoch: int = -1,
        **fields: Any,
    ) -> None:
        super().__init__(reason, **fields)
        self.position_epoch = position_epoch
        self.divergent_offset = divergent_offset
        self.divergent_epoch = divergent_epoch


class NoOffsetForPartitionError(KcodecError):
    """The group has no committed offset in `partition`, and `auto_offset_reset="none"` leaves the
    first position to the application: call seek. group_id: None for a consumer without a group."""

    def __init__(self, reason: str, *, partition: TopicPartition, group_id: str | None = None) -> None:
        super().__init__(reason)
        self.partition = partition
        self.group_id = group_id


class TransportError(KcodecError, ConnectionError):
    """A connection failed, was refused, or ended before the response.

    possibly_sent: whether bytes of the request may have reached the broker, so that it may yet act on them.
    remedy:        as in `KcodecError`; by default the one of the class.
    """

    def __init__(self, reason: str, *, possibly_sent: bool = False, remedy: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.possibly_sent = possibly_sent
        self.remedy = type(self).remedy if remedy is None else remedy


class RequestTimedOutError(TransportError, TimeoutError):
    """No response to one request within `request_timeout_ms`. The broker may have acted on it, or may still do so."""

    remedy = "retry"


class DeliveryTimeoutError(TransportError, TimeoutError):
    """A record was not acknowledged within `delivery_timeout_ms`, or a call did not end by its deadline.

    Its remedy is "abort" where a transaction is open that can only be aborted now, else "retry".
    """

    remedy = "retry"


class UnknownOutcomeError(TransportError):
    """A request that must not be repeated was sent and got no response, so that its outcome is unknown.

    After EndTxn, the transaction may be committed, aborted, or still open. `Admin` raises this error for
    `create_delegation_token`, for `delete_records` with the offset -1, and for `abort_transaction`.
    """


class AuthenticationError(TransportError):
    """TLS or SASL: one side does not trust the other. Trying again with the same credentials usually does not help.

    A client whose login was accepted before retries a refused login for some time, as docs/security.md describes.
    """

    remedy = "stop"
