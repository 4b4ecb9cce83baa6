# SPDX-License-Identifier: Apache-2.0
"""The client's side of a GSS-API security context (RFC 2743, 2744), with the Kerberos library of the system.

The library is MIT's libgssapi_krb5, called through ctypes. The package gssapi would do the same, but it has no wheels
for Linux, so that each machine would need a compiler and the headers of Kerberos. Most Linux distributions install
MIT's library itself as a dependency of curl or git.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import sys
from collections.abc import Mapping
from typing import Any

#: Names of the shared library, tried in this order.
LIBRARY_NAMES = ("libgssapi_krb5.so.2", "gssapi_krb5")

# RFC 2744: the kind of status of gss_display_status, the usage of credentials, and the flags of a context.
_GSS_CODE, _MECHANISM_CODE = 1, 2
_INITIATE = 1
_MUTUAL, _REPLAY, _SEQUENCE, _INTEGRITY = 2, 4, 8, 32
_FLAGS = _MUTUAL | _REPLAY | _SEQUENCE | _INTEGRITY
_CONTINUE_NEEDED = 1
#: The upper half of a major status holds errors, the lower half only information.
_ERRORS = 0xFFFF0000

_uint = ctypes.c_uint32
_handle = ctypes.c_void_p


class _Buffer(ctypes.Structure):
    """gss_buffer_desc."""

    _fields_ = (("length", ctypes.c_size_t), ("value", ctypes.c_void_p))


class _Oid(ctypes.Structure):
    """gss_OID_desc."""

    _fields_ = (("length", _uint), ("elements", ctypes.c_char_p))


class _OidSet(ctypes.Structure):
    """gss_OID_set_desc."""

    _fields_ = (("count", ctypes.c_size_t), ("elements", ctypes.POINTER(_Oid)))


class _Pair(ctypes.Structure):
    """gss_key_value_element_desc."""

    _fields_ = (("key", ctypes.c_char_p), ("value", ctypes.c_char_p))


class _Pairs(ctypes.Structure):
    """gss_key_value_set_desc."""

    _fields_ = (("count", _uint), ("elements", ctypes.POINTER(_Pair)))


def _oid(encoded: str) -> _Oid:
    data = bytes.fromhex(encoded)
    return _Oid(len(data), data)


_KERBEROS = _oid("2a864886f712010202")
#: Without it, the library would ask a Kerberos server once more for another mechanism.
_ONLY_KERBEROS = _OidSet(1, ctypes.pointer(_KERBEROS))
_SERVICE_NAME = _oid("2a864886f71201020104")  # GSS_C_NT_HOSTBASED_SERVICE: service@host
_PRINCIPAL_NAME = _oid("2a864886f71201020201")  # GSS_KRB5_NT_PRINCIPAL_NAME: user@REALM

_BUFFER, _OID = ctypes.POINTER(_Buffer), ctypes.POINTER(_Oid)
_UINT, _HANDLE = ctypes.POINTER(_uint), ctypes.POINTER(_handle)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "gss_import_name": (_BUFFER, _OID, _HANDLE),
    "gss_release_name": (_HANDLE,),
    "gss_acquire_cred_from": (
        *(_handle, _uint, ctypes.POINTER(_OidSet), ctypes.c_int, ctypes.POINTER(_Pairs)),
        *(_HANDLE, _HANDLE, _UINT),
    ),
    "gss_release_cred": (_HANDLE,),
    "gss_init_sec_context": (
        *(_handle, _HANDLE, _handle, _OID, _uint, _uint, _handle),
        *(_BUFFER, _HANDLE, _BUFFER, _UINT, _UINT),
    ),
    "gss_delete_sec_context": (_HANDLE, _BUFFER),
    "gss_wrap": (_handle, ctypes.c_int, _uint, _BUFFER, ctypes.POINTER(ctypes.c_int), _BUFFER),
    "gss_unwrap": (_handle, _BUFFER, _BUFFER, ctypes.POINTER(ctypes.c_int), _UINT),
    "gss_release_buffer": (_BUFFER,),
    "gss_display_status": (_uint, ctypes.c_int, _OID, _UINT, _BUFFER),
}


class GssError(Exception):
    """A call of the library failed. code: error code of Kerberos (krb5.h), a negative number; 0 without one."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


@functools.cache
def load() -> ctypes.CDLL:
    """Return the library, with the types of its functions. Raise OSError if the system does not have it."""
    for name in LIBRARY_NAMES:
        path = name if name.startswith("lib") else ctypes.util.find_library(name)
        if path is None:
            continue
        try:
            library = ctypes.CDLL(path)
            for function, parameters in _SIGNATURES.items():
                declared = getattr(library, function)
                declared.argtypes = (_UINT, *parameters)
                declared.restype = _uint
        except (OSError, AttributeError):
            continue
        return library
    raise OSError(
        f"the library libgssapi_krb5 of MIT Kerberos was not found on {sys.platform}; on Linux, install the package "
        "libgssapi-krb5-2 (Debian, Ubuntu) or krb5-libs (Red Hat)"
    )


def _call(name: str, *arguments: Any) -> int:
    """Call a function, whose first parameter is its minor status. Return the major status; raise GssError."""
    minor = _uint()
    major: int = getattr(load(), name)(ctypes.byref(minor), *arguments)
    if major & _ERRORS:
        texts = [_status_text(major, _GSS_CODE)]
        if minor.value:
            texts.append(_status_text(minor.value, _MECHANISM_CODE))
        # The text of the minor status says more than "Unspecified GSS failure. Minor code may provide more
        # information".
        raise GssError(texts[-1], ctypes.c_int32(minor.value).value)
    return major


def _status_text(status: int, kind: int) -> str:
    """Return the library's text for a status."""
    texts, minor, more = [], _uint(), _uint()
    while True:
        text = _Buffer()
        failed = load().gss_display_status(
            ctypes.byref(minor), status, kind, ctypes.byref(_KERBEROS), ctypes.byref(more), ctypes.byref(text)
        )
        if failed & _ERRORS:
            return f"status {status:#x}"
        texts.append(_taken(text).decode(errors="replace"))
        if not more.value:
            return " ".join(texts)


def _given(data: bytes) -> _Buffer:
    """Return a buffer that points to a copy of the data, and keeps the copy alive."""
    kept = ctypes.create_string_buffer(data, len(data))
    buffer = _Buffer(len(data), ctypes.cast(kept, ctypes.c_void_p))
    buffer.kept = kept
    return buffer


def _taken(buffer: _Buffer) -> bytes:
    """Return the bytes of a buffer that the library has filled, and release it."""
    data = ctypes.string_at(buffer.value, buffer.length) if buffer.value else b""
    load().gss_release_buffer(ctypes.byref(_uint()), ctypes.byref(buffer))
    return data


class _Owned:
    """A handle of the library, released when this object is garbage-collected. release: the function that does it."""

    def __init__(self, release: str, *more: Any) -> None:
        self.handle = _handle()
        self._release = getattr(load(), release)
        self._more = more

    def __del__(self) -> None:
        if self.handle:
            self._release(ctypes.byref(_uint()), ctypes.byref(self.handle), *self._more)


def _name(text: str, kind: _Oid) -> _Owned:
    owned = _Owned("gss_release_name")
    _call("gss_import_name", ctypes.byref(_given(text.encode())), ctypes.byref(kind), ctypes.byref(owned.handle))
    return owned


class SecurityContext:
    """A security context, in which client and service authenticate each other. It is not thread-safe.

    service:   as "kafka@broker.example.org".
    principal: principal of the client; None for the default of the credentials.
    store:     where the credentials are (MIT: krb5_gss_cred_store); empty for the default credential cache.

    is_established: whether both sides are authenticated.

    Each method raises GssError if the library reports an error.
    """

    def __init__(self, service: str, principal: str | None, store: Mapping[str, str]) -> None:
        self.is_established = False
        self._service = service
        self._principal = principal
        self._store = dict(store)
        self._target: _Owned | None = None
        self._credentials: _Owned | None = None
        self._context = _Owned("gss_delete_sec_context", None)

    def step(self, token: bytes) -> bytes:
        """Process a token of the service, b"" in the first call. Return the token to send, which may be empty.

        The first step blocks: it reads the credentials and requests a ticket from the Kerberos server.
        """
        if self._target is None:
            self._target = _name(self._service, _SERVICE_NAME)
            self._credentials = self._acquire()
        reply = _Buffer()
        major = _call(
            "gss_init_sec_context",
            self._credentials.handle if self._credentials else None,
            ctypes.byref(self._context.handle),
            self._target.handle,
            ctypes.byref(_KERBEROS),
            _FLAGS,
            0,
            None,
            ctypes.byref(_given(token)) if token else None,
            None,
            ctypes.byref(reply),
            None,
            None,
        )
        self.is_established = not major & _CONTINUE_NEEDED
        return _taken(reply)

    def _acquire(self) -> _Owned | None:
        """Return the credentials, or None to use the default credentials of the library."""
        if self._principal is None and not self._store:
            return None
        name = None if self._principal is None else _name(self._principal, _PRINCIPAL_NAME)
        pairs = (_Pair * len(self._store))()
        for pair, (key, value) in zip(pairs, self._store.items(), strict=True):
            pair.key, pair.value = key.encode(), value.encode()
        owned = _Owned("gss_release_cred")
        _call(
            "gss_acquire_cred_from",
            name.handle if name else None,
            0xFFFFFFFF,
            ctypes.byref(_ONLY_KERBEROS),
            _INITIATE,
            ctypes.byref(_Pairs(len(pairs), pairs)) if self._store else None,
            ctypes.byref(owned.handle),
            None,
            None,
        )
        return owned

    def unwrap(self, message: bytes) -> bytes:
        """Verify the signature of a message from the service, and return its content."""
        content = _Buffer()
        _call("gss_unwrap", self._context.handle, ctypes.byref(_given(message)), ctypes.byref(content), None, None)
        return _taken(content)

    def wrap(self, content: bytes) -> bytes:
        """Return a signed message for the service; the content is not encrypted."""
        message = _Buffer()
        _call("gss_wrap", self._context.handle, 0, 0, ctypes.byref(_given(content)), None, ctypes.byref(message))
        return _taken(message)
