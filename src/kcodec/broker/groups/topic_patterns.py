# SPDX-License-Identifier: Apache-2.0
"""The regular expressions of subscriptions (KIP-848), for which Kafka uses RE2/J.

Python's `re` parses them. Expressions that RE2 does not have are refused: lookaround, backreferences, atomic groups,
possessive quantifiers and conditions. Character classes that only RE2 has (``\\p{L}``, ``[[:alpha:]]``) are also
refused, because `re` does not have them. linear_patterns.py matches the expressions in linear time, as RE2 does.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable

from kcodec.broker.api import ApiError
from kcodec.broker.groups.linear_patterns import LinearPattern
from kcodec.protocol.error_codes import ErrorCode

# Syntax that `re` has and RE2 refuses. An escaped pair is skipped, so that "\\(?=" is not taken for a lookahead.
_NOT_IN_RE2 = re.compile(r"\\[1-9]|\(\?(?:[=!>(]|<[=!]|P=)|[*+?}]\+")
_ESCAPED = re.compile(r"\\[^1-9]", re.DOTALL)
MAX_PATTERN_LENGTH = 32_767


def compile_pattern(pattern: str) -> LinearPattern:
    """Return a regular expression. Raise ApiError (INVALID_REGULAR_EXPRESSION)."""
    refused = _NOT_IN_RE2.search(_ESCAPED.sub("..", pattern))
    if refused is not None:
        raise _invalid(pattern, f"{refused.group()!r} is not in the syntax of RE2")
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise _invalid(pattern[:100], f"it has {len(pattern)} characters, more than {MAX_PATTERN_LENGTH}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return LinearPattern(pattern)
    except (re.error, ValueError, OverflowError, RecursionError, Warning) as error:
        raise _invalid(pattern, str(error)) from None


def _invalid(pattern: str, why: str) -> ApiError:
    text = f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {why}."
    return ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION, text)


def matching_topics(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that the whole regular expression matches, in order. If it is empty or invalid, return none."""
    try:
        compiled = compile_pattern(pattern)
    except ApiError:
        return []
    return sorted(name for name in names if compiled.fullmatch(name)) if pattern else []
