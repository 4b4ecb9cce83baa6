# SPDX-License-Identifier: Apache-2.0
"""A broker inside a program: a thread with an event loop, the sockets, and methods for tests.

Every method may be called from any thread except the broker's own. It runs on the broker's thread, between two
requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TypeVar
from weakref import WeakSet

from kcodec._fast import RecordBatch, batches, decode, encode
from kcodec.arguments import check_kind, meant_by
from kcodec.broker.api import ApiError, Listener
from kcodec.broker.clock import Clock
from kcodec.broker.core import BrokerCore, Past
from kcodec.broker.faults import FaultRule, Faults, parse_rule
from kcodec.broker.server import Server
from kcodec.broker.settings import HIGHEST_PORT, BrokerSettings, check_logins, listeners_at
from kcodec.broker.topics import Partition, Topic
from kcodec.broker.transactions.state import TransactionMetadata
from kcodec.broker.wire_log import TraceFile, WireLog
from kcodec.errors import KcodecError
from kcodec.integers import as_integer, shown
from kcodec.record.rewrite import set_base_offset

T = TypeVar("T")
#: How often a call looks whether the broker has been stopped meanwhile.
_LOOK_SECONDS = 0.5
_LATEST_START_MS = 253_402_300_799_999


#: The servers of all brokers that run in this process.
_SERVERS: WeakSet[Server] = WeakSet()


def _close_in_child() -> None:
    for server in list(_SERVERS):
        server.close_in_child()
    _SERVERS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


class EmbeddedBrokerError(KcodecError):
    """The broker cannot do what a method requests: a topic does not exist, or the broker does not run."""


class _Running(NamedTuple):
    """What a broker has while it runs. `process_id` is the process that has started the broker, and not a fork of
    it."""

    process_id: int
    thread: threading.Thread
    loop: asyncio.AbstractEventLoop
    core: BrokerCore
    server: Server


class BrokerClock:
    """The clock of a broker. It continues after a restart."""

    def __init__(self, clock: Callable[[], Clock], call: Callable[[Callable[[], Any]], Any]) -> None:
        self._clock = clock
        self._call = call

    def now_ms(self) -> int:
        """Return the broker's time in ms since 1970."""
        return self._clock().now_ms()

    def advance(self, ms: float) -> None:
        """Move the broker's time forward by `ms`. Everything that is due happens before this returns.

        ms: Milliseconds, from 0 to 31,622,400,000 (366 days). Raise ValueError for another number.

        For example, transactions time out, sessions of members expire, and markers are written, in the order of their
        times.
        """
        check_kind("ms", ms, (int, float), "a number of ms")
        self._call(lambda: self._clock().advance(ms))


class BrokerFaults:
    """The fault rules of a broker. They are kept after a restart."""

    def __init__(self, faults: Callable[[], Faults], call: Callable[[Callable[[], Any]], Any]) -> None:
        self._faults = faults
        self._call = call

    def add(self, api: str = "*", **fields: Any) -> FaultRule:
        """Add a rule and return it; its `hits` counts. The fields are those of FaultRule.

        api: Name of the API, "Produce"; "*" for all. fields: The other fields.

        Raise ValueError or TypeError if the rule is invalid.
        """
        rule: FaultRule = self._call(lambda: self._faults().add(api, **fields))
        return rule

    def remove(self, rule: FaultRule) -> None:
        """Remove a rule.

        rule: What `add` returned.
        """
        self._call(lambda: self._faults().remove(rule))

    def clear(self) -> None:
        """Remove all rules."""
        self._call(lambda: self._faults().clear())


class Broker:
    """A Kafka broker in this process: a single node for development, tests and demos.

        from kcodec.client import Producer

        with Broker() as broker, Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send("orders", b"17")

    host, port:   Where the broker listens; port 0 takes a free port. With the setting `listeners`, omit `port`.
    data_dir:     Directory of the logs, in Kafka's files. None keeps them in memory.
    manual_clock: Time passes only by `clock.advance`. start_ms: the time it begins with, in ms since 1970.
    fault_rules:  Rules from the first request on: mappings with the fields of FaultRule, or texts as for --fault.
    trace:        File to which every request and response is written, one JSON object a line.
    settings:     Fields of BrokerSettings: transaction_version, max_versions, marker_delay_ms and others.

    With data_dir, the clock does not begin before the latest time that a broker has written there.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        data_dir: str | Path | None = None,
        manual_clock: bool = False,
        start_ms: int | None = None,
        trace: str | Path | None = None,
        fault_rules: Sequence[str | Mapping[str, Any]] = (),
        **settings: Any,
    ) -> None:
        known = BrokerSettings.__dataclass_fields__
        for name in settings.keys() - known.keys():
            ours = (*known, "host", "port", "data_dir", "manual_clock", "start_ms", "trace", "fault_rules")
            meant = meant_by(name, ours) or ": see the fields of BrokerSettings"
            raise TypeError(f"Broker has no argument {name!r}{meant}")
        check_kind("host", host, (str,), "a string")
        if not host:
            raise ValueError("host must not be empty; with 0.0.0.0, the broker listens on all addresses")
        for name, path in (("data_dir", data_dir), ("trace", trace)):
            check_kind(name, path, (str, os.PathLike, type(None)), "a path or None")
        check_kind("manual_clock", manual_clock, (bool,), "True or False")
        check_kind("start_ms", start_ms, (int, type(None)), "a number of ms or None")
        if start_ms is not None and start_ms < 0:
            raise ValueError(f"start_ms must not be negative, got {start_ms}")
        if start_ms is not None and start_ms > _LATEST_START_MS:
            raise ValueError(f"start_ms must be at most {_LATEST_START_MS} (the year 9999), got {shown(start_ms)}")
        if start_ms is not None and not manual_clock:
            raise ValueError("start_ms has no effect without manual_clock=True: pass both, or omit start_ms")
        number = as_integer(port)
        if number is None or not 0 <= number <= HIGHEST_PORT:
            raise ValueError(
                f"port must be a number between 0 and {HIGHEST_PORT}, got {shown(port)}; 0 takes a free port"
            )
        port = number
        self._settings = BrokerSettings(**settings)
        check_logins(self._settings, has_credentials=data_dir is not None)
        if port and self._settings.listeners:
            raise ValueError(f"port {port} has no effect: the ports are in listeners; omit port")
        #: The first one is that of bootstrap_servers. A restart uses the same ports.
        self._listeners = listeners_at(self._settings, host, port)
        # absolute, because a test may change the working directory before a restart
        paths = (None if path is None else Path(path).absolute() for path in (data_dir, trace))
        self._directory, self._trace = paths
        self._is_manual, self._start_ms = manual_clock, start_ms
        #: Added at the first start. A restart keeps the rules of the broker.
        self._fault_rules = _rules_of(fault_rules)
        #: What the next start continues with.
        self._past = Past()
        self._thread: threading.Thread | None = None
        self._running: _Running | None = None

    def __reduce__(self) -> Any:
        raise TypeError("a Broker cannot be pickled: give its bootstrap_servers to the other process")

    def __repr__(self) -> str:
        where = f"at {self.bootstrap_servers}" if self._running is not None else "stopped"
        return f"<Broker {where}>"

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # Start and stop

    def start(self) -> None:
        """Start the broker. Raise OSError if the port is in use or the directory cannot be used."""
        if self._thread is not None:
            raise EmbeddedBrokerError("the broker runs already")
        started: Future[None] = Future()
        self._thread = thread = threading.Thread(target=self._run, args=(started,), name="kcodec-broker", daemon=True)
        thread.start()
        try:
            started.result()
        except BaseException:  # also for Ctrl-C: the thread must end if start() raises
            if not started.cancel():  # otherwise the wait was interrupted, and the thread ends after its recovery
                self.close()
                thread.join()
            self._thread = None
            raise

    def _run(self, started: Future[None]) -> None:
        loop = asyncio.SelectorEventLoop()  # also on Windows, whose default loop cannot stop accepting
        try:
            with contextlib.ExitStack() as stack:
                try:
                    core, server = self._opened(loop, stack)
                    if not started.set_running_or_notify_cancel():
                        server.close()
                        core.close()
                        loop.run_until_complete(server.finish())
                        return
                except BaseException as error:  # noqa: BLE001  it belongs to the caller of start()
                    if not started.cancelled():
                        started.set_exception(error)
                    return
                self._running = _Running(os.getpid(), threading.current_thread(), loop, core, server)
                _SERVERS.add(server)
                started.set_result(None)
                loop.run_forever()
                loop.run_until_complete(server.finish())
        finally:
            loop.close()

    def _opened(self, loop: asyncio.AbstractEventLoop, stack: contextlib.ExitStack) -> tuple[BrokerCore, Server]:
        """Return the core and the server. If one of them fails, close what has been opened."""
        trace = None if self._trace is None else stack.enter_context(contextlib.closing(TraceFile(self._trace)))
        clock = self._past.clock
        clock = Clock(is_manual=self._is_manual, start_ms=self._start_ms) if clock is None else clock.restarted()
        core = BrokerCore(self._settings, clock, self._directory, self._past)
        if trace is not None:
            core.wire_log.on_response = trace.write
        server, ports = Server(core, self._listeners), [listener.port for listener in self._listeners]
        try:
            if not self._past.starts:
                for rule in self._fault_rules:
                    core.faults.add(**rule)
            loop.run_until_complete(server.start())
        except BaseException:  # raised again for the caller of start(), with the files of the core closed
            server.close()
            core.close()
            loop.run_until_complete(server.finish())
            for listener, port in zip(self._listeners, ports, strict=True):
                listener.port = port  # a free port that this start took may be in use at the next one
            raise
        self._past = self._past.after(core)
        return core, server

    def close(self) -> None:
        """Stop the broker: close the connections and the files. A second call does nothing."""
        self._stop(is_clean=True)

    def crash(self) -> None:
        """Stop without writing producer snapshots, as a killed process does. `start` recovers the state from the
        files."""
        self._stop(is_clean=False)

    def restart(self) -> None:
        """Stop, and start again on the same port. Without `data_dir`, all topics, groups and transactions are lost. The
        clock, the fault rules and the wire log continue."""
        self.close()
        self.start()

    def _stop(self, *, is_clean: bool) -> None:
        running = self._running
        if running is None:
            return

        def stop() -> None:
            _SERVERS.discard(running.server)
            try:
                running.server.close()
            finally:
                try:
                    running.core.close(is_clean=is_clean)
                finally:
                    running.loop.stop()

        if os.getpid() == running.process_id:  # a fork leaves the broker to the process that started it
            running.loop.call_soon_threadsafe(stop)
            running.thread.join()
        self._thread = self._running = None

    def _call(self, function: Callable[[], T]) -> T:
        """Run a function on the broker's thread and return its result."""
        running = self._running
        if running is None or os.getpid() != running.process_id:
            raise self._not_running()
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(function())
            except BaseException as error:  # noqa: BLE001  it belongs to the caller
                result.set_exception(error)

        if threading.current_thread() is running.thread:
            run()
        else:
            try:
                running.loop.call_soon_threadsafe(run)
            except RuntimeError:  # the loop has been closed
                raise self._not_running() from None
        while not wait([result], _LOOK_SECONDS).done:
            if not running.thread.is_alive() and not result.done():
                raise self._not_running()
        try:
            return result.result()
        except ApiError as error:
            raise EmbeddedBrokerError(f"{error.code.name}: {error.message or error.code.name}") from error

    def _not_running(self) -> EmbeddedBrokerError:
        if self._running is not None and os.getpid() != self._running.process_id:
            return EmbeddedBrokerError(
                f"the broker runs in process {self._running.process_id}, from which this process was forked: "
                "use it there, and only its bootstrap_servers here"
            )
        return EmbeddedBrokerError("the broker does not run: use it in a with statement, or call start()")

    @property
    def core(self) -> BrokerCore:
        """The core of the broker. Only the broker's thread may use it. Raise EmbeddedBrokerError if the broker does not
        run."""
        if self._running is None or os.getpid() != self._running.process_id:
            raise self._not_running()
        return self._running.core

    # Addresses and contents

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, host:port. With several listeners, the address of the first listener.

        Raise EmbeddedBrokerError if the port is 0 and the broker has not been started yet.
        """
        return self._address(self._listeners[0])

    @property
    def listeners(self) -> dict[str, str]:
        """The address of each listener, host:port, by its security protocol. Raise the same error as
        `bootstrap_servers`."""
        return {listener.protocol: self._address(listener) for listener in self._listeners}

    def _address(self, listener: Listener) -> str:
        if not listener.port:
            text = "the broker has no port yet: use it in a with statement, or call start(), which takes a free port"
            raise EmbeddedBrokerError(text)
        return listener.address

    @property
    def admin_servers(self) -> str:
        """The address for requests of the test itself: the same as `bootstrap_servers`, as in `ApacheKafka` without a
        proxy."""
        return self.bootstrap_servers

    @property
    def log_directory(self) -> Path:
        """The directory of the logs, for `kcodec.open`. Raise EmbeddedBrokerError if the logs are in memory."""
        if self._directory is None:
            raise EmbeddedBrokerError("the logs are in memory: start the broker with data_dir to have them in files")
        return self._directory

    def client_options(
        self, user: str | None = None, mechanism: str | None = None, *, protocol: str | None = None
    ) -> dict[str, Any]:
        """Return the options with which a client of kcodec connects.

        user:      The name of the user that logs in; by default the first one of `users`.
        mechanism: The SASL mechanism; by default the first one of `sasl_mechanisms`.
        protocol:  The security protocol of the listener; by default that of the first one.

        With TLS, the client trusts `ssl_cafile`, or without one the broker's own certificate. Raise
        EmbeddedBrokerError if the user, the mechanism or the listener does not exist, or if the listener does not use
        SASL.
        """
        settings = self._settings
        listener = next((one for one in self._listeners if protocol in (None, one.protocol)), None)
        if listener is None:
            raise EmbeddedBrokerError(f"no listener has the protocol {protocol!r}: it is not in the setting listeners")
        found: dict[str, Any] = {"bootstrap_servers": self._address(listener)}
        if listener.protocol != "PLAINTEXT":
            found["security_protocol"] = listener.protocol
        if listener.has_tls:
            found["ssl_cafile"] = str(settings.ssl_cafile or settings.ssl_certfile)
        if (user or mechanism) and not listener.has_sasl:
            text = f"{user or mechanism!r} has no effect: the {listener.protocol} listener does not use SASL"
            raise EmbeddedBrokerError(f"{text}; pass protocol= of a SASL listener")
        if listener.has_sasl:
            name = next(iter(settings.users), "") if user is None else user
            if name not in settings.users:
                raise EmbeddedBrokerError(f"user {name!r} is not in the setting users")
            if mechanism not in (None, *settings.sasl_mechanisms):
                raise EmbeddedBrokerError(f"mechanism {mechanism!r} is not in the setting sasl_mechanisms")
            found["sasl_mechanism"] = mechanism or settings.sasl_mechanisms[0]
            found |= {"sasl_plain_username": name, "sasl_plain_password": settings.users[name]}
        return found

    @property
    def clock(self) -> BrokerClock:
        """The broker's time."""
        return BrokerClock(lambda: self.core.clock, self._call)

    @property
    def faults(self) -> BrokerFaults:
        """The fault rules."""
        return BrokerFaults(lambda: self.core.faults, self._call)

    @property
    def wire_log(self) -> WireLog:
        """The latest requests and responses, including those before a restart."""
        return self.core.wire_log

    @property
    def marker_delay_ms(self) -> float:
        """Time in ms between the decision about a transaction and its markers. It can be changed."""
        return self.core.transactions.marker_delay_ms

    @marker_delay_ms.setter
    def marker_delay_ms(self, value: float) -> None:
        check_kind("marker_delay_ms", value, (int, float), "a number of ms")
        if not value >= 0:
            raise ValueError(f"marker_delay_ms must not be negative, got {value}")

        def change() -> None:
            self.core.transactions.marker_delay_ms = value

        self._call(change)

    def create_topic(
        self, name: str | None = None, partitions: int = 3, *, replication_factor: int | None = None, **configs: Any
    ) -> str:
        """Create a topic and return its name. Raise EmbeddedBrokerError if it exists or a setting is invalid.

        name:       None creates a unique name.
        partitions: Number of its partitions.
        replication_factor: None or 1: there is one node.
        configs:    Settings by Kafka's names, with _ for the dots: max_message_bytes=1000.
        """
        check_kind("partitions", partitions, (int,), "a number")
        if replication_factor not in (None, 1):
            raise EmbeddedBrokerError(f"replication_factor {replication_factor}: the broker is the only node")
        written = {key.replace("_", "."): str(value) for key, value in configs.items()}
        chosen = f"topic-{uuid.uuid4().hex[:12]}" if name is None else name
        self._call(lambda: self.core.topics.create(chosen, partitions, written))
        return chosen

    def end_offset(self, topic: str, partition: int = 0) -> int:
        """Return the end offset of a partition. Raise EmbeddedBrokerError if it does not exist.

        topic: Name of the topic. partition: The partition.
        """
        return self._call(lambda: self._partition(topic, partition).log.log_end_offset)

    def _topic(self, name: str) -> Topic:
        found = self.core.topics.get(name)
        if found is None:
            raise EmbeddedBrokerError(f"topic {name!r} does not exist")
        return found

    def _partition(self, topic: str, number: int) -> Partition:
        check_kind("partition", number, (int,), "a number")
        found = self._topic(topic).partition(number)
        if found is None:
            raise EmbeddedBrokerError(f"topic {topic!r} has no partition {number}")
        return found

    def seed(self, topic: str, records: Iterable[Any], *, partition: int = 0, timestamp: int | None = None) -> None:
        """Append records without a client. The topic is created if it does not exist.

        topic:     Name of the topic.
        records:   Values as bytes, or what `kcodec.encode` takes: tuples (key, value, headers, timestamp), dicts or
                   Records.
        partition: The partition.
        timestamp: Timestamp in ms of records without one; by default the broker's time.

        Raise EmbeddedBrokerError if the partition does not exist, EncodeError if a record is invalid, ValueError if
        partition is negative.
        """
        is_arrow = hasattr(records, "__arrow_c_stream__") or hasattr(records, "__arrow_c_array__")
        rows = records if is_arrow else [(None, one) if isinstance(one, bytes) else one for one in records]
        check_kind("partition", partition, (int,), "a number")
        if partition < 0:
            raise ValueError(f"partition must not be negative, got {partition}")

        def append() -> None:
            if self.core.topics.get(topic) is None:
                self.core.topics.create(topic, partition + 1)
            where = self._partition(topic, partition)
            now = self.core.clock.now_ms() if timestamp is None else timestamp
            for batch in batches(encode(rows, timestamp=now)):
                data = bytearray(batch.data)
                set_base_offset(data, 0)
                where.log.append_client(data, api_version=13, has_transactional_id=False)

        self._call(append)

    def committed(self, topic: str, partition: int | None = None) -> list[Any]:
        """Return the records that a read_committed consumer sees, in the order of partitions and offsets.

        topic:     Name of the topic.
        partition: Only this partition.

        Raise EmbeddedBrokerError if the topic or the partition does not exist.
        """

        def read() -> list[Any]:
            chosen = self._topic(topic).partitions if partition is None else [self._partition(topic, partition)]
            found = []
            for log in (one.log for one in chosen):
                data = b"".join(bytes(batch.data) for batch in log.batches_from(log.log_start_offset))
                aborted = log.aborted_transactions()
                options: dict[str, Any] = {"isolation_level": "read_committed", "aborted_transactions": aborted}
                decoded = decode(data, start_offset=log.log_start_offset, end_offset=log.last_stable_offset, **options)
                found += list(decoded.records())
            return found

        return self._call(read)

    def batches(self, topic: str, partition: int = 0) -> list[RecordBatch]:
        """Return the batches of a partition, markers included.

        topic: Name of the topic. partition: The partition.

        Raise EmbeddedBrokerError if the topic or the partition does not exist.
        """

        def read() -> list[RecordBatch]:
            log = self._partition(topic, partition).log
            return list(log.batches_from(log.log_start_offset))

        return self._call(read)

    def transactions(self) -> dict[str, TransactionMetadata]:
        """Return the state of every transactional id."""
        return self._call(lambda: {found.transactional_id: found for found in self.core.transactions})

    # Faults

    def restart_coordinators(self) -> None:
        """Let the coordinators forget everything in memory, and load their state from their logs."""
        self._call(self.core.restart_coordinators)

    def expire_producers(self, topic: str | None = None) -> None:
        """Let partitions forget producers without an open transaction, as after producer.id.expiration.ms.

        topic: Only the partitions of this topic.
        """

        def expire() -> None:
            if topic is not None:
                self._topic(topic)
            self.core.expire_producers(topic)

        self._call(expire)

    def change_leader_epoch(self, topic: str, partition: int = 0) -> None:
        """Raise the leader epoch of a partition by 1, as a new election does.

        topic: Name of the topic. partition: The partition.
        """

        self._call(lambda: self.core.topics.change_leader_epoch(self._topic(topic), self._partition(topic, partition)))


def _rules_of(rules: Sequence[str | Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the arguments of `Faults.add` for each rule. Raise ValueError or TypeError."""
    if isinstance(rules, str | Mapping):
        raise TypeError(f"fault_rules must be a list of rules, got {rules!r}; write [...] around one rule")
    found = []
    for rule in rules:
        if not isinstance(rule, str | Mapping):
            raise TypeError(f"a fault rule must be a mapping or a string, got {rule!r}")
        found.append(parse_rule(rule) if isinstance(rule, str) else dict(rule))
    return found
