# SPDX-License-Identifier: Apache-2.0
"""A Kerberos server for tests, from Apache Kerby (tests/java/kerberos), and an Apache Kafka with a listener for GSSAPI.

    with KerberosServer(folder) as kerberos:
        keytab = kerberos.add("alice")                  # a new principal, and the file with its key
        kerberos.log_in("alice", cache)                 # its ticket in a credential cache, as kinit does
        with kerberos.kafka() as kafka: ...             # SASL_PLAINTEXT with GSSAPI, as kafka/localhost

`environment` makes the library of Kerberos read the settings of this server.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from java_judge import FETCH, JVM_OPTIONS, ROOT, class_path, compile_sources, java_and_jars

from kcodec.testing.kafka import ApacheKafka

REALM = "KCODEC.TEST"
HOST = "localhost"
MAIN = "kcodec.kerberos.KerberosServer"
SOURCES = ROOT / "tests" / "java" / "kerberos"
JARS: Path = FETCH.DEFAULT_KERBY
WAIT_SECONDS = 60.0
CONFIGURATION = """[libdefaults]
  default_realm = {realm}
  dns_lookup_kdc = false
  dns_lookup_realm = false
  dns_canonicalize_hostname = false
  udp_preference_limit = 1
{more}
[realms]
  {realm} = {{
    kdc = 127.0.0.1:{port}
  }}
"""


class KerberosServer:
    """The server, with its files in a folder. environment: variables that make the Kerberos library use
    this server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[bytes] | None = None
        self.configuration = folder / "krb5.conf"
        #: KRB5CCNAME names a file that does not exist; a test that needs a cache sets another one.
        self.environment = {"KRB5_CONFIG": str(self.configuration), "KRB5CCNAME": f"FILE:{folder / 'no-cache'}"}
        self.port = 0

    def __enter__(self) -> KerberosServer:
        java, libs = java_and_jars()
        jars = class_path(JARS) + ":" + class_path(libs)
        classes = compile_sources(sorted(SOURCES.glob("*.java")), jars, (JARS / FETCH.STAMP).read_bytes())
        self._log = tempfile.TemporaryFile()
        command = [str(java), *JVM_OPTIONS, "-cp", f"{classes}:{jars}", MAIN, str(self._folder), REALM]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self._log, text=True)
        self.port = int(self._line().removeprefix("port "))
        self.write_configuration()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(WAIT_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()

    def write_configuration(self, more: str = "", port: int | None = None) -> None:
        """Write krb5.conf. more: lines of [libdefaults]; port: in place of the port of this server."""
        text = CONFIGURATION.format(realm=REALM, port=self.port if port is None else port, more=more)
        self.configuration.write_text(text, encoding="utf-8")

    def add(self, name: str) -> Path:
        """Create a principal unless it exists, and return the keytab with its key."""
        keytab = self._folder / f"{name.replace('/', '-')}.keytab"
        if not keytab.exists():
            self._ask("principal", f"{name}@{REALM}", str(keytab))
        return keytab

    def log_in(self, name: str, cache: Path) -> None:
        """Write a ticket of the principal to a credential cache."""
        self._ask("login", f"{name}@{REALM}", str(self._folder / f"{name}.keytab"), str(cache))

    def kafka(self, **properties: Any) -> ApacheKafka:
        """Return an ApacheKafka, not started, whose listener for clients accepts GSSAPI as kafka/localhost."""
        keytab = self.add(f"kafka/{HOST}")
        login = (
            "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
            f'keyTab="{keytab}" principal="kafka/{HOST}@{REALM}";'
        )
        return ApacheKafka(
            sasl="PLAIN",
            jvm_options=[f"-Djava.security.krb5.conf={self.configuration}"],
            advertise=lambda listener: (HOST, listener.port) if listener.name == "CLIENT" else None,
            **{
                "listener.name.client.sasl.enabled.mechanisms": "PLAIN,GSSAPI",
                "listener.name.client.gssapi.sasl.jaas.config": login,
                "sasl.kerberos.service.name": "kafka",
                **properties,
            },
        )

    def _ask(self, *fields: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(fields) + "\n")
        self._process.stdin.flush()
        assert self._line() == "done"

    def _line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            assert self._log is not None
            self._log.seek(0)
            raise RuntimeError(f"the Kerberos server has exited: {self._log.read()!r}")
        return line
