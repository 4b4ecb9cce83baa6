# SPDX-License-Identifier: Apache-2.0
"""The results of the test kit, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from kcodec.testing.bounded_reads.checks import Result
from kcodec.testing.bounded_reads.topics import CASES

__all__ = ["as_json", "cases_text", "table"]


#: Characters of an error that the table shows.
ERROR_LENGTH = 300


def cases_text() -> str:
    """Return each case with what its topic contains."""
    return "\n".join(f"{name:<18}{function.__doc__}" for name, function in CASES.items())


def table(results: Sequence[Result]) -> str:
    """Return a table for each isolation level, with a line for each case and a column for each reader; below, the
    first error of each reader.

    results: From `check`.
    """
    readers = list(dict.fromkeys(one.reader for one in results))
    found = {(one.isolation_level, one.case, one.reader): one for one in results}
    lines: list[str] = []
    for level in dict.fromkeys(one.isolation_level for one in results):
        cases = list(dict.fromkeys(one.case for one in results if one.isolation_level == level))
        cells = [[level, "rows", *readers]]
        for case in cases:
            of_case = [found.get((level, case, reader)) for reader in readers]
            rows = next(one.expected for one in of_case if one is not None)
            cells.append([case, str(rows), *("" if one is None else one.outcome for one in of_case)])
        widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
        for row in cells:
            lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        lines.append("")
    for reader in readers:
        errors = [one.error for one in results if one.reader == reader and one.error]
        if errors:
            others = f" (the first of {len(errors)} errors)" if len(errors) > 1 else ""
            lines.append(f"{reader}: {errors[0][:ERROR_LENGTH]}{others}")
    return "\n".join(lines).rstrip() + "\n"


def as_json(results: Sequence[Result]) -> str:
    """Return the results as a JSON array of objects. Keys and values of rows are written as text."""
    return json.dumps([{**asdict(one), "outcome": one.outcome} for one in results], indent=1, default=_text) + "\n"


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")
