# SPDX-License-Identifier: Apache-2.0
"""``python -m kcodec``: run the command line of kcodec.cli."""

from kcodec.cli import run

if __name__ == "__main__":
    run()
