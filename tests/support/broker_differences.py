# SPDX-License-Identifier: Apache-2.0
"""The first difference between two runs of a random sequence, in a form that can be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from broker_sequence_runner import Run
from broker_sequences import Step

_SHOWN = 300
_STEPS_BEFORE = 14


class Difference(NamedTuple):
    """Where two brokers differ: the step, the fields with both values, and the steps before it."""

    name: str
    number: int
    step: Step
    fields: list[tuple[str, Any, Any]]
    before: list[str]

    def __str__(self) -> str:
        lines = [f"{self.name}, step {self.number}: {self.step.kind} {self.step.arguments}"]
        for path, expected, found in self.fields[:6]:
            lines += [f"  {path}", f"    expected {_short(expected)}", f"    found    {_short(found)}"]
        return "\n".join([*lines, "  after", *(f"    {line}" for line in self.before)])

    def __repr__(self) -> str:
        return str(self)


def first_difference(expected: Run, found: Run) -> Difference | None:
    """Return the first step whose results differ; None if all are equal."""
    for number, (step, left, right) in enumerate(zip(expected.steps, expected.results, found.results, strict=True)):
        if left != right:
            earlier = list(zip(expected.steps, expected.results, strict=True))[max(number - _STEPS_BEFORE, 0) : number]
            before = [f"{one.kind} {one.arguments} -> {_short(result)}" for one, result in earlier]
            return Difference(expected.name, number, step, list(_differing("", left, right)), before)
    return None


def _differing(path: str, left: Any, right: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(left, dict) and isinstance(right, dict):
        for key in left:
            yield from _differing(f"{path}.{key}", left[key], right.get(key))
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for number, (one, other) in enumerate(zip(left, right, strict=True)):
            is_named = isinstance(one, list) and len(one) == 2 and isinstance(one[0], str)
            yield from _differing(f"{path}.{one[0] if is_named else number}", one, other)
    elif left != right:
        yield path, left, right


def _short(value: Any) -> str:
    text = str(value).replace("'", "").replace("[", "").replace("]", "")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
