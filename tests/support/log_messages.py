"""The messages that a test has logged, as they were written.

`caplog.text` is what pytest's handler has formatted. PySpark gives its JSON formatter to that handler: pytest attaches
the handler to each logger that does not propagate, and a PySparkLogger changes the formatter of every handler that is
added to it. One failed query in the same process is enough.
"""

import pytest


def messages(caplog: pytest.LogCaptureFixture) -> str:
    """Return the messages in the order in which they were logged, a line each."""
    return "\n".join(caplog.messages)
