# SPDX-License-Identifier: Apache-2.0
"""Every message class of the protocol, and every version of each."""

from __future__ import annotations

from kcodec.protocol import messages

KINDS = sorted(messages.all_messages(), key=lambda kind: kind.__name__)


EVERY = [(kind, version) for kind in KINDS for version in range(kind.versions.first, kind.versions.last + 1)]
