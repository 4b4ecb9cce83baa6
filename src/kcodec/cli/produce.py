# SPDX-License-Identifier: Apache-2.0
"""``kcodec produce``: send messages from stdin or files to a topic, with kcat's letters."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from kcodec.cli.brokers import add_broker_options, client_options, name_and_value, usage_errors
from kcodec.cli.formats import unescaped
from kcodec.cli.output import ExitStatus, Output
from kcodec.cli.parser import CommandError, Example, Parser, UsageError
from kcodec.cli.produce_input import InputMessage, json_messages, pieces_of, plain_messages, whole_files
from kcodec.cli.render import counted
from kcodec.errors import BrokerError, KcodecError

if TYPE_CHECKING:
    from kcodec.client import Producer, Transaction

DESCRIPTION = (
    "Sends messages to a topic. Each line of stdin is a message, or each FILE, or with -l each line of a FILE. The "
    "options have the same letters as in kcat. With -J, the input is the output of kcodec cat -J. Keys, values, "
    "headers, nulls and timestamps can be copied to another topic in this way. The exit status is 0 if all in-sync "
    "replicas have acknowledged every message. Retries do not create duplicates. With --transactional-id, "
    "read_committed consumers see all of the input or none of it."
)
EXAMPLES = (
    Example("lines as key:value", "kcodec produce -b localhost:9092 -t orders -K : -l orders.txt"),
    Example("output of kcodec cat -J", "kcodec produce -b localhost:9092 -t orders -J -l orders.jsonl"),
    Example("all or nothing", "kcodec produce -b localhost:9092 -t orders -l orders.txt --transactional-id nightly"),
)
CLOSE_SECONDS = 2.0
MAX_BLOCK_MS = 15_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def parser() -> Parser:
    """Return the options of the command."""
    found = Parser("produce", DESCRIPTION, EXAMPLES)
    found.add_argument(
        "files", nargs="*", metavar="FILE", help="each file is one message (with -l: one file, each line a message)"
    )
    add_broker_options(found)
    found.add_argument("-t", "--topic", metavar="TOPIC", help="the topic; with -J, a line can name another topic")
    found.add_argument("-p", "--partition", type=int, metavar="N", help="the partition (default: the key decides)")
    found.add_argument("-l", "--lines", action="store_true", help="each line of FILE is a message")
    shape = found.add_mutually_exclusive_group()
    shape.add_argument("-J", "--json", action="store_true", help="JSON lines, as written by kcodec cat -J")
    shape.add_argument("-K", "--key-delimiter", metavar="DELIMITER", help="delimiter between key and value")
    found.add_argument(
        "-D", "--delimiter", default="\\n", metavar="DELIMITER", help="delimiter after each message (default: \\n)"
    )
    found.add_argument("-k", "--key", metavar="KEY", help="key of messages without one")
    found.add_repeatable(
        "-H",
        "--header",
        type=name_and_value,
        metavar="NAME=VALUE",
        help="header of all messages, before their own; can be repeated",
    )
    found.add_argument("-Z", "--null", action="store_true", help="send an empty key or value as null")
    found.add_argument("-z", "--compression", choices=CODECS, help="codec of the batches (default: none)")
    found.add_argument("-c", "--count", type=int, metavar="N", help="end after N messages")
    found.add_argument("-T", "--tee", action="store_true", help="also write the values to stdout")
    found.add_argument(
        "--keep-partitions", action="store_true", help="with -J: keep the partition that each line names"
    )
    found.add_argument("--transactional-id", metavar="ID", help="send all input in one transaction")
    found.add_argument(
        "--commit-every", type=int, metavar="N", help="commit a transaction after every N messages instead"
    )
    return found


def run(options: argparse.Namespace, output: Output) -> ExitStatus:
    """Send all messages. Return ERROR if one was not acknowledged; in a transaction, none is then visible."""
    _check(options)
    messages = _with_defaults(_messages(options), options)
    producer = _producer(options)
    sending = _Sending(producer, options, output)
    try:
        if options.transactional_id is None:
            sending.send_all(messages, producer.send)
        else:
            _in_transactions(producer, sending, messages, options)
    except BaseException as error:
        # All messages are acknowledged, or one has failed, or Ctrl-C was pressed, so there is no reason to wait.
        with suppress(KcodecError):  # the cause of the end is reported
            producer.close(CLOSE_SECONDS)
        sending.report_acknowledged(error)
        raise
    producer.close(CLOSE_SECONDS)
    return ExitStatus.OK


def _check(options: argparse.Namespace) -> None:
    if options.topic is None and not options.json:
        meant = f": if {options.files[0]} is the topic, write -t {options.files[0]}" if options.files else ""
        raise UsageError(f"-t TOPIC is missing{meant} (see kcodec produce --help)")
    if options.lines and len(options.files) != 1:
        raise UsageError("-l needs exactly one FILE (see kcodec produce --help)")
    if options.json and options.files and not options.lines:
        raise UsageError("-J with a FILE needs -l, as each line is a message")
    if options.keep_partitions and not options.json:
        raise UsageError("--keep-partitions needs -J, as lines name the partitions")
    for name, least in (("count", 0), ("commit_every", 1), ("partition", 0)):
        given = getattr(options, name)
        if given is not None and given < least:
            raise UsageError(f"--{name.replace('_', '-')} must be at least {least}, not {given}")
    if options.commit_every is not None and options.transactional_id is None:
        raise UsageError("--commit-every needs --transactional-id")
    if not options.delimiter:
        raise UsageError("-D must not be empty")


def _messages(options: argparse.Namespace) -> Iterator[InputMessage]:
    if options.files and not options.lines:
        return whole_files(options.files)
    path = options.files[0] if options.files else None
    pieces = pieces_of(path)
    if options.json:
        return json_messages(pieces, keeps_partition=options.keep_partitions, path=path)
    key = None if options.key_delimiter is None else unescaped(options.key_delimiter)
    if key == b"":
        raise UsageError("-K must not be empty")
    return plain_messages(pieces, unescaped(options.delimiter), key, empty_is_null=options.null)


def _with_defaults(messages: Iterator[InputMessage], options: argparse.Namespace) -> Iterator[InputMessage]:
    """Yield messages with the defaults of the options. Values of a message take precedence, except over -t and -p."""
    key = None if options.key is None else options.key.encode("utf-8", "surrogateescape")
    headers = tuple((name, value.encode("utf-8", "surrogateescape")) for name, value in options.header)
    for message in islice(messages, options.count):
        topic = options.topic if options.topic is not None else message.topic
        if topic is None:
            raise CommandError(f"{message.place}: the message has no topic; add one, or pass -t")
        yield message._replace(
            topic=topic,
            key=key if message.key is None else message.key,
            headers=headers + message.headers,
            partition=message.partition if options.partition is None else options.partition,
        )


def _producer(options: argparse.Namespace) -> Producer:
    from kcodec.client import Producer

    given = client_options(options, "producer", max_block_ms=MAX_BLOCK_MS, compression_type="none")
    # What this call says is not changed by a file of properties, which may be that of an application.
    own = {"compression_type": options.compression, "transactional_id": options.transactional_id}
    given |= {name: value for name, value in own.items() if value is not None}
    with usage_errors():
        return Producer(**given)


class _Sending:
    """Sends messages. The first failure ends it."""

    def __init__(self, producer: Producer, options: argparse.Namespace, output: Output) -> None:
        self._producer = producer
        self._tee = unescaped(options.delimiter) if options.tee else None
        self._output = output
        #: In a transaction, messages are visible only if all are, so acknowledgements are not reported.
        self._is_transactional = options.transactional_id is not None
        self._sent = 0
        self._acknowledged = 0
        #: Places of the messages without a result yet, by their numbers, in the order in which they were sent.
        self._waiting: dict[int, str] = {}
        #: Place and error of the messages that failed, by their numbers.
        self._failed: dict[int, tuple[str, BaseException]] = {}
        self._is_committed_in_parts = options.commit_every is not None
        self._committed = 0
        #: Position of the first message of the transaction that is not committed, and the transaction.
        self._open: tuple[str, Transaction] | None = None

    def begin(self, first: str, transaction: Transaction) -> None:
        """Note that a transaction begins with the message at this position."""
        self._open = first, transaction

    def committed(self) -> None:
        """Note that all messages until now are committed."""
        self._committed, self._open = self._sent, None

    def send_all(self, messages: Iterable[InputMessage], send: Callable[..., Any]) -> None:
        """Send, and wait until all are acknowledged. Raise CommandError, which names the first message that was not.

        If the input is invalid or cannot be read, send the messages before the error first, except in a transaction.
        """
        try:
            self._send_each(messages, send)
        except (CommandError, BrokerError, OSError):  # also BrokenPipeError of -T
            if not self._is_transactional:
                with suppress(KcodecError):  # the cause of the end is reported
                    self._producer.flush()
            raise
        self._producer.flush()
        if self._failed:
            place, error = self._failed[min(self._failed)]
            raise _not_delivered(place, error) from error

    def _send_each(self, messages: Iterable[InputMessage], send: Callable[..., Any]) -> None:
        """Send until a message fails."""
        for message in messages:
            number = self._sent
            self._waiting[number] = message.place
            try:
                delivery = send(
                    message.topic, message.value, message.key, message.headers, message.partition, message.timestamp
                )
            except ValueError as refused:  # EncodeError, as of a record that is too large
                del self._waiting[number]
                raise _not_delivered(message.place, refused) from refused
            self._sent += 1
            delivery.add_done_callback(partial(self._ended, number, message.place))
            if self._tee is not None:
                self._output.write((message.value or b"") + self._tee)
                self._output.flush()
            if self._failed:
                break

    def _ended(self, number: int, place: str, delivery: Any) -> None:
        error = delivery.error
        if error is None:
            self._acknowledged += 1
        else:
            self._failed[number] = place, error
        del self._waiting[number]

    def report_acknowledged(self, error: BaseException) -> None:
        """Report the number of acknowledged messages, and the first message that was not acknowledged. With
        --commit-every, report the number of committed messages instead. The producer must be closed."""
        if self._is_committed_in_parts:
            self._report(self._committed_text(), error)
        if self._is_transactional or not self._sent:
            return
        before = "" if self._failed or not isinstance(error, CommandError) else " before it"
        were = "was" if self._acknowledged == 1 else "were"
        text = f"{counted(self._acknowledged, 'message')}{before} {were} acknowledged"
        places = self._waiting | {number: place for number, (place, _) in self._failed.items()}
        first = min(places, default=0)
        if places and not (first in self._failed and self._failed[first][1] is error.__cause__):
            reason = f": {self._failed[first][1]}" if first in self._failed else ""
            text += f"; the first that was not is {places[first]}{reason}"
        self._report(text, error)

    def _committed_text(self) -> str:
        """Return the number of messages that earlier transactions have committed, and the first of the others."""
        were = "was" if self._committed == 1 else "were"
        text = f"{counted(self._committed, 'message')} {were} committed in earlier transactions"
        if self._open is not None:
            first, transaction = self._open
            rest = "was not committed" if transaction.committed is not None else "may be committed or not"
            text += f"; the transaction that begins with {first} {rest}"
        return text

    def _report(self, text: str, error: BaseException) -> None:
        """Add this to the error, or print it if the error itself is not printed."""
        if isinstance(error, KeyboardInterrupt | BrokenPipeError):
            self._output.say(f"kcodec: {text}")
        else:
            error.add_note(text)


def _not_delivered(place: str, error: BaseException) -> CommandError:
    return CommandError(f"{place}: not delivered: {error}")


def _in_transactions(
    producer: Producer, sending: _Sending, messages: Iterator[InputMessage], options: argparse.Namespace
) -> None:
    """Commit after every `commit_every` messages, or once at the end. A failure, an invalid line or Ctrl-C aborts the
    open transaction."""
    for first in messages:
        part = chain([first], messages if options.commit_every is None else islice(messages, options.commit_every - 1))
        with producer.transaction() as transaction:
            sending.begin(first.place, transaction)
            sending.send_all(part, transaction.send)
        sending.committed()
