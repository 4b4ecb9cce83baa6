# SPDX-License-Identifier: Apache-2.0
"""The application of fault rules to requests: a request is delayed, refused, lost, repeated, or handled after a later
one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, NamedTuple

from kcodec.broker.api import CLOSE, SILENCE, Api, ApiError, RequestContext
from kcodec.broker.clock import Clock
from kcodec.broker.error_responses import expects_response, response_of
from kcodec.broker.faults import FaultRule, Faults
from kcodec.broker.fetch import Fetch
from kcodec.broker.fetch_sessions import IDS_VERSION
from kcodec.broker.partial_requests import merged, named_partitions, refused, without
from kcodec.broker.wire_log import WireEntry
from kcodec.protocol import messages
from kcodec.protocol.error_codes import ErrorCode

#: Time for which a request is held back if no other request comes that the rule chooses.
REORDER_MS = 1000

#: Error codes that Kafka returns for a whole response of these APIs. It returns all others for partitions or topics.
_WHOLE_ERRORS: dict[type[Any], tuple[ErrorCode, ...]] = {
    messages.FetchRequest: (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ),
    messages.MetadataRequest: (ErrorCode.REBOOTSTRAP_REQUIRED,),
}

#: Handles a request, and calls the last argument with the response.
Handle = Callable[[RequestContext, Api, Any, Callable[[Any], None]], None]
Respond = Callable[[WireEntry, Any, Callable[[Any], None]], None]


class _Exchange(NamedTuple):
    """A request that a rule chooses, and the function that responds to it. `named` is the request with the names of all
    topics and partitions that it selects."""

    rule: FaultRule
    context: RequestContext
    api: Api
    request: Any
    named: Any
    respond: Callable[[Any], None]


class FaultInjector:
    """Handles requests, with the faults that rules inject.

    handle:  Function that handles a request without a fault.
    respond: Function that encodes a response and sends it.
    """

    def __init__(
        self, faults: Faults, clock: Clock, random: Random, fetch: Fetch, handle: Handle, respond: Respond
    ) -> None:
        self._faults = faults
        self._clock = clock
        self._random = random
        self._fetch = fetch
        self._handle = handle
        self._respond = respond
        #: The requests that wait for a later one: the rule, and the function that handles the request.
        self._held: list[tuple[FaultRule, Callable[[], None]]] = []

    def serve(self, context: RequestContext, api: Api, entry: WireEntry, reply: Callable[[Any], None]) -> bool:
        """Handle a request. Return whether the next request of its connection may be handled before this one."""

        def respond(response: Any) -> None:
            self._respond(entry, response, reply)

        if not self._faults:
            self._handle(context, api, entry.request, respond)
            return False
        request = self._with_names(entry.request, context.api_version)
        overtaken = [one for one in self._held if self._faults.matches(one[0], request, context.client_id)]
        rule = None if overtaken else self._faults.match(request, context.client_id, self._random)
        if rule is None:
            self._handle(context, api, entry.request, respond)
        else:
            entry.fault = rule
            if rule.reorder:
                self._hold(rule, lambda: self._handle(context, api, entry.request, respond))
                return True
            begin = partial(self._apply, _Exchange(rule, context, api, entry.request, request, respond))
            if rule.delay_ms > 0:
                self._clock.call_later(rule.delay_ms, begin)
            else:
                begin()
        for one in overtaken:
            one[1]()
        return False

    def _with_names(self, request: Any, version: int) -> Any:
        """Return the request with all partitions or topics that it selects. A Fetch request names only some partitions
        of its session, and a Metadata request for all topics names none."""
        if (
            isinstance(request, messages.MetadataRequest)
            and not request.topics
            and (version == 0 or request.topics is None)
        ):
            found = copy.copy(request)
            found.topics = [messages.MetadataRequestTopic(name=name) for name in self._faults.topic_names()]
            return found
        if not isinstance(request, messages.FetchRequest) or request.session_id == 0:
            return request
        return named_partitions(request, self._fetch.sessions.named(request, version), by_id=version >= IDS_VERSION)

    def _hold(self, rule: FaultRule, handle: Callable[[], None]) -> None:
        def release() -> None:
            if entry in self._held:
                self._held.remove(entry)
                handle()

        entry = (rule, release)
        self._held.append(entry)
        self._clock.call_later(rule.delay_ms or REORDER_MS, release)

    def _apply(self, one: _Exchange) -> None:
        """Apply the rule to the request."""
        rule, request, respond = one.rule, one.request, one.respond
        handle = partial(self._handle, one.context, one.api)
        ending = CLOSE if rule.close else SILENCE if expects_response(request) else None
        if rule.error is not None:
            self._refuse(one, rule.error)
        elif "before" in (rule.drop, rule.close):
            respond(ending)
        elif rule.drop or rule.close:
            handle(request, lambda response: respond(ending))
        elif rule.duplicate:
            handle(request, lambda response: handle(request, respond))
        else:
            handle(request, respond)

    def _refuse(self, one: _Exchange, code: ErrorCode) -> None:
        """Respond with the error code. If possible, return it only for the partitions that the rule chooses, and handle
        the others."""
        rule, request, respond = one.rule, one.request, one.respond
        handle = partial(self._handle, one.context, one.api)
        others = chosen = None
        if rule.is_partial or code not in _WHOLE_ERRORS.get(type(request), (code,)):
            others, chosen = without(one.named, self._faults.topic_of, rule.chooses)
        error = None if chosen is None else refused(chosen, one.context.api_version, code)
        if chosen is None and code not in _WHOLE_ERRORS.get(type(request), (code,)):
            handle(request, respond)  # it names no topic, and Kafka returns this error code only for topics
        elif error is None:  # for the whole request, or the API has no error codes for partitions
            respond(response_of(one.context, request, ApiError(code, "injected fault")))
        elif isinstance(request, messages.MetadataRequest):
            # As in Kafka, the response contains the brokers, even if each topic has an error.
            rest = copy.copy(request)
            rest.topics = [] if others is None else others.topics
            handle(rest, lambda found: respond(_joined(found if rest.topics else _without_topics(found), error)))
        elif not expects_response(request):
            handle(others, lambda _: respond(CLOSE)) if others is not None else respond(CLOSE)
        elif isinstance(request, messages.FetchRequest):
            # The session needs the whole request. What it then knows of the chosen partitions is that they failed.
            at_once = copy.copy(request)
            at_once.max_wait_ms = 0
            handle(at_once, lambda found: respond(self._fetched(one, found, error)))
        elif others is None:
            respond(error)
        else:
            handle(others, lambda found: respond(_joined(found, error)))

    def _fetched(self, one: _Exchange, response: Any, error: Any) -> Any:
        if not isinstance(response, messages.FetchResponse) or response.error_code:
            return response
        by_id = one.context.api_version >= IDS_VERSION
        self._fetch.sessions.forget_sent(response.session_id, error, by_id=by_id)
        others = without(response, self._faults.topic_of, one.rule.chooses)[0]
        found = copy.copy(response)
        found.responses = [] if others is None else others.responses
        return merged(found, error)


def _without_topics(response: Any) -> Any:
    """Return a Metadata response without topics. In version 0, a request without topics selects all of them."""
    if isinstance(response, messages.MetadataResponse):
        response.topics = []
    return response


def _joined(response: Any, error: Any) -> Any:
    """Return the response for the other partitions, with the error added. Return `response` unchanged if it is not
    one."""
    return merged(response, error) if isinstance(response, type(error)) else response
