# SPDX-License-Identifier: Apache-2.0
"""Time limits of the requests with which a client ends, for clients that are interrupted or not closed."""

from __future__ import annotations

#: Maximum time for the abort of a transaction if the program is ending, if it has not closed its producer, or if an
#: earlier abort got no response. A close of the client may follow.
ABORT_SECONDS = 1.5
#: Maximum wait for the response to the abort, after an interruption of `close`.
ABORT_AT_ONCE_SECONDS = 0.2
#: Maximum wait for the response to the request to leave a group, after an interruption or the timeout of the call.
LEAVE_AT_ONCE_SECONDS = 0.2
#: Maximum time of the requests after an interruption of `close`. A session waits for both kinds of responses.
AT_ONCE_SECONDS = LEAVE_AT_ONCE_SECONDS + ABORT_AT_ONCE_SECONDS
