# SPDX-License-Identifier: Apache-2.0
"""What the exit status of ``kcodec`` means."""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    """0 to 2 are a command's own answer; the others are the shell's numbers for the two signals."""

    OK = 0
    FINDINGS = 1  # something is wrong with the data: damage, a finding of `check`
    ERROR = 2  # a wrong call, or a file that cannot be read at all
    INTERRUPTED = 130
    BROKEN_PIPE = 141
