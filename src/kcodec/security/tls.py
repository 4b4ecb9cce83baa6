# SPDX-License-Identifier: Apache-2.0
"""TLS contexts from options, and clear texts for TLS errors: which certificate was rejected, why, and the remedy.

Nothing here touches a connection. Hosts are verified by default: OpenSSL checks the chain against ssl_cafile (or the
system's authorities) and the name, as RFC 9525 requires. To verify less, pass your own context as ssl_context.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from pathlib import Path

from kcodec.errors import AuthenticationError, TransportError
from kcodec.security.option_names import TLS_OPTIONS
from kcodec.security.secret import Secret

log = logging.getLogger("kcodec.client")
FILE_OPTIONS = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile")

# X509_V_ERR_* of OpenSSL's x509_vfy.h that have a remedy of their own.
_CLOCK = "renew it; or check this machine's clock"
_UNTRUSTED = "ssl_cafile must contain the certificate of the authority that signed it"
_VERIFY_REMEDIES = {
    3: "ssl_crlfile must contain a revocation list of each authority in the chain",
    9: "check this machine's clock",
    10: _CLOCK,
    12: "ssl_crlfile must contain a newer list",
    18: _UNTRUSTED,
    19: _UNTRUSTED,
    20: _UNTRUSTED,
    21: _UNTRUSTED,
    23: "the broker needs another certificate",
    26: "the broker needs a certificate for servers (extendedKeyUsage serverAuth)",
    62: "connect by a name in the certificate, or give the broker a certificate with this name (subjectAltName)",
    64: "connect by a name in the certificate, or give the broker a certificate with this address (subjectAltName)",
}

# What the other side says in a TLS alert, by OpenSSL's reason.
_OUR_CERTIFICATE = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the broker requires a client certificate: set ssl_certfile and ssl_keyfile",
    "TLSV1_ALERT_UNKNOWN_CA": "the broker does not know the authority of the client certificate (ssl_certfile)",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the broker rejects the client certificate (ssl_certfile), or it got none",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client certificate (ssl_certfile) has expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "the client certificate (ssl_certfile) is revoked",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the broker rejects the client certificate (ssl_certfile)",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "the broker does not support this type of client certificate (ssl_certfile)",
    "TLSV1_ALERT_ACCESS_DENIED": "the broker accepts the client certificate (ssl_certfile), but denies access",
    "TLSV1_ALERT_DECRYPT_ERROR": "the broker could not verify the client certificate (ssl_certfile)",
}
_DISAGREEMENT = {
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "no cipher in common with the broker (ssl_ciphers), or it requires a certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "no TLS version in common with the broker; kcodec supports 1.2 and 1.3",
    "UNSUPPORTED_PROTOCOL": "no TLS version in common with the broker; kcodec supports 1.2 and 1.3",
    "NO_SHARED_CIPHER": "no cipher in common with the broker (ssl_ciphers)",
}
# OpenSSL has had several names for "these bytes are no TLS".
_NO_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"}
)


def make_context(options: Mapping[str, object]) -> ssl.SSLContext:
    """Return a TLS context for a client from the options of TLS_OPTIONS. A given `ssl_context` is used unchanged.

    Raise ValueError that names the option and the unusable file, with the reason; TypeError for a wrong type.
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
            raise ValueError(f"ssl_ciphers: OpenSSL does not know any cipher in {ciphers!r}") from None
    _load_own_certificate(context, options)
    return context


class TlsContext:
    """The TLS context of new connections. It is made again when one of its files has changed.

    If changed files cannot be used, for example because the certificate has been replaced and its key has not, a
    warning is logged, and the previous context is used until the files change again.

    prefix: Text before the names of the options in errors and warnings.

    Raise the errors of `make_context`.
    """

    def __init__(self, options: Mapping[str, object], *, prefix: str = "") -> None:
        self._prefix = prefix
        self._options = {name: options[name] for name in TLS_OPTIONS if options.get(name) is not None}
        self._paths = [Path(str(self._options[name])) for name in FILE_OPTIONS if name in self._options]
        self._versions = self._refused = self._files()
        self._context = self._make()
        if isinstance(password := self._options.get("ssl_password"), str):
            self._options["ssl_password"] = Secret(password)

    def current(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
        found = self._files()
        if found != self._versions:
            try:
                self._context, self._versions = self._make(), found
            except (OSError, ValueError) as error:
                if found != self._refused:
                    log.warning("the changed TLS files cannot be used, so the previous ones stay in use: %s", error)
                self._refused = found
            else:
                log.info("the TLS files have changed and were read again")
        return self._context

    def _make(self) -> ssl.SSLContext:
        try:
            return make_context(self._options)
        except (ValueError, TypeError) as error:
            if not self._prefix:
                raise
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{self._prefix}{error}") from None

    def _files(self) -> list[tuple[int, int, int] | None]:
        """Return what identifies the content of each file, None for a file that is missing."""
        return [_version_of(path) for path in self._paths]


def _version_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def make_server_context(options: Mapping[str, object], *, client_auth: str) -> ssl.SSLContext:
    """Return a TLS context for a server from `ssl_certfile`, `ssl_keyfile`, `ssl_password` and `ssl_cafile`.

    client_auth: "none", or whether clients may ("requested") or must ("required") have a certificate that an authority
                 in `ssl_cafile` has signed.

    Raise ValueError and TypeError as `make_context` does.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_own_certificate(context, options)
    if client_auth != "none":
        cafile = _path(options, "ssl_cafile")
        if cafile is None:
            raise ValueError(f"ssl_client_auth={client_auth!r} requires ssl_cafile, the authority of the clients")
        _load(context, "ssl_cafile", cafile)
        context.verify_mode = ssl.CERT_REQUIRED if client_auth == "required" else ssl.CERT_OPTIONAL
    return context


def _check_given(given: object, options: Mapping[str, object]) -> ssl.SSLContext:
    if not isinstance(given, ssl.SSLContext):
        raise TypeError(f"ssl_context must be an ssl.SSLContext, not {type(given).__name__}")
    others = sorted(name for name in TLS_OPTIONS - {"ssl_context"} if options.get(name) is not None)
    if others:
        raise ValueError(f"{', '.join(others)} would have no effect together with ssl_context; set it on the context")
    return given


def _path(options: Mapping[str, object], name: str) -> Path | None:
    value = options.get(name)
    if value is None:
        return None
    if not isinstance(value, str | Path):
        raise TypeError(f"{name} must be a path, not {type(value).__name__}")
    if value == "":
        raise ValueError(f"{name} must be a path, got an empty string; omit it, or pass None")
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
            f"{name}: {str(path)!r} does not contain the expected data in PEM format ({_reason(error)})"
        ) from None


def _load_own_certificate(context: ssl.SSLContext, options: Mapping[str, object]) -> None:
    certfile, keyfile = _path(options, "ssl_certfile"), _path(options, "ssl_keyfile")
    password = options.get("ssl_password")
    if certfile is None:
        if keyfile is not None or password is not None:
            raise ValueError("ssl_keyfile and ssl_password require ssl_certfile, which is not set")
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
        return "the key does not belong to the certificate"
    if password_requests and not given:
        return "the key is encrypted: set ssl_password"
    if password_requests:
        return f"ssl_password does not decrypt the key ({_reason(error)})"
    return f"it does not contain a certificate and a key in PEM format ({_reason(error)})"


def _reason(error: ssl.SSLError) -> str:
    return getattr(error, "reason", None) or error.strerror or type(error).__name__


def failure(error: ssl.SSLError, place: str) -> TransportError:
    """Return one error to raise for an error of TLS. `place` is the broker's host and port.

    AuthenticationError if one side does not trust the other, or they have nothing in common: a retry does not help.
    TransportError if the connection was lost. In TLS 1.3 a broker rejects a client certificate after the handshake, so
    call this for errors of the first reads, too.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = _VERIFY_REMEDIES.get(error.verify_code, "check the broker's certificate and ssl_cafile")
        return AuthenticationError(
            f"TLS with {place}: the broker's certificate is rejected: {error.verify_message}"
            f" [OpenSSL {error.verify_code}]; {remedy}"
        )
    reason = _reason(error)
    if reason in _NO_TLS:
        return AuthenticationError(
            f"TLS with {place}: the peer does not use TLS [{reason}];"
            " check the port, or set security_protocol to PLAINTEXT or SASL_PLAINTEXT"
        )
    words = _OUR_CERTIFICATE.get(reason) or _DISAGREEMENT.get(reason)
    if words is not None:
        return AuthenticationError(f"TLS with {place}: {words} [{reason}]")
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return TransportError(f"TLS with {place}: the broker closed the connection [{reason}]", possibly_sent=True)
    return TransportError(f"TLS with {place} failed: {error.strerror or reason} [{reason}]", possibly_sent=True)
