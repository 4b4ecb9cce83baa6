# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests of TLS without a broker: those that `kcodec.testing.certificates` makes for brokers, and
certificates that are not valid yet, are revoked, or have an encrypted key.

    authority = Authority(tmp_path / "authority")
    server = authority.issue("broker", hosts=["localhost", "127.0.0.1"])
    server.bundle                              # key and certificate in PEM, a key store for Kafka
    authority.certificate                      # what clients must trust: ssl_cafile

They are created by the system's ``openssl`` with elliptic-curve keys, so that a dozen of them takes a second. They are
for tests only, because the keys in the folder are not protected.
"""

from __future__ import annotations

import datetime
import ipaddress
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

OPENSSL_SECONDS = 30.0
LIFETIME = datetime.timedelta(days=30)

# Of `openssl ca`: the only command that sets both dates in all versions of OpenSSL, and that can revoke.
_CONFIGURATION = """\
[ca]
default_ca = authority
[authority]
database = {directory}/index.txt
serial = {directory}/serial
crlnumber = {directory}/crlnumber
new_certs_dir = {directory}
certificate = {directory}/authority.pem
private_key = {directory}/authority.key
default_md = sha256
default_crl_days = 30
policy = names
unique_subject = no
[names]
commonName = supplied
[request]
distinguished_name = name
prompt = no
[name]
"""


@dataclass(frozen=True)
class Certificate:
    """One certificate in PEM. key: its private key, PKCS#8; bundle: both in one file, as Kafka's PEM key store is."""

    name: str
    certificate: Path
    key: Path
    bundle: Path


class Authority:
    """A certificate authority in a folder of its own; `certificate` is its own, self-signed.

    Raises RuntimeError if the system has no openssl.
    """

    def __init__(self, directory: Path, name: str = "kcodec test authority") -> None:
        self.directory = directory
        self.name = name
        self.certificate = directory / "authority.pem"
        directory.mkdir(parents=True)
        (directory / "index.txt").touch()
        for file in ("serial", "crlnumber"):
            (directory / file).write_text("1000\n", encoding="ascii")
        self._configuration = directory / "openssl.cnf"
        self._configuration.write_text(_CONFIGURATION.format(directory=directory), encoding="utf-8")
        key = _make_key(directory / "authority.key")
        _openssl(
            *("req", "-x509", "-new", "-key", key, "-config", self._configuration, "-subj", f"/CN={name}"),
            *("-days", LIFETIME.days, "-addext", "basicConstraints=critical,CA:TRUE"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign", "-out", self.certificate),
        )

    def issue(
        self,
        name: str,
        *,
        hosts: Sequence[str] = ("localhost", "127.0.0.1"),
        starts: datetime.timedelta = datetime.timedelta(days=-1),
        lasts: datetime.timedelta = LIFETIME,
    ) -> Certificate:
        """A certificate for the common name `name` and these hosts and addresses, for servers and clients alike.

        starts: from now; an expired one has starts=-2 days, lasts=1 day. `name` is also the name of its files.
        """
        key = _make_key(self.directory / f"{name}.key")
        request = self.directory / f"{name}.csr"
        _openssl("req", "-new", "-key", key, "-config", self._configuration, "-subj", f"/CN={name}", "-out", request)
        extensions = self.directory / f"{name}.ext"
        extensions.write_text(
            "basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\nextendedKeyUsage=serverAuth,clientAuth\n"
            "authorityKeyIdentifier=keyid\n"
            + (f"subjectAltName={','.join(map(_alternative, hosts))}\n" if hosts else ""),
            encoding="utf-8",
        )
        certificate = self.directory / f"{name}.pem"
        begin = datetime.datetime.now(datetime.UTC) + starts
        _openssl(
            *("ca", "-batch", "-notext", "-config", self._configuration, "-in", request, "-out", certificate),
            *("-startdate", _date(begin), "-enddate", _date(begin + lasts), "-extfile", extensions),
        )
        bundle = self.directory / f"{name}.bundle.pem"
        bundle.write_bytes(key.read_bytes() + certificate.read_bytes() + self.certificate.read_bytes())
        return Certificate(name, certificate, key, bundle)

    def revocation_list(self, *revoked: Certificate) -> Path:
        """A list in PEM of these, and of all that were revoked before."""
        for each in revoked:
            _openssl("ca", "-config", self._configuration, "-revoke", each.certificate)
        path = self.directory / "revocations.crl"
        _openssl("ca", "-config", self._configuration, "-gencrl", "-out", path)
        return path


def encrypt_key(certificate: Certificate, password: str) -> Path:
    """Another file with the certificate's key under a password; the password reaches openssl by a pipe."""
    path = certificate.key.with_suffix(".encrypted.key")
    _openssl("pkcs8", "-topk8", "-in", certificate.key, "-out", path, "-passout", "stdin", reported=password + "\n")
    return path


def _make_key(path: Path) -> Path:
    _openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path)
    return path


def _alternative(host: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        return f"DNS:{host}"


def _date(when: datetime.datetime) -> str:
    return when.strftime("%Y%m%d%H%M%SZ")


def _openssl(*arguments: object, reported: str = "") -> None:
    program = shutil.which("openssl")
    if program is None:
        raise RuntimeError("openssl, which makes certificates for tests, is not installed")
    done = subprocess.run(
        [program, *map(str, arguments)],
        input=reported,
        capture_output=True,
        text=True,
        check=False,
        timeout=OPENSSL_SECONDS,
    )
    if done.returncode:
        raise RuntimeError(f"openssl {arguments[0]} failed: {done.stderr.strip()[-500:]}")
