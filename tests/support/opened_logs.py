# SPDX-License-Identifier: Apache-2.0
"""kcodec.open for tests that know what is at a path: kcodec.open itself returns a Log or a LogDirectory.

open_log(path, **options) -> Log                       a partition directory or one segment
open_directory(path, **options) -> LogDirectory        a directory of partitions
"""

from __future__ import annotations

from typing import Any

import kcodec
from kcodec.log import Log, LogDirectory


def open_log(path: Any, **options: Any) -> Log:
    found = kcodec.open(path, **options)
    assert isinstance(found, Log), found
    return found


def open_directory(path: Any, **options: Any) -> LogDirectory:
    found = kcodec.open(path, **options)
    assert isinstance(found, LogDirectory), found
    return found
