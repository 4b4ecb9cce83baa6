# SPDX-License-Identifier: Apache-2.0
"""TLS contexts from options, and what goes wrong with TLS in words: whose certificate was refused, why, what to change.

Nothing here touches a connection. Hosts are verified by default: the chain against ssl_cafile (or the system's
authorities) and the name, as RFC 9525 has it, by OpenSSL. To verify less, a context of one's own has to be given.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

from kcodec.errors import AuthenticationError, TransportError
from kcodec.security.option_names import TLS_OPTIONS
from kcodec.security.secret import Secret

# X509_V_ERR_* of OpenSSL's x509_vfy.h that have a remedy of their own.
_CLOCK = "renew it; or check this machine's clock"
_UNTRUSTED = "ssl_cafile must hold the certificate of the authority that signed it"
_VERIFY_REMEDIES = {
    3: "ssl_crlfile must hold a revocation list of each authority in the chain",
    9: "check this machine's clock",
    10: _CLOCK,
    12: "ssl_crlfile must hold a newer list",
    18: _UNTRUSTED,
    19: _UNTRUSTED,
    20: _UNTRUSTED,
    21: _UNTRUSTED,
    23: "the broker needs another one",
    26: "the broker needs one made for servers (extendedKeyUsage serverAuth)",
    62: "connect by a name the certificate holds, or give the broker one with this name (subjectAltName)",
    64: "connect by a name the certificate holds, or give the broker one with this address (subjectAltName)",
}

# What the other side says in a TLS alert, by OpenSSL's reason.
_OUR_CERTIFICATE = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the broker demands a certificate of ours: set ssl_certfile and ssl_keyfile",
    "TLSV1_ALERT_UNKNOWN_CA": "the broker does not know the authority of our certificate (ssl_certfile)",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the broker refuses our certificate (ssl_certfile), or demands one and got none",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "our certificate (ssl_certfile) has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "our certificate (ssl_certfile) is revoked",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the broker refuses our certificate (ssl_certfile)",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "the broker refuses the kind of our certificate (ssl_certfile)",
    "TLSV1_ALERT_ACCESS_DENIED": "the broker knows our certificate (ssl_certfile) and denies it access",
    "TLSV1_ALERT_DECRYPT_ERROR": "the broker could not verify our certificate (ssl_certfile)",
}
_DISAGREEMENT = {
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the broker agrees to none of our ciphers (ssl_ciphers), or wants a certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the broker speaks no version of TLS that we do (1.2 and 1.3)",
    "UNSUPPORTED_PROTOCOL": "the broker speaks no version of TLS that we do (1.2 and 1.3)",
    "NO_SHARED_CIPHER": "the broker agrees to none of our ciphers (ssl_ciphers)",
}
# OpenSSL has had several names for "these bytes are no TLS".
_NO_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"}
)


def make_context(options: Mapping[str, object]) -> ssl.SSLContext:
    """A context for clients from the options of TLS_OPTIONS; `ssl_context` is taken as it is, and then alone.

    Raises ValueError naming the option and the file that cannot be used, and why; TypeError for a wrong type.
    """
    given = options.get("ssl_context")
    if given is not None:
        return _check_given(given, options)
    cafile = _path(options, "ssl_cafile")
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)  # the system's authorities, TLS 1.2 and up
    if cafile is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _load(context, "ssl_cafile", cafile)
    check_hostname = options.get("ssl_check_hostname", True)
    if not isinstance(check_hostname, bool):
        raise TypeError(f"ssl_check_hostname must be True or False, not {check_hostname!r}")
    context.check_hostname = check_hostname
    crlfile = _path(options, "ssl_crlfile")
    if crlfile is not None:
        _load(context, "ssl_crlfile", crlfile)
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    ciphers = options.get("ssl_ciphers")
    if ciphers is not None:
        try:
            context.set_ciphers(str(ciphers))
        except ssl.SSLError:
            raise ValueError(f"ssl_ciphers: OpenSSL knows no cipher of {ciphers!r}") from None
    _load_own_certificate(context, options)
    return context


def _check_given(given: object, options: Mapping[str, object]) -> ssl.SSLContext:
    if not isinstance(given, ssl.SSLContext):
        raise TypeError(f"ssl_context must be an ssl.SSLContext, not {type(given).__name__}")
    others = sorted(name for name in TLS_OPTIONS - {"ssl_context"} if options.get(name) is not None)
    if others:
        raise ValueError(f"ssl_context says it all: {', '.join(others)} would have no effect; set it on the context")
    return given


def _path(options: Mapping[str, object], name: str) -> Path | None:
    value = options.get(name)
    if value is None:
        return None
    if not isinstance(value, str | Path):
        raise TypeError(f"{name} must be a path, not {type(value).__name__}")
    path = Path(value)
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise ValueError(f"{name}: {str(path)!r} cannot be read: {error.strerror}") from None


def _load(context: ssl.SSLContext, name: str, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ValueError(
            f"{name}: {str(path)!r} holds nothing in PEM that is wanted there ({_reason(error)})"
        ) from None


def _load_own_certificate(context: ssl.SSLContext, options: Mapping[str, object]) -> None:
    certfile, keyfile = _path(options, "ssl_certfile"), _path(options, "ssl_keyfile")
    password = options.get("ssl_password")
    if certfile is None:
        if keyfile is not None or password is not None:
            raise ValueError("ssl_keyfile and ssl_password belong to ssl_certfile, which is not set")
        return
    secret = password if isinstance(password, Secret) else Secret(password) if isinstance(password, str) else None
    if password is not None and secret is None:
        raise TypeError(f"ssl_password must be a str, not {type(password).__name__}")
    where = f"ssl_certfile {str(certfile)!r}" + (f", ssl_keyfile {str(keyfile)!r}" if keyfile else "")
    password_requests = []

    def give_password() -> str:
        password_requests.append(True)
        return "" if secret is None else secret.reveal()

    try:
        context.load_cert_chain(certfile, keyfile, give_password)
    except ssl.SSLError as error:
        raise ValueError(
            f"{where}: {_own_certificate_fault(error, bool(password_requests), secret is not None)}"
        ) from None


def _own_certificate_fault(error: ssl.SSLError, password_requests: bool, given: bool) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key is not that of the certificate"
    if password_requests and not given:
        return "the key is encrypted: set ssl_password"
    if password_requests:
        return f"ssl_password does not open the key ({_reason(error)})"
    return f"no certificate and key in PEM ({_reason(error)})"


def _reason(error: ssl.SSLError) -> str:
    return getattr(error, "reason", None) or error.strerror or type(error).__name__


def failure(error: ssl.SSLError, place: str) -> TransportError:
    """What an error of TLS means, as one error to raise; `place` is the broker's host and port.

    AuthenticationError where one side does not trust the other or they agree on nothing: trying again does not help.
    TransportError where the connection just broke. In TLS 1.3 a broker that refuses our certificate says so after the
    handshake, so this is to be asked about errors of the first reads, too.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = _VERIFY_REMEDIES.get(error.verify_code, "check the broker's certificate and ssl_cafile")
        return AuthenticationError(
            f"TLS with {place}: the broker's certificate is refused: {error.verify_message}"
            f" [OpenSSL {error.verify_code}]; {remedy}"
        )
    reason = _reason(error)
    if reason in _NO_TLS:
        return AuthenticationError(
            f"TLS with {place}: what answers there speaks no TLS [{reason}];"
            " check the port, or set security_protocol to PLAINTEXT or SASL_PLAINTEXT"
        )
    words = _OUR_CERTIFICATE.get(reason) or _DISAGREEMENT.get(reason)
    if words is not None:
        return AuthenticationError(f"TLS with {place}: {words} [{reason}]")
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return TransportError(f"TLS with {place}: the broker ended the connection [{reason}]", possibly_sent=True)
    return TransportError(f"TLS with {place} failed: {error.strerror or reason} [{reason}]", possibly_sent=True)
