# SPDX-License-Identifier: Apache-2.0
"""SASLprep (RFC 4013): how a name or a password is written before it is hashed, so that two ways to type it agree."""

from __future__ import annotations

import stringprep
import unicodedata

_PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def saslprep(text: str, *, stored: bool = True) -> str:
    """`text` as SASLprep writes it: odd spaces as a space, invisible characters dropped, compatibility forms folded.

    stored: refuse code points that Unicode 3.2 had not assigned, as RFC 5802 wants of passwords; names may hold them.

    Raises ValueError for a character that is prohibited, and for right-to-left text mixed with other text. The error
    names the character's place and code point, not the text.

    >>> saslprep("I\\u00adX"), saslprep("\\u2168"), saslprep("a\\u00a0b")
    ('IX', 'IX', 'a b')
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in text
        if not stringprep.in_table_b1(character)
    )
    # stringprep is defined on Unicode 3.2, and so is its normal form.
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    for place, character in enumerate(prepared):
        if any(prohibits(character) for prohibits in _PROHIBITED):
            raise ValueError(f"character {place} (U+{ord(character):04X}) is prohibited by SASLprep")
        if stored and stringprep.in_table_a1(character):
            raise ValueError(f"character {place} (U+{ord(character):04X}) is not assigned in Unicode 3.2 (SASLprep)")
    _check_direction(prepared)
    return prepared


def _check_direction(prepared: str) -> None:
    """RFC 3454 section 6: text with right-to-left letters holds no left-to-right ones and begins and ends with them."""
    if not any(stringprep.in_table_d1(character) for character in prepared):
        return
    if any(stringprep.in_table_d2(character) for character in prepared):
        raise ValueError("right-to-left and left-to-right letters are mixed, which SASLprep prohibits")
    if not (stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1])):
        raise ValueError("right-to-left text must begin and end with a right-to-left letter (SASLprep)")
