# SPDX-License-Identifier: Apache-2.0
"""Regular expressions that are matched in linear time, as in RE2: a simulation of the automaton.

Python's `re` only parses an expression here. It would need exponential time to match some expressions, such as
``(a|a)*b``. The simulation visits each state of the automaton at most once for each character. As in RE2, \\d, \\s and
\\w match only ASCII characters.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

#: Positions of the automaton; RE2 limits the size of an expression, too.
MOST_STATES = 1000
_PARSER: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_CATEGORIES = {"DIGIT": frozenset("0123456789"), "SPACE": frozenset(" \t\n\r\f"), "WORD": _WORD}

Accepts = Callable[[str], bool]
#: Whether a condition of no width holds at a position of a text.
Holds = Callable[[str, int], bool]


class LinearPattern:
    """A regular expression.

    Raise ValueError if it is too large or uses syntax that RE2 does not have, and re.error if it is invalid.
    """

    def __init__(self, pattern: str) -> None:
        parsed = _PARSER.parse(pattern)
        #: Of each state: the characters that lead on, or the condition, or neither; and the states after it.
        self._accepts: list[Accepts | None] = []
        self._holds: list[Holds | None] = []
        self._next: list[list[int]] = []
        self._final = self._state([])
        self._first = self._sequence(parsed, self._final, parsed.state.flags)

    def fullmatch(self, text: str) -> bool:
        """Return whether the expression matches the whole text."""
        states = self._closure([self._first], text, 0)
        for position, character in enumerate(text, 1):
            after: list[int] = []
            for state in states:
                accepts = self._accepts[state]
                if accepts is not None and accepts(character):
                    after += self._next[state]
            states = self._closure(after, text, position)
            if not states:
                return False
        return self._final in states

    def _closure(self, states: list[int], text: str, position: int) -> set[int]:
        """Return the states that can be reached without reading a character."""
        found: set[int] = set()
        while states:
            state = states.pop()
            if state in found:
                continue
            found.add(state)
            holds = self._holds[state]
            if self._accepts[state] is None and (holds is None or holds(text, position)):
                states += self._next[state]
        return found

    # The automaton

    def _state(self, following: list[int], accepts: Accepts | None = None, holds: Holds | None = None) -> int:
        if len(self._next) >= MOST_STATES:
            raise ValueError(f"it is too large: more than {MOST_STATES} states")
        self._next.append(following)
        self._accepts.append(accepts)
        self._holds.append(holds)
        return len(self._next) - 1

    def _sequence(self, items: Iterable[Any], following: int, flags: int) -> int:
        for operation, argument in reversed(list(items)):
            following = self._item(str(operation), argument, following, flags)
        return following

    def _item(self, operation: str, argument: Any, following: int, flags: int) -> int:
        if operation in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, inner = argument
            return self._repeat(least, most, inner, following, flags)
        if operation == "BRANCH":
            return self._state([self._sequence(one, following, flags) for one in argument[1]])
        if operation == "SUBPATTERN":
            _, added, removed, inner = argument
            return self._sequence(inner, following, (flags | added) & ~removed)
        if operation == "AT":
            return self._state([following], holds=_condition(str(argument), flags))
        return self._state([following], accepts=_characters(operation, argument, flags))

    def _repeat(self, least: int, most: Any, inner: Any, following: int, flags: int) -> int:
        begin = following
        if most == _PARSER.MAXREPEAT:
            begin = self._state([following])
            self._next[begin].append(self._sequence(inner, begin, flags))
        else:
            for _ in range(most - least):
                begin = self._state([following, self._sequence(inner, begin, flags)])
        for _ in range(least):
            following = begin
            begin = self._sequence(inner, following, flags)
            if begin == following:  # it has no state, so repetitions add none: "(){1000000}"
                break
        return begin


def _characters(operation: str, argument: Any, flags: int) -> Accepts:
    """Return which characters an item matches."""
    if operation == "ANY":
        return (lambda character: True) if flags & re.DOTALL else (lambda character: character != "\n")
    if operation in ("LITERAL", "NOT_LITERAL"):
        items, is_negated = [("LITERAL", argument)], operation == "NOT_LITERAL"
    elif operation == "IN":
        items = [(str(kind), value) for kind, value in argument]
        is_negated = items[0][0] == "NEGATE"
        items = items[is_negated:]
    else:
        raise ValueError(f"{operation} is not in the syntax of RE2")

    def accepts(character: str) -> bool:
        variants = {character, character.lower(), character.upper()} if flags & re.IGNORECASE else {character}
        return any(_is_in(item, one) for item in items for one in variants) != is_negated

    return accepts


def _is_in(item: tuple[str, Any], character: str) -> bool:
    kind, value = item
    if kind == "LITERAL":
        return len(character) == 1 and ord(character) == value
    if kind == "RANGE":
        return len(character) == 1 and value[0] <= ord(character) <= value[1]
    name = str(value).removeprefix("CATEGORY_")
    return (character in _CATEGORIES[name.removeprefix("NOT_")]) != name.startswith("NOT_")


def _condition(name: str, flags: int) -> Holds:
    """Return the condition of an item without width."""
    is_multiline = bool(flags & re.MULTILINE)
    if name in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
        lines = is_multiline and name == "AT_BEGINNING"
        return lambda text, position: position == 0 or (lines and text[position - 1] == "\n")
    if name in ("AT_END", "AT_END_STRING"):
        lines = is_multiline and name == "AT_END"
        return lambda text, position: position == len(text) or (lines and text[position] == "\n")
    is_boundary = name == "AT_BOUNDARY"

    def holds(text: str, position: int) -> bool:
        before = position > 0 and text[position - 1] in _WORD
        after = position < len(text) and text[position] in _WORD
        return (before != after) == is_boundary

    return holds
