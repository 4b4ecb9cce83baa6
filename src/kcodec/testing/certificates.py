# SPDX-License-Identifier: Apache-2.0
"""Certificates for brokers and clients in tests, from a trusted authority and from one that is not trusted.

All files are PEM, which Kafka's brokers read as Python does (KIP-651). The package cryptography (extra testing) creates
them.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["Certificates", "KeyPair"]

NAMES = ("localhost", "127.0.0.1")
VALID_DAYS = 30


@dataclass(frozen=True)
class KeyPair:
    """Files of one certificate and its key, and of the authority that signed it."""

    certificate: Path
    key: Path
    authority: Path


class Certificates:
    """An authority and its certificates, created on first use; calls with the same name return the same files.

    names:       Names in the brokers' certificate: host names and addresses.
    has_expired: Create a brokers' certificate that expired yesterday.

        kafka = ApacheKafka(tls=Certificates(names=["elsewhere.test"]))
    """

    def __init__(self, names: tuple[str, ...] | list[str] = NAMES, *, has_expired: bool = False) -> None:
        self.names = tuple(names)
        self.has_expired = has_expired
        self._directory: Path | None = None

    @property
    def authority(self) -> Path:
        """The certificate of the authority that clients and brokers trust."""
        return self._made("authority").certificate

    def broker(self) -> KeyPair:
        """Return the certificate of the brokers."""
        return self._made("broker", signer="authority", names=self.names, has_expired=self.has_expired)

    def client(self, name: str = "alice") -> KeyPair:
        """Return the certificate of a client; its principal is User:CN=name."""
        return self._made(f"client-{name}", signer="authority")

    def stranger(self, name: str = "alice") -> KeyPair:
        """Return the certificate of a client from an authority that no broker trusts."""
        self._made("other-authority")
        return self._made(f"stranger-{name}", signer="other-authority")

    def keep_in(self, directory: Path) -> None:
        """Write the files to this directory; ApacheKafka calls this at its start."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory

    def broker_properties(self) -> dict[str, str]:
        """Return the server.properties for every listener with TLS."""
        pair = self.broker()
        both = pair.certificate.with_suffix(".both.pem")
        both.touch(mode=0o600)
        both.write_bytes(pair.key.read_bytes() + pair.certificate.read_bytes())
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(both),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(pair.authority),
        }

    def _made(
        self, stem: str, *, signer: str | None = None, names: tuple[str, ...] = (), has_expired: bool = False
    ) -> KeyPair:
        if self._directory is None:
            raise ValueError("certificates are created when a broker starts with them, or after keep_in(directory)")
        pair = KeyPair(
            self._directory / f"{stem}.pem", self._directory / f"{stem}.key", self._directory / f"{signer or stem}.pem"
        )
        if not pair.certificate.is_file():
            if signer is not None:
                self._made(signer)
            self._write(pair, stem, signer, names, has_expired)
        return pair

    def _write(self, pair: KeyPair, stem: str, signer: str | None, names: tuple[str, ...], has_expired: bool) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        signing_key, issuer = key, subject_of(stem)
        if signer is not None:
            signing_key, issuer = self._signing_key(signer), subject_of(signer)
        builder = certificate_builder(stem, issuer, key, has_expired)
        builder = builder.add_extension(x509.BasicConstraints(signer is None, None), critical=True)
        builder = builder.add_extension(key_usage(is_authority=signer is None), critical=True)
        if names:
            alternatives = x509.SubjectAlternativeName([general_name(name) for name in names])
            builder = builder.add_extension(alternatives, critical=False)
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key())
        builder = builder.add_extension(authority_key, critical=False)
        subject_key = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.add_extension(subject_key, critical=False)
        certificate = builder.sign(signing_key, hashes.SHA256())
        pair.key.touch(mode=0o600)
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _signing_key(self, signer: str) -> EllipticCurvePrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key = load_pem_private_key(self._made(signer).key.read_bytes(), None)
        assert isinstance(key, EllipticCurvePrivateKey)
        return key


def subject_of(stem: str) -> x509.Name:
    """Return CN=alice for client-alice and stranger-alice, otherwise CN=the stem."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    kind, _, name = stem.partition("-")
    common = name if kind in ("client", "stranger") else stem
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def certificate_builder(
    stem: str, issuer: x509.Name, key: EllipticCurvePrivateKey, has_expired: bool
) -> x509.CertificateBuilder:
    """Return a builder of a certificate that is valid from a month ago until in a month, or until yesterday."""
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=-1 if has_expired else VALID_DAYS)
    return (
        x509.CertificateBuilder()
        .subject_name(subject_of(stem))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=VALID_DAYS))
        .not_valid_after(end)
    )


def key_usage(*, is_authority: bool) -> x509.KeyUsage:
    """Return the usage of a key, which Python 3.13 and later require of authorities (VERIFY_X509_STRICT)."""
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def general_name(name: str) -> x509.GeneralName:
    """Return an address or a host name in the form of a certificate."""
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
