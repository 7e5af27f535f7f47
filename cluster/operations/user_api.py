"""Shows and changes users: their certificates, tokens and permissions."""

import contextlib
from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from cluster.core.core import Core
from cluster.http.app import json_response, read_json
from cluster.http.requests import Natural, Request, parse_query
from cluster.http.responses import Response
from cluster.http.routes import JSON, WRITE_ERRORS, Route, json_of
from cluster.limits import JOIN_PREFIX, LIST_MAX, USER_PATTERN
from cluster.problems import Problem
from cluster.security.access import ADMINISTRATION, SIGNED_IN
from cluster.security.credentials import make_token
from cluster.security.issuer import GROUP_PREFIX, PERSON_PREFIX
from cluster.security.permissions import (
    NETWORKS_MAX,
    RULES_MAX,
    Action,
    Permissions,
    Resource,
    actions_on,
    check_rule,
    resource_of,
)
from cluster.security.principals import RESERVED_NAMES
from store.commands.users import DeleteUser, Effect, PutUser, Rule, Token, UserPut
from store.errors import USER_NOT_FOUND, Refused
from store.users.users import User

UserName = Annotated[str, Meta(pattern=USER_PATTERN)]
CertificateName = Annotated[str, Meta(min_length=1, max_length=200)]

CERTIFICATES_MAX: Final = 16
"""Maximum number of certificate names of a user."""
TOKENS_MAX: Final = 2
"""Maximum number of tokens of a user: while one replaces the other, both are valid."""
TOKEN_EXPIRES_MS_MAX: Final = 10 * 365 * 86_400_000


class RuleBody(Request, kw_only=True, frozen=True):
    """A permission, as in cluster/security/permissions.py."""

    effect: Effect = "allow"
    actions: Annotated[tuple[str, ...], Meta(min_length=1, max_length=16)]
    resource: str
    networks: Annotated[tuple[str, ...], Meta(max_length=NETWORKS_MAX)] = ()


class UserRequest(Request, kw_only=True, frozen=True):
    """Creates a user, or replaces the given parts of one. With `revision`, only a user with this revision is replaced;
    0 stands for a user that does not exist.
    """

    rules: Annotated[tuple[RuleBody, ...], Meta(max_length=RULES_MAX)] | None = None
    certificates: Annotated[tuple[CertificateName, ...], Meta(max_length=CERTIFICATES_MAX)] | None = None
    revision: Natural | None = None


class TokenRequest(Request, kw_only=True, frozen=True):
    """Makes a token. `expires_in_ms` counts from now; without it, the token does not expire."""

    expires_in_ms: Annotated[int, Meta(ge=1, le=TOKEN_EXPIRES_MS_MAX)] | None = None


class UsersQuery(Request, kw_only=True, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = 100
    after: str | None = None


class ExplainQuery(Request, kw_only=True, frozen=True):
    """Asks whether a user may do something; `address` is the client's address, for rules with networks."""

    action: Action
    resource: str
    address: str = ""


class TokenView(Response, kw_only=True, frozen=True):
    """A token without its secret. `expires_at_ms` is null when the token does not expire."""

    token_id: str
    created_at_ms: int
    expires_at_ms: int | None


class RuleView(Response, kw_only=True, frozen=True):
    effect: Effect
    actions: tuple[str, ...]
    resource: str
    networks: tuple[str, ...]


class UserView(Response, kw_only=True, frozen=True):
    user: str
    revision: int
    certificates: tuple[str, ...]
    tokens: tuple[TokenView, ...]
    rules: tuple[RuleView, ...]


class UsersView(Response, kw_only=True, frozen=True):
    users: list[UserView]
    next: str | None


class NewTokenView(Response, kw_only=True, frozen=True):
    """A token that was just made. This is the only answer that shows it: the cluster stores its SHA-256."""

    token: str
    token_id: str
    expires_at_ms: int | None


class VerdictView(Response, kw_only=True, frozen=True):
    """Answer whether an action is allowed, and the rule that decides it; null when no rule matches."""

    allowed: bool
    rule: RuleView | None


class PrincipalQuery(Request, kw_only=True, frozen=True):
    """Asks what the principal may do with `resource`, such as topic:orders."""

    resource: str | None = None


class PrincipalView(Response, kw_only=True, frozen=True):
    """The principal whose credentials the request shows, and the address from which it comes. `actions` lists the
    actions that it may do on the resource of the query.
    """

    principal: str
    address: str
    actions: tuple[Action, ...] | UnsetType = UNSET


_user_decoder: Final = msgspec.json.Decoder(UserRequest)
_token_decoder: Final = msgspec.json.Decoder(TokenRequest)


class UserApi:
    """Handles /v1/users and /v1/principal."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._being_created: dict[str, str] = {}
        """Names of users that are not applied yet, by the same name without case."""

    def routes(self) -> list[Route]:
        return [*self._reading_routes(), *self._writing_routes()]

    def _reading_routes(self) -> list[Route]:
        one = "/v1/users/{user}"
        return [
            Route(
                "GET",
                "/v1/principal",
                self.principal,
                "Show as whom the cluster knows the client",
                {200: json_of(PrincipalView)},
                query=PrincipalQuery,
                access=SIGNED_IN,
            ),
            Route(
                "GET",
                "/v1/users",
                self.list_all,
                "List the users by name, page by page",
                {200: json_of(UsersView)},
                query=UsersQuery,
                access=ADMINISTRATION,
                errors=("no_leader",),
                redirects=True,
            ),
            Route(
                "GET",
                one,
                self.show,
                "Show a user, without the secrets of its tokens",
                {200: json_of(UserView)},
                access=ADMINISTRATION,
                errors=("user_not_found", "no_leader"),
                redirects=True,
            ),
            Route(
                "GET",
                f"{one}/explain",
                self.explain,
                "Tell whether a user may do something, and by which rule",
                {200: json_of(VerdictView)},
                query=ExplainQuery,
                access=ADMINISTRATION,
                errors=("user_not_found", "no_leader"),
                redirects=True,
            ),
        ]

    def _writing_routes(self) -> list[Route]:
        one = "/v1/users/{user}"
        of_one = ("user_not_found", *WRITE_ERRORS)
        return [
            Route(
                "PUT",
                one,
                self.put,
                "Create a user, or replace the given parts of one",
                {201: json_of(UserView), 200: json_of(UserView)},
                access=ADMINISTRATION,
                body={JSON: UserRequest},
                body_optional=True,
                errors=("user_changed", "certificate_taken", "user_name_taken", "too_many_users", *WRITE_ERRORS),
                redirects=True,
            ),
            Route(
                "DELETE",
                one,
                self.delete,
                "Delete a user, whose tokens are then not valid any more",
                {204: {}},
                access=ADMINISTRATION,
                errors=of_one,
                redirects=True,
            ),
            Route(
                "POST",
                f"{one}/tokens",
                self.create_token,
                "Make a token, which only this answer shows",
                {201: json_of(NewTokenView)},
                access=ADMINISTRATION,
                body={JSON: TokenRequest},
                body_optional=True,
                errors=("user_changed", "too_many_tokens", *of_one),
                redirects=True,
            ),
            Route(
                "DELETE",
                f"{one}/tokens/{{token_id}}",
                self.delete_token,
                "Revoke a token",
                {204: {}},
                access=ADMINISTRATION,
                errors=("user_changed", *of_one),
                redirects=True,
            ),
        ]

    async def principal(self, request: web.Request) -> web.Response:
        control = self._core.access
        query = parse_query(PrincipalQuery, request.query)
        actions: tuple[Action, ...] | UnsetType = UNSET
        if query.resource is not None:
            resource = _resource(query.resource)
            # Whether it exists is not told: a rule is a name's, not a topic's.
            actions = tuple(each for each in actions_on(resource.kind) if control.may(request, each, resource))
        name, address = control.principal_of(request).name, control.shown_by(request).address
        return json_response(PrincipalView(principal=name, address=address, actions=actions))

    async def list_all(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        query = parse_query(UsersQuery, request.query)
        found = self._core.state.users.after(query.after, query.limit + 1)
        shown = found[: query.limit]
        following = shown[-1].user if len(shown) < len(found) else None
        return json_response(UsersView(users=[_view(user) for user in shown], next=following))

    async def show(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        return json_response(_view(self._user(_path_name(request))))

    async def put(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        name = _path_name(request)
        body = await read_json(request, self._core, _user_decoder, optional=True)
        if body.certificates or name.startswith(JOIN_PREFIX):
            _require_local(name)
        rules = None if body.rules is None else _checked_rules(body.rules)
        former = self._core.state.users.get(name)
        base = former or User(name, 0, (), (), ())
        revision = base.revision if body.revision is None else body.revision
        changed = msgspec.structs.replace(
            base,
            revision=revision,
            rules=base.rules if rules is None else rules,
            certificates=base.certificates if body.certificates is None else tuple(dict.fromkeys(body.certificates)),
        )
        if former is not None:
            return json_response(_view(await self._replace(request, changed)))
        with self._alone_in_any_case(name):
            return json_response(_view(await self._replace(request, changed)), 201)

    async def delete(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        name = _path_name(request)
        await self._core.propose(DeleteUser(name), by=request)
        return web.Response(status=204)

    async def create_token(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        user = self._user(_path_name(request))
        _require_local(user.user)
        body = await read_json(request, self._core, _token_decoder, optional=True)
        now_ms = self._core.now_ms()
        valid = tuple(each for each in user.tokens if not each.expires_at_ms or each.expires_at_ms > now_ms)
        if len(valid) >= TOKENS_MAX:
            ids = " and ".join(each.token_id for each in valid)
            detail = f"user {user.user} has the tokens {ids}: revoke the older one, keelmq auth token revoke"
            raise Problem("too_many_tokens", detail, {"limit": TOKENS_MAX})
        made = make_token()
        expires_at_ms = 0 if body.expires_in_ms is None else now_ms + body.expires_in_ms
        token = Token(made.token_id, made.sha256, now_ms, expires_at_ms)
        await self._replace(request, msgspec.structs.replace(user, tokens=(*valid, token)))
        view = NewTokenView(token=made.text, token_id=made.token_id, expires_at_ms=expires_at_ms or None)
        return json_response(view, 201)

    async def delete_token(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        user = self._user(_path_name(request))
        token_id = request.match_info["token_id"]
        kept = tuple(each for each in user.tokens if each.token_id != token_id)
        if len(kept) < len(user.tokens):  # revoked twice is revoked
            await self._replace(request, msgspec.structs.replace(user, tokens=kept))
        return web.Response(status=204)

    async def explain(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        user = self._user(_path_name(request))
        query = parse_query(ExplainQuery, request.query)
        resource = _resource(query.resource)
        verdict = Permissions(user.rules, query.address).verdict(query.action, resource)
        rule = None if verdict.rule is None else _rule_view(verdict.rule)
        return json_response(VerdictView(allowed=verdict.allowed, rule=rule))

    def _user(self, name: str) -> User:
        user = self._core.state.users.get(name)
        if user is None:
            raise Refused(USER_NOT_FOUND, f"there is no user {name!r}; keelmq auth user list shows them")
        return user

    @contextlib.contextmanager
    def _alone_in_any_case(self, name: str) -> Iterator[None]:
        """Create the user within the block. Raises Problem user_name_taken when a user, or one that is being created
        at the same time, has this name in another case. The names of people and groups are the issuer's, where case
        counts.
        """
        folded = name.casefold()
        taken = self._core.state.users.in_other_case(name) or self._being_created.get(folded, name)
        if folded in RESERVED_NAMES:
            raise Problem("invalid_request", f"user: {name!r} looks like {folded!r}, which is reserved")
        if taken != name and not name.startswith((PERSON_PREFIX, GROUP_PREFIX)):
            detail = f"user {taken!r} exists, whose name differs from {name!r} only in case; choose another name"
            raise Problem("user_name_taken", detail, {"user": taken})
        is_first = folded not in self._being_created
        self._being_created[folded] = name
        try:
            yield
        finally:
            if is_first:
                del self._being_created[folded]

    async def _replace(self, request: web.Request, user: User) -> User:
        """Replace the user whose revision `user` has, and return it with its new revision."""
        command = PutUser(user.user, user.certificates, user.tokens, user.rules, user.revision)
        put: UserPut = (await self._core.propose(command, by=request)).result
        return msgspec.structs.replace(user, revision=put.revision)


def _resource(text: str) -> Resource:
    """Return the resource that a query names. Raises Problem invalid_request."""
    try:
        return resource_of(text)
    except ValueError as error:
        raise Problem("invalid_request", f"resource: {error}") from None


def _path_name(request: web.Request) -> str:
    """Return the user's name in the path. Raises Problem invalid_request."""
    name = request.match_info["user"]
    try:
        msgspec.convert(name, UserName)
    except msgspec.ValidationError:
        raise Problem(
            "invalid_request",
            "user: 1 to 64 characters of A-Z a-z 0-9 _ . @ -, not - or . first; or oidc:NAME, oidc-group:NAME",
        ) from None
    if name in RESERVED_NAMES:
        raise Problem("invalid_request", f"user: {name!r} is reserved; choose another name")
    return name


def _require_local(name: str) -> None:
    """Raise Problem invalid_request for people and groups of the issuer, who show its tokens alone."""
    if name.startswith(JOIN_PREFIX):
        raise Problem("invalid_request", f"user: {name} stands for a join token: keelmq cluster join-token")
    if name.startswith((PERSON_PREFIX, GROUP_PREFIX)):
        raise Problem("invalid_request", f"user: {name} shows tokens of the issuer, and has none of the cluster's own")


def _checked_rules(bodies: tuple[RuleBody, ...]) -> tuple[Rule, ...]:
    """Return the rules. Raises Problem invalid_request, which names the one that is not valid."""
    rules = tuple(Rule(each.effect, each.actions, each.resource, each.networks) for each in bodies)
    for ordinal, rule in enumerate(rules):
        try:
            check_rule(rule)
        except ValueError as error:
            raise Problem("invalid_request", f"rules[{ordinal}]: {error}") from None
    return rules


def _view(user: User) -> UserView:
    return UserView(
        user=user.user,
        revision=user.revision,
        certificates=user.certificates,
        tokens=tuple(
            TokenView(
                token_id=each.token_id, created_at_ms=each.created_at_ms, expires_at_ms=each.expires_at_ms or None
            )
            for each in user.tokens
        ),
        rules=tuple(_rule_view(rule) for rule in user.rules),
    )


def _rule_view(rule: Rule) -> RuleView:
    return RuleView(effect=rule.effect, actions=rule.actions, resource=rule.resource, networks=rule.networks)
