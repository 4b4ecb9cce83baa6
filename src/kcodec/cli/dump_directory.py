# SPDX-License-Identifier: Apache-2.0
"""Log directories for ``kcodec dump``: a row a partition, from names and checkpoints; no log is read."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from kcodec.cli.output import Output
from kcodec.cli.parser import CommandError
from kcodec.cli.render import json_line, write_table
from kcodec.cli.status import ExitStatus
from kcodec.log import LogDirectory, open_log_directory

FIELDS = (
    *("topic", "partition", "topic_id", "segments", "size_in_bytes", "first_segment_offset", "last_segment_offset"),
    *("log_start_offset", "recovery_point", "high_watermark"),
)


def dump(options: argparse.Namespace, output: Output) -> ExitStatus:
    """The log directories named."""
    if options.records or options.offsets != (None, None):
        raise CommandError("--records and --offsets are for one partition: name its directory")
    for number, path in enumerate(options.files):
        directory = open_log_directory(path)
        if options.json:
            for row in _rows(directory):
                output.write(json_line(dict(zip(FIELDS, row, strict=True))))
            continue
        if len(options.files) > 1:
            output.write(f"{chr(10) if number else ''}{path}\n".encode("utf-8", "surrogateescape"))
        write_table(output, FIELDS, _rows(directory))
        output.flush()
        for other in directory.others:
            if other.kind not in ("file", "directory"):
                output.say(f"kcodec: {path}: {other.name} is no partition: {other.kind}")
    return ExitStatus.OK


def _rows(directory: LogDirectory) -> Iterator[list[Any]]:
    starts, points, marks = directory.log_start_offsets, directory.recovery_points, directory.high_watermarks
    ids = directory.topic_ids
    for topic, partitions in directory.topics.items():
        for partition in partitions:
            log = directory[topic, partition]
            place: Any = (topic, partition)
            yield [
                *(topic, partition, ids.get(topic), len(log.segments), log.size_in_bytes),
                *(log.segments[0].base_offset, log.segments[-1].base_offset),
                *(starts.get(place), points.get(place), marks.get(place)),
            ]
