# SPDX-License-Identifier: Apache-2.0
"""Records on their way to stdout, for ``cat`` and ``consume``: kcat's letters, JSON, what internal topics say."""

from __future__ import annotations

import argparse

from kcodec import DecodedRecords
from kcodec.cli import internal
from kcodec.cli.formats import template_of_delimiters, template_of_format
from kcodec.text import TextBytes, TextTemplate, json_lines

FIELDS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
CONTROL_FIELDS = ("is_control", "control_type", "coordinator_epoch")


def add_shape_options(parser: argparse.ArgumentParser) -> None:
    """What a record looks like."""
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("-J", "--json", action="store_true", help="one JSON object a line")
    shape.add_argument("-f", "--format", metavar="FORMAT", help="a format string")
    shape.add_argument("-K", "--key-delimiter", metavar="DELIMITER", help="the key and this before each value")
    parser.add_argument(
        "-D", "--delimiter", default="\\n", metavar="DELIMITER", help="behind each value (default: \\n)"
    )
    parser.add_argument("-Z", "--null", action="store_true", help="NULL for a null key or value (default: nothing)")
    parser.add_argument("--raw", action="store_true", help="records of internal topics as bytes, not decoded")


class RecordText:
    """The text of records of one partition. columns: what has to be read for it."""

    def __init__(
        self, topic: str | None, partition: int | None, options: argparse.Namespace, *, control: bool = False
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._template = _template(topic, partition, options, control)
        is_plain = options.format is None and options.key_delimiter is None
        self._is_decoded = topic in internal.TOPICS and is_plain and not options.raw
        self.columns = internal.COLUMNS if self._is_decoded else self._template.columns

    def of(self, decoded: DecodedRecords, most: int) -> TextBytes | bytes:
        """So many records of a chunk."""
        if not self._is_decoded:
            return self._template.format(decoded, most=most)
        assert self._topic is not None
        return internal.lines(decoded, most, self._topic, self._partition)


def _template(topic: str | None, partition: int | None, options: argparse.Namespace, control: bool) -> TextTemplate:
    null = b"NULL" if options.null else b""
    if options.json:
        return json_lines((*FIELDS, *CONTROL_FIELDS) if control else FIELDS, topic=topic, partition=partition)
    if options.format is not None:
        return template_of_format(options.format, null, topic, partition)
    return template_of_delimiters(options.key_delimiter, options.delimiter, null)
