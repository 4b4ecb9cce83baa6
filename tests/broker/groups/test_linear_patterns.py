# SPDX-License-Identifier: Apache-2.0
"""Regular expressions in linear time: the same matches as `re`, and no expression that takes long."""

from __future__ import annotations

import random
import re
import time

import pytest

from kcodec.broker.groups.linear_patterns import LinearPattern

PARTS = [
    *(
        "a",
        "b",
        ".",
        "[ab]",
        "[^a]",
        "[a-c_]",
        r"\d",
        r"\W",
        r"\w",
        r"\b",
        r"\B",
        "^",
        "$",
        "(?i:A)",
        "(?:ab|b)",
        "(a|)",
    ),
    *("x{2}", "(a*)*", "(?:a?b){1,3}", "a+?", "b*", "[0-9.]+", r"\.", "(?s:.)", "(c|ab)", "a??", "(?i:[^B])"),
]
TEXTS = ["", "a", "b", "ab", "aab", "abab", "xx", "a.b", "a1", "orders-1", "c_c", "AB", "a\nb", "-", "aaaaab", "bbb"]


def test_random_patterns_match_what_re_matches() -> None:
    chosen = random.Random(7)
    matches = 0
    for _ in range(1500):
        pattern = "".join(chosen.choices(PARTS, k=chosen.randrange(1, 5)))
        if chosen.random() < 0.3:
            pattern = f"{pattern}|{chosen.choice(PARTS)}"
        found, expected = LinearPattern(pattern), re.compile(pattern, re.ASCII)
        for text in TEXTS if r"\B" not in pattern else TEXTS[1:]:  # re has \B nowhere in an empty text, unlike RE2
            is_match = expected.fullmatch(text) is not None
            assert found.fullmatch(text) == is_match, (pattern, text)
            matches += is_match
    assert matches > 1500


@pytest.mark.parametrize("pattern", ["(a|a)*b", "(a*)*b", "(a+)+b", "a*a*a*a*a*a*b", "((a?){30}){10}b", "(.*.*.*)*b"])
def test_hostile_patterns_take_little_time(pattern: str) -> None:
    begun = time.thread_time()
    assert not LinearPattern(pattern).fullmatch("a" * 249)
    assert time.thread_time() - begun < 2


@pytest.mark.parametrize("pattern", ["(a{1000}){1000}", "a{100000}", "(((a{100}){100}){100}){100}"])
def test_large_patterns_are_refused_at_once(pattern: str) -> None:
    begun = time.thread_time()
    with pytest.raises(ValueError, match="too large"):
        LinearPattern(pattern)
    assert time.thread_time() - begun < 1
