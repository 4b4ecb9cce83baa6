# SPDX-License-Identifier: Apache-2.0
# Messages of kcodec.compat.confluent: records from a consumer, and delivery reports of a producer.

# The class confluent_kafka.Message, once kcodec.compat has set it.
cdef object _CONFLUENT_MESSAGE = None
cdef tuple _NOT_AVAILABLE = (0, -1)


def set_confluent_message(message_class):
    """Set the class that `isinstance` takes a ConfluentMessage for: confluent_kafka.Message."""
    global _CONFLUENT_MESSAGE
    _CONFLUENT_MESSAGE = message_class


# no_gc, as for Record: a message holds bytes, numbers and strings. An object that the program sets with set_value() may
# refer to the message; such a reference cycle is never collected.
@cython.no_gc
@cython.freelist(64)
cdef class ConfluentMessage:
    """A message with the methods of confluent_kafka.Message, which `isinstance` takes it for. Only clients make one."""

    cdef object held_topic, held_key, held_value, held_headers, held_error
    cdef object held_partition, held_offset, held_timestamp, held_kind, held_epoch
    cdef bint is_unread              # held_headers is a tuple, which is converted to a list when it is first read
    cdef int64_t latency_us          # -1: none

    def __cinit__(self):
        self.latency_us = -1

    @property
    def __class__(self):
        return type(self) if _CONFLUENT_MESSAGE is None else _CONFLUENT_MESSAGE

    def error(self):
        """Return the KafkaError, or None."""
        return self.held_error

    def value(self):
        """Return the value, or None."""
        return self.held_value

    def key(self):
        """Return the key, or None."""
        return self.held_key

    def topic(self):
        """Return the name of the topic, or None."""
        return self.held_topic

    def partition(self):
        """Return the number of the partition, or None."""
        return self.held_partition

    def offset(self):
        """Return the offset, or None."""
        return self.held_offset

    def leader_epoch(self):
        """Return the epoch of the leader that wrote the batch, or None."""
        return self.held_epoch

    def timestamp(self):
        """Return (type, milliseconds since 1970). The type is one of confluent_kafka's constants TIMESTAMP_*."""
        if self.held_timestamp is None or self.held_timestamp < 0:
            return _NOT_AVAILABLE
        return (1 + int(self.held_kind), self.held_timestamp)

    def latency(self):
        """Return the seconds from produce() to the report, or None."""
        return None if self.latency_us < 0 else self.latency_us / 1000000.0

    def delivery_count(self):
        """Return None: only share consumers count deliveries."""
        return None

    def headers(self):
        """Return a list of (name, value), or None without headers."""
        if self.is_unread:
            headers = list(<tuple>self.held_headers) if self.held_headers else None
            if self.is_unread:  # creating the list may start the garbage collector and so code that reads the headers
                self.held_headers = headers
                self.is_unread = False
        return self.held_headers

    def deserialized_key(self):
        """Return the key."""
        return self.held_key

    def deserialized_value(self):
        """Return the value."""
        return self.held_value

    def set_headers(self, headers, /):
        """Replace the headers."""
        self.is_unread = False
        self.held_headers = headers

    def set_value(self, value, /):
        """Replace the value."""
        self.held_value = value

    def set_key(self, key, /):
        """Replace the key."""
        self.held_key = key

    def set_topic(self, topic, /):
        """Replace the topic."""
        self.held_topic = topic

    def set_error(self, error, /):
        """Replace the error."""
        self.held_error = error

    def __len__(self):
        return 0 if self.held_value is None else len(self.held_value)

    def __reduce__(self):
        """Return the constructor call for a message of confluent_kafka with the same fields."""
        return self.__class__, (
            self.held_topic, -1 if self.held_partition is None else self.held_partition,
            -1001 if self.held_offset is None else self.held_offset, self.held_key, self.held_value, self.headers(),
            self.held_error, self.timestamp(), -1.0 if self.latency_us < 0 else self.latency_us / 1000000.0,
            -1 if self.held_epoch is None else self.held_epoch,
        )

    def __eq__(self, other):
        if _CONFLUENT_MESSAGE is None or not isinstance(other, _CONFLUENT_MESSAGE):
            return NotImplemented
        return (
            self.topic() == other.topic() and self.partition() == other.partition()
            and self.offset() == other.offset() and self.key() == other.key() and self.value() == other.value()
            and self.headers() == other.headers() and self.error() == other.error()
            and self.timestamp() == other.timestamp()
        )

    def __repr__(self):
        return (f"<Message topic={self.held_topic!r} partition={self.held_partition!r} offset={self.held_offset!r} "
                f"error={self.held_error!r}>")


cdef ConfluentMessage _message_of(Record record):
    cdef ConfluentMessage message = ConfluentMessage.__new__(ConfluentMessage)
    message.held_topic = record._topic
    message.held_partition = record._partition
    message.held_offset = record._offset
    message.held_key = record._key
    message.held_value = record._value
    message.held_timestamp = record._timestamp
    message.held_kind = record._timestamp_type
    message.held_epoch = record._leader_epoch
    if THREADS_RUN_AT_ONCE:  # two threads that read the headers at the same time could get different lists
        message.held_headers = list(<tuple>record._headers) if record._headers else None
    elif record._headers:
        message.held_headers = record._headers
        message.is_unread = True
    return message
