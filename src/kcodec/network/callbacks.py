# SPDX-License-Identifier: Apache-2.0
"""Exceptions of the application's code (callbacks, metrics) on the thread that runs a client."""

from __future__ import annotations

#: What is logged if a callback raises it, and does not end the client. SystemExit is among them: on an I/O thread,
#: sys.exit() would not end the program but that thread, and all records of the client would fail.
CALLBACK_ERRORS = (Exception, SystemExit)
