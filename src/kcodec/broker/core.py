# SPDX-License-Identifier: Apache-2.0
"""The broker without I/O: it takes request frames and a clock, and returns response frames.

As in Kafka, each connection has one request at a time: the next frame is handled after the response to the previous
one. `serve` may therefore be called again only after the reply.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from random import Random
from struct import Struct
from typing import Any, NamedTuple

from kcodec.arguments import meant_by
from kcodec.broker.admin import admin_apis
from kcodec.broker.api import CLOSE, SILENCE, Api, ApiError, ConnectionInfo, Later, Listener, RequestContext
from kcodec.broker.authorizer.authorizer import Authorizer
from kcodec.broker.authorizer.checks import with_checks
from kcodec.broker.clock import Clock
from kcodec.broker.cluster_apis import ClusterApis, features_of
from kcodec.broker.directory_lock import DirectoryLock
from kcodec.broker.error_responses import response_of
from kcodec.broker.fault_injector import FaultInjector
from kcodec.broker.faults import FaultRule, Faults
from kcodec.broker.fetch import Fetch
from kcodec.broker.groups import GroupCoordinator
from kcodec.broker.internal_topics import GroupHost, replayed
from kcodec.broker.login import Authenticator, Login, LoginRefused
from kcodec.broker.offsets import OffsetApis
from kcodec.broker.produce import Produce
from kcodec.broker.request_limits import check_size
from kcodec.broker.scram_credentials import changes_of_users
from kcodec.broker.settings import BrokerSettings, as_older_broker, check_logins, principal_of
from kcodec.broker.topics import Topics
from kcodec.broker.transactions.coordinator import TransactionCoordinator
from kcodec.broker.transactions.handlers import TransactionHandlers
from kcodec.broker.transactions.offset_commit import TxnOffsetCommit
from kcodec.broker.wire_log import WireEntry, WireLog
from kcodec.constants import CONSUMER_OFFSETS_TOPIC
from kcodec.errors import DecodeError, EncodeError, KcodecError, LimitExceededError
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode
from kcodec.protocol.frame import skip_tagged_fields
from kcodec.protocol.versions import API_VERSIONS_KEY
from kcodec.security.secret import Secret

_log = logging.getLogger(__name__)
# api key, version, correlation id, length of the client id
_HEADER = Struct(">hhih")
#: Produce is offered from version 0 on, but Kafka 4 refuses those below 3 on use.
_LEAST_PRODUCE_VERSION = 3

#: The reply to a frame: the buffers of the response, None for no response, CLOSE or SILENCE.
Reply = Callable[[Any], None]


class Past(NamedTuple):
    """What a broker keeps when it starts again, even without a directory.

    starts: Number of earlier starts.
    """

    starts: int = 0
    clock: Clock | None = None
    rules: list[FaultRule] | None = None
    wire_log: WireLog | None = None
    connection_ids: Iterator[int] | None = None

    def after(self, core: BrokerCore) -> Past:
        """Return what the next start of the broker gets."""
        return Past(self.starts + 1, core.clock, core.faults.rules, core.wire_log, core.connection_ids)


class BrokerCore:
    """All state of a broker.

    directory: Directory of the logs, created if it does not exist. None keeps everything in memory.
    past:      What the broker keeps from its earlier starts.
    """

    def __init__(
        self, settings: BrokerSettings, clock: Clock, directory: Path | None = None, past: Past | None = None
    ) -> None:
        settings = as_older_broker(settings)
        self.settings = settings
        self.clock = clock
        self._past = Past() if past is None else past
        #: Numbers of the connections in the wire log. They continue after a restart.
        self.connection_ids = count(1) if self._past.connection_ids is None else self._past.connection_ids
        #: Where clients connect; the server adds them.
        self.listeners = [Listener()]
        #: What each connection waits for.
        self._waiting: dict[int, Later] = {}
        self._lock = None if directory is None else DirectoryLock(directory)
        with contextlib.ExitStack() as opened:
            opened.callback(self._unlock)
            self.topics = Topics(settings, clock, directory, earlier_starts=self._past.starts)
            opened.callback(self.topics.close, is_clean=False)
            self._begin()
            opened.pop_all()

    def _begin(self) -> None:
        settings, clock = self.settings, self.clock
        self.group_host = GroupHost(clock, settings, self.topics)
        self.groups = GroupCoordinator(self.group_host)
        self.transactions = TransactionCoordinator(clock, settings, self.topics)
        self.transactions.on_offsets_marker = self.groups.transaction_completed
        self.topics.on_deleted = self.groups.offsets.drop_topic
        self.wire_log = WireLog() if self._past.wire_log is None else self._past.wire_log
        self.wire_log.on_response = None
        self.authorizer = self._authorizer()
        self.apis = self._all_apis()
        self.authenticator = self._authenticator() if settings.sasl_mechanisms else None
        self.faults = Faults(self.topics, {api.name: api.request for api in self.apis.values()}, self._past.rules)
        # separate random numbers, so that member ids, for example, do not change to which requests a rule is applied
        random = Random(f"faults/{settings.seed}/{self._past.starts}")
        self._injector = FaultInjector(self.faults, clock, random, self._fetch, self._handle, self._reply)
        self._load_groups()
        self.transactions.load()
        clock.call_later(settings.retention_check_interval_ms, self._retain)

    def _authenticator(self) -> Authenticator:
        settings = self.settings
        users = {name: Secret(password) for name, password in settings.users.items()}
        known, configured = self.topics.scram_credentials, self.topics.configured_credentials
        check_logins(settings, has_credentials=bool(known))
        self.topics.change_users(changes_of_users(users, settings.sasl_mechanisms, known, configured))
        mechanisms, session_ms = tuple(settings.sasl_mechanisms), settings.sasl_session_ms
        return Authenticator(mechanisms, users, lambda *key: known.get(key), self.clock, session_ms)

    def new_connection(
        self, connection_id: int, host: str, listener: Listener, subject: str | None = None
    ) -> ConnectionInfo:
        """Return what the core has to know of a connection. `subject`: that of the client's TLS certificate."""
        login = Login(self.authenticator) if listener.has_sasl and self.authenticator is not None else None
        return ConnectionInfo(connection_id, host, login, listener, subject, self.authorizer)

    def _all_apis(self) -> dict[int, Api]:
        """Return all APIs by key, with the versions that the settings allow."""
        self._fetch = Fetch(self.topics, self.clock, self.settings)
        listed = [
            Api(messages.ApiVersionsRequest, (0, 4), self._api_versions),
            *ClusterApis(self).apis(),
            *Produce(self.topics, self.transactions, self.clock, self.settings).apis(),
            *self._fetch.apis(),
            *OffsetApis(self.topics).apis(),
            *TransactionHandlers(self.transactions, self.group_host).apis(),
            *TxnOffsetCommit(self.transactions, self.group_host, self.groups.offsets).apis(),
            *self.groups.apis(),
            *admin_apis(self),
        ]
        most = dict(self.settings.max_versions)
        found = {}
        for api in listed:
            low, high = api.versions
            limit = most.pop(api.name, high)
            least = _LEAST_PRODUCE_VERSION if api.request is messages.ProduceRequest else low
            if limit < least and limit != -1:
                raise ValueError(
                    f"max_versions: {api.name} has the versions {least} to {high}, got {limit}; -1 removes the API"
                )
            high = min(high, limit)
            if low <= high:
                found[api.request.api_key] = api._replace(versions=(low, high))
        if most:
            meant = meant_by(next(iter(most)), {api.name for api in listed})
            raise ValueError(f"max_versions names APIs that the broker does not have: {', '.join(most)}{meant}")
        return found if self.authorizer is None else with_checks(found, self.authorizer, self)

    def _authorizer(self) -> Authorizer | None:
        settings = self.settings
        if not settings.authorizer:
            return None
        super_users = map(principal_of, settings.super_users)
        allows_without_acl = settings.allow_everyone_if_no_acl_found
        return Authorizer(self.topics.acls, super_users, allows_without_acl=allows_without_acl)

    def _api_versions(self, context: RequestContext, request: Any) -> messages.ApiVersionsResponse:
        keys = [
            messages.ApiVersion(api_key=key, min_version=api.versions[0], max_version=api.versions[1])
            for key, api in sorted(self.apis.items())
        ]
        return messages.ApiVersionsResponse(api_keys=keys, **features_of(self.settings))

    # Requests

    def serve(self, connection: ConnectionInfo, frame: bytes | memoryview, reply: Reply) -> bool:
        """Handle a request frame, without its length. `reply` is called once, now or later.

        Return whether the next frame of the connection may be handled before the reply: True only if a fault reorders
        this request.
        """
        if connection.login is not None and connection.login.takes_raw_tokens:
            reply(_raw_reply(connection.login, frame))
            return False
        try:
            exchange = self._decoded(connection, frame)
        except (KcodecError, ApiError, UnicodeDecodeError, IndexError) as error:
            level = logging.WARNING if isinstance(error, LimitExceededError) else logging.DEBUG
            _log.log(level, "connection %d is closed: %s", connection.id, error)
            reply(CLOSE)
            return False
        if isinstance(exchange, list):
            reply(exchange)
            return False
        context, api, entry = exchange
        self.wire_log.add(entry)
        if connection.is_ending:
            refusal = ApiError(ErrorCode.ILLEGAL_SASL_STATE)
            self._reply(entry, response_of(context, entry.request, refusal), reply)
            return False
        return self._injector.serve(context, api, entry, reply)

    def disconnected(self, connection: ConnectionInfo) -> None:
        """Forget the requests of a connection that wait for a response, unless that would affect other clients."""
        waiting = self._waiting.pop(connection.id, None)
        if waiting is not None:
            waiting.on_disconnect()

    def _decoded(self, connection: ConnectionInfo, frame: bytes | memoryview) -> Any:
        """Return the context, the API and the wire log entry of a request, or the response frame if it is refused at
        once."""
        view = memoryview(frame)
        if len(view) < _HEADER.size:
            raise DecodeError(f"a request of {len(view)} bytes is too short for a header")
        key, version, correlation_id, length = _HEADER.unpack_from(view)
        position = _HEADER.size + max(length, 0)
        if length < -1 or position > len(view):
            raise DecodeError(f"the client id has {length} bytes, more than the request")
        client_id = None if length < 0 else str(view[_HEADER.size : position], "utf-8")
        api = self.apis.get(key)
        if api is None:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"API {key} is not supported")
        name, (low, high) = api.name, api.versions
        if key == API_VERSIONS_KEY and not low <= version <= high:
            refusal = messages.ApiVersionsResponse(
                error_code=ErrorCode.UNSUPPORTED_VERSION,
                api_keys=[messages.ApiVersion(api_key=key, min_version=low, max_version=high)],
            )
            return refusal.encode_frame_parts(0, correlation_id.to_bytes(4, "big", signed=True))
        if connection.login is not None and not connection.login.allows(key):
            raise ApiError(ErrorCode.ILLEGAL_SASL_STATE, f"{name} before the end of the login")
        if key == messages.ProduceRequest.api_key:
            low = max(low, _LEAST_PRODUCE_VERSION)
        if not low <= version <= high:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"version {version} of {name} is not supported")
        if api.request.is_flexible(version):
            position = skip_tagged_fields(view, position)
        check_size(self.settings, key, version, view, position)
        # Kafka ignores bytes after the message. librdkafka writes some after AlterUserScramCredentials and, before
        # 2.12, after Metadata.
        request, _ = api.request.decode_prefix(frame, version, position)
        context = RequestContext(version, client_id, connection)
        now = self.clock.now_ms()
        entry = WireEntry(now, connection.id, client_id, correlation_id, name, version, request, len(view))
        return context, api, entry

    def _handle(self, context: RequestContext, api: Api, request: Any, done: Callable[[Any], None]) -> None:
        try:
            result = api.handle(context, request)
        except ApiError as error:
            result = error
        except Exception:  # noqa: BLE001  a defect of the broker: one request fails, the others go on
            _log.exception("%s version %d", type(request).__name__, context.api_version)
            result = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
        if isinstance(result, Later):
            if not result.is_done:
                self._waiting[context.connection.id] = result

            def respond(response: Any) -> None:
                self._waiting.pop(context.connection.id, None)
                done(response_of(context, request, response))

            result.when_done(respond)
        else:
            done(response_of(context, request, result))

    def _reply(self, entry: WireEntry, response: Any, reply: Reply) -> None:
        """Encode the response, and add it to the wire log."""
        parts = response
        if response is not None and response is not CLOSE and response is not SILENCE:
            entry.response = response
            header = entry.correlation_id.to_bytes(4, "big", signed=True)
            if response.is_flexible(entry.version) and response.api_key != API_VERSIONS_KEY:
                header += b"\x00"
            try:
                parts = response.encode_frame_parts(entry.version, header)
            except EncodeError:
                _log.exception("the response to %s version %d", entry.api, entry.version)
                parts = CLOSE
            else:
                self.wire_log.add_response(entry, sum(map(len, parts)))
        if self.wire_log.on_response is not None:
            self.wire_log.on_response(entry)
        reply(parts)

    # State and faults

    def _load_groups(self) -> None:
        topic = self.topics.get(CONSUMER_OFFSETS_TOPIC)
        for partition in () if topic is None else topic.partitions:
            for entry in replayed(partition.log):
                self.groups.replay(partition.number, entry)
        self.groups.loaded()

    def restart_coordinators(self) -> None:
        """Forget the state of both coordinators in memory, and read it from their logs again."""
        self.groups.unload()
        self._load_groups()
        self.transactions.load()

    def expire_producers(self, topic: str | None = None) -> None:
        """Forget the state of producers without an open transaction, as after producer.id.expiration.ms."""
        for one, partition in self.topics.partitions():
            if topic in (None, one.name):
                partition.log.producers.expire(1 << 62)

    def _retain(self) -> None:
        self.clock.call_later(self.settings.retention_check_interval_ms, self._retain)
        self.topics.apply_retention()

    def close(self, *, is_clean: bool = True) -> None:
        """Close the files. If not `is_clean`, leave them as a killed process leaves them."""
        try:
            self.topics.close(is_clean=is_clean)
        finally:
            self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()


def _raw_reply(login: Login, token: bytes | memoryview) -> Any:
    """Return the response to a token that has no header (SaslHandshake version 0): the broker's token, or CLOSE."""
    try:
        found = login.take(bytes(token))[0]
    except LoginRefused:
        return CLOSE
    return [len(found).to_bytes(4, "big"), found]
