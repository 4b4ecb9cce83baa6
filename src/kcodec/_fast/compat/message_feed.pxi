# SPDX-License-Identifier: Apache-2.0
# poll() and consume() of kcodec.compat.confluent: conversion of decoded records to messages.

cdef class MessageFeed:
    """The decoded records of a consumer, as messages. Internal.

    delivery: The Delivery of the last request for records.
    note:     Called with the last record that was taken of a partition, at the latest by `note_last`.
    """

    cdef Delivery current
    cdef Record last_record
    cdef EventQueue events
    cdef object note

    def __init__(self, EventQueue events not None, note):
        self.events = events
        self.note = note
        self.current = _delivery_before_the_first()

    @property
    def delivery(self):
        """The Delivery whose records are taken."""
        return self.current

    @delivery.setter
    def delivery(self, Delivery delivery not None):
        self.current = delivery

    def note_last(self):
        """Call `note` with the record taken last, unless it has been called with it."""
        last, self.last_record = self.last_record, None
        if last is not None:
            self.note(last)

    cdef ConfluentMessage taken(self):
        """Return the next message; None if the chunk has no more records, or if an event must be handled first."""
        cdef Record last
        cdef Delivery current = self.current
        if current.is_over or self.events.is_due():
            return None
        record = next(current.records, None)
        if record is None:
            return None
        last = self.last_record
        if last is not None and (
            last._partition is not (<Record?>record)._partition or last._topic is not (<Record>record)._topic
        ):
            self.note(last)
        self.last_record = <Record?>record
        return _message_of(<Record>record)

    def take_into(self, list messages not None, Py_ssize_t most):
        """Append messages until the list has `most`, or until no message can be returned now."""
        cdef ConfluentMessage message
        while len(messages) < most:
            message = self.taken()
            if message is None:
                return
            messages.append(message)

    def __reduce__(self):
        raise TypeError("the messages of a consumer cannot be pickled")


@cython.binding(True)
def poll_message(self, timeout=-1.0):
    """Return a message, None after `timeout` seconds (no limit if it is negative). Errors of a partition or the group
    are messages whose error() is set."""
    cdef MessageFeed feed = self._feed
    message = None if feed is None else feed.taken()
    return message if message is not None else self._poll(timeout)
