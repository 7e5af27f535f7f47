"""Authentication of requests, and the decision whether a principal may do something.

Three modes: `off` knows nobody and allows everything, `permissive` allows everything and counts and logs all that
`enforce` would refuse. Nodes decide by the users that they have applied, so a follower that lags knows a change later.
"""

import hmac
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from aiohttp import web
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from cluster.problems import Problem
from cluster.security.credentials import HEADER_CHARACTERS_MAX, hash_of, token_in
from cluster.security.issuer import (
    GROUP_PREFIX,
    PERSON_PREFIX,
    TOKEN_CHARACTERS_MAX,
    Issuer,
    KeyAwaited,
    Person,
    TokenRefused,
)
from cluster.security.permissions import RESOURCE_CHARACTERS_MAX, SINGLE, Action, Kind, Resource
from cluster.security.principals import (
    ADMINISTRATOR_NAME,
    ANONYMOUS_NAME,
    Everything,
    Nothing,
    Principal,
    UserAt,
)
from store.users.users import User, Users

AuthMode = Literal["off", "permissive", "enforce"]

PRINCIPALS_MAX: Final = 4_096
"""Maximum number of principals that a node remembers, each with its credentials and client address."""
KNOWN_CHARACTERS_MAX: Final = 4 * 1024 * 1024
"""Maximum number of characters of all credentials that it remembers."""

PERSON_RULES_MAX: Final = 1_024
"""Maximum number of rules of a person, with those of all groups: it takes 3 ms to prepare them."""

_UNAUTHENTICATED: Final = "unauthenticated"
_KEY_AWAITED: Final = "signing_key_awaited"
_FORBIDDEN: Final = "forbidden"
_JUDGED: Final = web.RequestKey("judged", tuple[tuple[int, int], Nothing])
"""Key of a request whose credentials are not valid: the versions of users and keys, and the verdict by them."""

logger = logging.getLogger(__name__)


class Shown(NamedTuple):
    """The credentials that a request shows, and where it comes from."""

    authorization: str | None
    """The Authorization header, or several that a newline separates, which are no credentials."""
    certificate: str | None
    """Name in the client's verified certificate; None without one."""
    address: str


class Denial(NamedTuple):
    """A refusal for lack of permission, as the audit records it."""

    principal: str
    code: str
    action: str
    resource: str
    reason: str
    permitted: bool
    """True when the request goes on, because the mode is permissive."""


class AccessControl:
    """Decides about the requests of one node. Use on the event loop only."""

    def __init__(
        self,
        mode: AuthMode,
        administrator_tokens: Sequence[bytes],
        users: Users,
        now_ms: Callable[[], int],
        shown_by: Callable[[web.Request], Shown],
        issuer: Issuer | None = None,
    ) -> None:
        """Create it. `administrator_tokens` are those of the built-in administrator, `now_ms` is the replicated clock,
        `shown_by` returns the credentials of a request, `issuer` judges the tokens of people.
        """
        self.issuer = issuer
        self.mode: AuthMode = mode
        self.is_on = mode != "off"
        """False when everybody may do everything, so that handlers need not name what they use."""
        self._administrators = [hash_of(token.decode(errors="surrogateescape")) for token in administrator_tokens]
        self._users = users
        self._now_ms = now_ms
        self.shown_by = shown_by
        self._anybody = Everything(ANONYMOUS_NAME)
        self.on_denied: Callable[[web.Request, Denial], None] | None = None
        """Is told of each refusal, also of those that mode permissive lets go on."""
        self._known: dict[Shown, tuple[Principal, int]] = {}
        self._known_characters = 0
        self._known_version = (-1, -1)
        self._refused: Counter[str] = Counter({_UNAUTHENTICATED: 0, _FORBIDDEN: 0})

    # --- decisions ---------------------------------------------------------------------------------------------

    def require(self, request: web.Request, action: Action, *resources: Resource, said: str = "") -> Principal:
        """Return the principal. Raises Problem unauthenticated or forbidden unless it may do `action` on all resources.
        `said` is named in its place where the action would tell whether the resource exists.
        """
        principal = self.principal_of(request)
        if not self.is_on:
            return principal
        for resource in resources:
            if not principal.verdict(action, resource).allowed:
                self._refuse(request, principal, said or action, resource)
        return principal

    def may(self, request: web.Request, action: Action, resource: Resource, *, asked_for: bool = False) -> bool:
        """Return whether to show or do something. `asked_for` says that the request is about this resource alone, so
        that without the permission it is answered as if the resource did not exist; a row of a list is not.
        """
        if not self.is_on:
            return True
        principal = self.principal_of(request)
        if principal.verdict(action, resource).allowed:
            return True
        if self.mode == "permissive" and asked_for:
            self._refused[_UNAUTHENTICATED if isinstance(principal, Nothing) else _FORBIDDEN] += 1
        return self.mode == "permissive"

    def may_all(self, request: web.Request, action: Action, kind: Kind) -> bool:
        """Return whether `may` is true of every resource of the kind, whatever its name."""
        return self.mode == "permissive" or not self.is_on or self.principal_of(request).may_all(action, kind)

    def require_principal(self, request: web.Request) -> Principal:
        """Return the principal. Raises Problem unauthenticated unless the request shows valid credentials."""
        principal = self.principal_of(request)
        if self.is_on and isinstance(principal, Nothing):
            self._refuse(request, principal, "do", None)
        return principal

    def _refuse(self, request: web.Request, principal: Principal, action: str, resource: Resource | None) -> None:
        """Count and log the refusal, and raise its Problem when permissions are enforced."""
        unknown = isinstance(principal, Nothing)
        text = str(resource or "anything")[:RESOURCE_CHARACTERS_MAX]
        self._refused[_UNAUTHENTICATED if unknown else _FORBIDDEN] += 1
        logger.warning(
            "%s %s by %s at %s is %s: may not %s %s%s",
            request.method,
            request.path[:200],
            principal.name,
            self.shown_by(request).address,
            "allowed in mode permissive only" if self.mode == "permissive" else "refused",
            action,
            text,
            f" ({principal.reason})" if isinstance(principal, Nothing) else "",
        )
        if self.on_denied is not None:
            code = _UNAUTHENTICATED if unknown else _FORBIDDEN
            reason = principal.reason if isinstance(principal, Nothing) else ""
            told = Denial(principal.name, code, action, text, reason, self.mode == "permissive")
            self.on_denied(request, told)
        if self.mode == "permissive":
            return
        if isinstance(principal, Nothing):
            raise Problem(_KEY_AWAITED if principal.is_awaited else _UNAUTHENTICATED, principal.reason)
        is_person = principal.name.startswith(PERSON_PREFIX)
        made = f"keelmq auth user create {principal.name}, once, and " if is_person else ""
        unless_absent = "" if resource is None or resource.kind in SINGLE else ", or it does not exist"
        raise Problem(
            _FORBIDDEN,
            f"{principal.name} may not {action} {text}{unless_absent}; an administrator can allow it: {made}"
            f"keelmq auth acl allow {principal.name} {action.split()[0]} {text}",
        )

    def refused(self, request: web.Request, code: str, reason: str) -> Problem:
        """Count and log that a handler refuses the request, whatever the rules and the mode, and return the Problem to
        raise. `code` is unauthenticated or forbidden.
        """
        if self.is_on:
            self._refused[code] += 1
            logger.warning(
                "%s %s by %s at %s is refused: %s",
                request.method,
                request.path[:200],
                self.principal_of(request).name,
                self.shown_by(request).address,
                reason,
            )
            if self.on_denied is not None:
                self.on_denied(request, Denial(self.principal_of(request).name, code, "", "", reason, False))
        return Problem(code, reason)

    # --- authentication ----------------------------------------------------------------------------------------

    def principal_of(self, request: web.Request) -> Principal:
        """Return the principal whose credentials the request shows; one who may do nothing when they are not valid."""
        if not self.is_on:
            return self._anybody
        shown = self.shown_by(request)
        now_ms = self._now_ms()
        version = self._users.version, 0 if self.issuer is None else self.issuer.version
        if self._known_version != version:
            self._forget()
            self._known_version = version
        known = self._known.get(shown)
        if known is not None and now_ms < known[1]:
            return known[0]
        judged = request.get(_JUDGED)
        if judged is not None and judged[0] == version:
            nothing: Nothing = judged[1]
            return nothing
        principal, ends_ms = self._authenticate(shown, now_ms)
        if isinstance(principal, Nothing):  # strangers take no room, and are judged once for each request
            request[_JUDGED] = version, principal
        else:
            self._remember(shown, principal, ends_ms)
        return principal

    def proved_name(self, request: web.Request) -> str:
        """Return the name of the principal that the request has proved to be; empty when it has not, and while
        authentication is off.
        """
        name = self.principal_of(request).name
        return "" if name == ANONYMOUS_NAME else name

    def _remember(self, shown: Shown, principal: Principal, ends_ms: int) -> None:
        characters = len(shown.authorization or "")
        if len(self._known) >= PRINCIPALS_MAX or self._known_characters + characters > KNOWN_CHARACTERS_MAX:
            self._forget()
        if shown not in self._known:
            self._known_characters += characters
        self._known[shown] = principal, ends_ms

    def _forget(self) -> None:
        self._known.clear()
        self._known_characters = 0

    def _authenticate(self, shown: Shown, now_ms: int) -> tuple[Principal, int]:
        """Return the principal, and the time in ms at which its credentials end."""
        for_ever = 1 << 63
        if shown.authorization is not None:
            token = token_in(
                shown.authorization, HEADER_CHARACTERS_MAX if self.issuer is None else TOKEN_CHARACTERS_MAX
            )
            if token is None:
                return Nothing("the Authorization header must be `Bearer` and a token"), 0
            sha256 = hash_of(token)
            if any(hmac.compare_digest(sha256, each) for each in self._administrators):
                return Everything(ADMINISTRATOR_NAME), for_ever
            owner = self._users.of_token(sha256)
            if owner is None and self.issuer is not None and token.count(".") == 2:
                return self._person(self.issuer, token, shown.address, now_ms)
            if owner is None:
                return Nothing("the token is not valid: it was revoked, or belongs to another cluster"), 0
            ends_ms = owner.token.expires_at_ms or for_ever
            if ends_ms <= now_ms:
                return Nothing("the token has expired; an administrator makes a new one: keelmq auth token create"), 0
            return UserAt(owner.user, shown.address), ends_ms
        if shown.certificate is not None:
            user = self._users.of_certificate(shown.certificate)
            if user is None:
                return Nothing(f"certificates named {shown.certificate[:80]!r} belong to no user"), 0
            return UserAt(user, shown.address), for_ever
        return Nothing("no credentials; send a token as `Authorization: Bearer`, or show a client certificate"), 0

    def _person(self, issuer: Issuer, token: str, address: str, now_ms: int) -> tuple[Principal, int]:
        """Return the person whom a token of the issuer names, with the rules of the person and of all groups."""
        try:
            person = issuer.identify(token, now_ms)
        except TokenRefused as refused:
            return Nothing(f"the token is refused: {refused}"), 0
        except KeyAwaited as awaited:
            return Nothing(f"the token cannot be judged yet: {awaited}", is_awaited=True), 0
        user = self._user_of(person)
        if len(user.rules) > PERSON_RULES_MAX:
            return Nothing(f"the rules of the person and of its groups are more than {PERSON_RULES_MAX} together"), 0
        return UserAt(user, address), person.ends_ms

    def _user_of(self, person: Person) -> User:
        name = PERSON_PREFIX + person.name
        named = (name, *(GROUP_PREFIX + each for each in person.groups))
        users = [user for each in named if (user := self._users.get(each)) is not None]
        return User(name, 0, (), (), tuple(rule for user in users for rule in user.rules))

    # --- metrics -----------------------------------------------------------------------------------------------

    def counters(self) -> Iterator[Metric]:
        """Yield the number of requests that were refused, or in mode permissive would have been."""
        family = CounterMetricFamily(
            "keelmq_auth_refused", "Requests that were refused, or would be if auth were enforced", labels=["reason"]
        )
        for reason, count in sorted(self._refused.items()):
            family.add_metric([reason], count)
        yield family
