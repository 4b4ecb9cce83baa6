# SPDX-License-Identifier: Apache-2.0
"""The responses of a scripted peer with SASL."""

from __future__ import annotations

from scripted_peer import APIS, Peer, Request, versions_reply

from kcodec.protocol.messages.auth import SaslAuthenticateResponse, SaslHandshakeResponse
from kcodec.protocol.messages.transactions import InitProducerIdResponse

API_VERSIONS, HANDSHAKE, AUTHENTICATE, INIT = 18, 17, 36, 22


SASL_APIS = {**APIS, HANDSHAKE: (0, 1), AUTHENTICATE: (0, 2)}


# The shortest session that is renewed: after 1.1 s.
SESSION_MS = 1150


def welcome(request: Request, lifetime_ms: int = 0) -> bytes:
    return request.reply(SaslAuthenticateResponse(session_lifetime_ms=lifetime_ms))


def usual(peer: Peer, request: Request) -> bytes | None:
    if request.api_key == API_VERSIONS:
        return versions_reply(request, SASL_APIS)
    if request.api_key == HANDSHAKE:
        return request.reply(SaslHandshakeResponse(mechanisms=["PLAIN"]))
    if request.api_key == AUTHENTICATE:
        return welcome(request, SESSION_MS)
    if request.api_key == INIT:
        return request.reply(InitProducerIdResponse(producer_id=7, producer_epoch=0))
    return peer.usual(request)
