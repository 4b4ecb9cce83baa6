# SPDX-License-Identifier: Apache-2.0
"""Settings of TLS and SASL that librdkafka accepts and a client of kcodec refuses."""

from __future__ import annotations

import logging
import ssl
from typing import Any

from kcodec.security import SECURITY_OPTIONS
from kcodec.security.tls import make_context

log = logging.getLogger("kcodec.compat")

TLS_OPTIONS = frozenset(name for name in SECURITY_OPTIONS if name.startswith("ssl_"))
SASL_OPTIONS = frozenset(name for name in SECURITY_OPTIONS if name.startswith("sasl_"))
#: Name of the setting that switches the verification of certificates off.
VERIFICATION = "enable.ssl.certificate.verification"
#: An empty value switches the check of the host name off.
IDENTIFICATION = "ssl.endpoint.identification.algorithm"
#: Settings of optional ids.
IDS = frozenset({"transactional.id", "group.instance.id"})


def is_empty(name: str, value: Any) -> bool:
    """Return whether this is an empty text, with which a setting is not set in librdkafka."""
    return value == "" and (name.startswith("ssl.") or name in IDS) and name != IDENTIFICATION


def usable_options(client: str, options: dict[str, Any], verifies: bool) -> dict[str, Any]:
    """Return the options that the security protocol uses. Log a warning for the others, as librdkafka does for those of
    SASL.

    client: Kind of client, for the warning.
    verifies: Whether the certificates of brokers are verified. If they are not, an SSL context replaces the options of
        TLS.

    Raise ValueError if a file cannot be read.
    """
    protocol = str(options.get("security_protocol") or "PLAINTEXT")
    has_tls, has_sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
    found = dict(options)
    for kind, is_used, names in (("TLS", has_tls, TLS_OPTIONS), ("SASL", has_sasl, SASL_OPTIONS)):
        if not is_used and found.keys() & names:
            log.warning(
                "the settings of %s have no effect on this %s, because its security.protocol is %s",
                kind,
                client,
                protocol,
            )
            found = {name: value for name, value in found.items() if name not in names}
    if has_tls and not verifies:
        context = make_context(found)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        found = {name: value for name, value in found.items() if name not in TLS_OPTIONS}
        found["ssl_context"] = context
    return found
