"""Join tokens: with one, a new node asks once for what it needs to join, and shows no other credentials of the cluster.

A join token is the only token of a user `join:NODE_ID` without rules, so it is replicated as a hash and ends by itself.
It is used up by the entry that takes it from this user, before anything is answered: of two nodes with one token, one
is refused.
"""

import contextlib
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from cluster.core.background import COMMAND_ERRORS
from cluster.core.core import Core
from cluster.http.app import json_response, read_json
from cluster.http.requests import Request
from cluster.http.responses import Response
from cluster.http.routes import JSON, WRITE_ERRORS, Route, json_of
from cluster.problems import Problem
from cluster.process.trust import is_loopback
from cluster.security.access import ADMINISTRATION, BY_HANDLER_AUDITED
from cluster.security.credentials import make_token
from cluster.security.principals import JOIN_PREFIX
from raft.membership import NODE_ID_MAX
from store.commands.users import DeleteUser, PutUser, Token
from store.errors import USER_CHANGED, Refused

JOIN_EXPIRES_MS_DEFAULT: Final = 3_600_000
JOIN_EXPIRES_MS_MAX: Final = 86_400_000
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


_token_decoder: Final = msgspec.json.Decoder(JoinTokenRequest)
_join_decoder: Final = msgspec.json.Decoder(NodeJoinRequest)


class JoinApi:
    """Handles /v1/cluster/join-tokens and /v1/cluster/join."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route]:
        errors = ("user_changed", "too_many_users", *WRITE_ERRORS)
        return [
            Route(
                "POST",
                "/v1/cluster/join-tokens",
                self.make,
                "Make a join token for a new node, in place of an earlier one; only this answer shows it",
                {201: json_of(JoinTokenView)},
                access=ADMINISTRATION,
                body={JSON: JoinTokenRequest},
                errors=errors,
                redirects=True,
            ),
            Route(
                "POST",
                "/v1/cluster/join",
                self.join,
                "Use up the join token that the request shows, and get what a new node needs",
                {200: json_of(NodeJoinView)},
                access=BY_HANDLER_AUDITED,
                body={JSON: NodeJoinRequest},
                errors=errors,
                redirects=True,
            ),
        ]

    async def make(self, request: web.Request) -> web.Response:
        core = self._core
        core.require_leader()
        if not core.access.is_on:
            raise Problem("invalid_request", "with auth off nobody is asked for a token, so a new node needs none")
        body = await read_json(request, core, _token_decoder)
        name = f"{JOIN_PREFIX}{body.node_id}"
        former = core.state.users.get(name)
        made, now_ms = make_token(), core.now_ms()
        token = Token(made.token_id, made.sha256, now_ms, now_ms + body.expires_in_ms)
        by = core.access.principal_of(request).name
        await core.propose(PutUser(name, (), (token,), (), 0 if former is None else former.revision, by))
        return json_response(
            JoinTokenView(token=made.text, node_id=body.node_id, expires_at_ms=token.expires_at_ms), 201
        )

    async def join(self, request: web.Request) -> web.Response:
        core = self._core
        core.require_leader()
        body = await read_json(request, core, _join_decoder)
        name = f"{JOIN_PREFIX}{body.node_id}"
        if core.access.principal_of(request).name != name:
            raise Problem("forbidden", f"joining takes a join token of node {body.node_id}: keelmq cluster join-token")
        self._require_secrecy(request)
        user = core.state.users.get(name)
        if user is None:
            raise Problem("unauthenticated", "the join token was used up")
        try:
            await core.propose(PutUser(name, (), (), (), user.revision, name))
        except Refused as refused:
            if refused.code != USER_CHANGED:
                raise
            raise Problem("unauthenticated", "the join token was used up") from None
        with contextlib.suppress(*COMMAND_ERRORS):  # a user without tokens is no more than a row
            await core.propose(DeleteUser(name, name))
        secrets = core.raft.config.peer_secrets
        secret = secrets[0].decode("ascii", "surrogateescape") if secrets else None
        return json_response(NodeJoinView(cluster_id=core.config.cluster_id, node_id=body.node_id, peer_secret=secret))

    def _require_secrecy(self, request: web.Request) -> None:
        """Raise Problem forbidden where somebody on the way could read the peer secret."""
        if self._core.config.http_tls_cert is None and not is_loopback(request.remote or ""):
            raise Problem("forbidden", "the secret of the peers is not sent without TLS; give the nodes http_tls_cert")
