"""Join tokens: with one, a new node asks once for what it needs to join, and shows no other credentials of the cluster.

A join token is the only token of a user `join:NODE_ID` without rules, so it is replicated as a hash and ends by itself.
It is used up by the entry that deletes this user at the revision that has it, before anything is answered: of two nodes
with one token, one is refused, and a token that was made meanwhile stays.
"""

import logging
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from cluster.core.core import Core
from cluster.http.app import json_response, read_json
from cluster.http.authorization import REMARK
from cluster.http.requests import Request
from cluster.http.responses import Response
from cluster.http.routes import JSON, WRITE_ERRORS, Route, json_of
from cluster.limits import JOIN_PREFIX
from cluster.problems import Problem
from cluster.process.addresses import is_loopback
from cluster.process.line_pace import AUDIT_LOGGER
from cluster.security.access import ADMINISTRATION, JOINING
from cluster.security.credentials import make_token
from raft.config import NODE_ID_MAX
from store.commands.users import DeleteUser, PutUser, Token
from store.errors import CLOCK_IN_DOUBT, USER_CHANGED, USER_NOT_FOUND, Refused
from store.users.users import User

JOIN_EXPIRES_MS_DEFAULT: Final = 3_600_000
JOIN_EXPIRES_MS_MAX: Final = 86_400_000
OF_PROXIES: Final = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP", "Via")
"""Headers that proxies add. What goes to a proxy may go on without TLS, and all who come by one on this machine seem to
be here.
"""
NodeId = Annotated[int, Meta(ge=1, le=NODE_ID_MAX)]


class JoinTokenRequest(Request, kw_only=True, frozen=True):
    """Makes a join token for a node. `expires_in_ms` counts from now."""

    node_id: NodeId
    expires_in_ms: Annotated[int, Meta(ge=1, le=JOIN_EXPIRES_MS_MAX)] = JOIN_EXPIRES_MS_DEFAULT


class NodeJoinRequest(Request, kw_only=True, frozen=True):
    """Uses up the join token that the request shows."""

    node_id: NodeId


class JoinTokenView(Response, kw_only=True, frozen=True):
    """A join token that was just made. This is the only answer that shows it: the cluster stores its SHA-256."""

    token: str
    node_id: int
    expires_at_ms: int


class NodeJoinView(Response, kw_only=True, frozen=True):
    """The credentials that a new node needs to join. `peer_secret` is null when the nodes have none."""

    cluster_id: str
    node_id: int
    peer_secret: str | None


_audit = logging.getLogger(AUDIT_LOGGER)
_token_decoder: Final = msgspec.json.Decoder(JoinTokenRequest)
_join_decoder: Final = msgspec.json.Decoder(NodeJoinRequest)


class JoinApi:
    """Handles /v1/cluster/join-tokens and /v1/cluster/join."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route]:
        return [
            Route(
                "POST",
                "/v1/cluster/join-tokens",
                self.make,
                "Make a join token for a new node, in place of an earlier one; only this answer shows it",
                {201: json_of(JoinTokenView)},
                access=ADMINISTRATION,
                body={JSON: JoinTokenRequest},
                errors=("user_changed", "too_many_users", "peer_secret_not_text", *WRITE_ERRORS),
                redirects=True,
            ),
            Route(
                "POST",
                "/v1/cluster/join",
                self.join,
                "Use up the join token that the request shows, and get what a new node needs",
                {200: json_of(NodeJoinView)},
                access=JOINING,
                body={JSON: NodeJoinRequest},
                errors=("peer_secret_not_text", "clock_in_doubt", *WRITE_ERRORS),
                redirects=True,
            ),
        ]

    async def make(self, request: web.Request) -> web.Response:
        core = self._core
        core.require_leader()
        if not core.access.is_on:
            raise Problem("invalid_request", "with auth off nobody is asked for a token, so a new node needs none")
        body = await read_json(request, core, _token_decoder)
        self._peer_secret()
        name = f"{JOIN_PREFIX}{body.node_id}"
        former = core.state.users.get(name)
        made, now_ms = make_token(), core.now_ms()
        token = Token(made.token_id, made.sha256, now_ms, now_ms + body.expires_in_ms)
        by = core.access.principal_of(request).name
        request[REMARK] = f"the join token of node {body.node_id}, which ends in {body.expires_in_ms} ms"
        await core.propose(PutUser(name, (), (token,), (), 0 if former is None else former.revision), by=request)
        _audit.info("the join token of node %d was made by %s; it ends in %d ms", body.node_id, by, body.expires_in_ms)
        return json_response(
            JoinTokenView(token=made.text, node_id=body.node_id, expires_at_ms=token.expires_at_ms), 201
        )

    async def join(self, request: web.Request) -> web.Response:
        core = self._core
        core.require_leader()
        body = await read_json(request, core, _join_decoder)
        user = self._holder(request, body.node_id)
        self._require_secrecy(request)
        if not core.clock_is_sure():
            raise Problem(
                CLOCK_IN_DOUBT,
                "nobody knows whether the join token is over; it was not used up: join again when the clocks agree",
            )
        secret = self._peer_secret()
        try:
            await core.propose(DeleteUser(user.user, user.revision), by=request)
        except Refused as refused:
            if refused.code not in (USER_CHANGED, USER_NOT_FOUND):
                raise
            raise core.access.refused(
                request,
                "unauthenticated",
                "the join token was used up or replaced; make another one: keelmq cluster join-token",
            ) from None
        return json_response(NodeJoinView(cluster_id=core.config.cluster_id, node_id=body.node_id, peer_secret=secret))

    def _holder(self, request: web.Request, node_id: int) -> User:
        """Return the user whose join token the request shows. Raises Problem unless it is one of this node."""
        control, name = self._core.access, f"{JOIN_PREFIX}{node_id}"
        user = self._core.state.users.get(name)
        if user is None or control.principal_of(request).name != name:
            reason = f"joining takes a join token of node {node_id}: keelmq cluster join-token"
            raise control.refused(request, "forbidden", reason)
        return user

    def _require_secrecy(self, request: web.Request) -> None:
        """Raise Problem forbidden where somebody on the way could read the peer secret."""
        control = self._core.access
        if any(header in request.headers for header in OF_PROXIES):
            raise control.refused(
                request, "forbidden", "the secret of the peers is not sent through a proxy; ask the node itself"
            )
        if self._core.config.http_tls_cert is None and not is_loopback(request.remote or ""):
            raise control.refused(
                request, "forbidden", "the secret of the peers is not sent without TLS; give the nodes http_tls_cert"
            )

    def _peer_secret(self) -> str | None:
        """Return the secret that peers prove; None when they have none. Raises Problem peer_secret_not_text."""
        secrets = self._core.raft.config.peer_secrets
        try:
            return secrets[0].decode() if secrets else None
        except UnicodeDecodeError:
            raise Problem(
                "peer_secret_not_text",
                "peer_secret_file: its first secret is not UTF-8, so no answer can hold it; exchange it for one of "
                "ASCII characters, or bring it to the new node by hand",
            ) from None
