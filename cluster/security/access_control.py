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
from cluster.security.credentials import hash_of, token_in
from cluster.security.permissions import RESOURCE_CHARACTERS_MAX, Action, Resource
from cluster.security.principals import (
    ADMINISTRATOR_NAME,
    ANONYMOUS_NAME,
    Everything,
    Nothing,
    Principal,
    UserAt,
)
from store.users.users import Users

AuthMode = Literal["off", "permissive", "enforce"]

PRINCIPALS_MAX: Final = 4_096
"""Maximum number of principals that a node remembers, each with its credentials and client address."""

_UNAUTHENTICATED: Final = "unauthenticated"
_FORBIDDEN: Final = "forbidden"

logger = logging.getLogger(__name__)


class Shown(NamedTuple):
    """The credentials that a request shows, and where it comes from."""

    authorization: str | None
    """The Authorization header, or several that a newline separates, which are no credentials."""
    certificate: str | None
    """Name in the client's verified certificate; None without one."""
    address: str


class AccessControl:
    """Decides about the requests of one node. Use on the event loop only."""

    def __init__(
        self,
        mode: AuthMode,
        administrator_tokens: Sequence[bytes],
        users: Users,
        now_ms: Callable[[], int],
        shown_by: Callable[[web.Request], Shown],
    ) -> None:
        """Create it. `administrator_tokens` are those of the built-in administrator, `now_ms` is the replicated clock,
        `shown_by` returns the credentials of a request.
        """
        self.mode: AuthMode = mode
        self.is_on = mode != "off"
        """False when everybody may do everything, so that handlers need not name what they use."""
        self._administrators = [hash_of(token.decode(errors="surrogateescape")) for token in administrator_tokens]
        self._users = users
        self._now_ms = now_ms
        self.shown_by = shown_by
        self._anybody = Everything(ANONYMOUS_NAME)
        self._known: dict[Shown, tuple[Principal, int]] = {}
        self._known_version = -1
        self._refused: Counter[str] = Counter({_UNAUTHENTICATED: 0, _FORBIDDEN: 0})

    # --- decisions ---------------------------------------------------------------------------------------------

    def require(self, request: web.Request, action: Action, *resources: Resource, said: str = "") -> None:
        """Raise Problem unauthenticated or forbidden unless the request may do `action` on all resources. `said` is
        named in its place where the action would tell whether the resource exists.
        """
        if not self.is_on:
            return
        principal = self.principal_of(request)
        for resource in resources:
            if not principal.verdict(action, resource).allowed:
                self._refuse(request, principal, said or action, resource)

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

    def require_principal(self, request: web.Request) -> None:
        """Raise Problem unauthenticated unless the request shows valid credentials."""
        if not self.is_on:
            return
        principal = self.principal_of(request)
        if isinstance(principal, Nothing):
            self._refuse(request, principal, "do", None)

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
        if self.mode == "permissive":
            return
        if isinstance(principal, Nothing):
            raise Problem(_UNAUTHENTICATED, principal.reason)
        raise Problem(
            _FORBIDDEN,
            f"{principal.name} may not {action} {text}, or it does not exist; an administrator can allow it: "
            f"keelmq auth acl allow {principal.name} {action.split()[0]} {text}",
        )

    # --- authentication ----------------------------------------------------------------------------------------

    def principal_of(self, request: web.Request) -> Principal:
        """Return the principal whose credentials the request shows; one who may do nothing when they are not valid."""
        if not self.is_on:
            return self._anybody
        shown = self.shown_by(request)
        now_ms = self._now_ms()
        if self._known_version != self._users.version:
            self._known.clear()
            self._known_version = self._users.version
        known = self._known.get(shown)
        if known is not None and now_ms < known[1]:
            return known[0]
        principal, ends_ms = self._authenticate(shown, now_ms)
        if not isinstance(principal, Nothing):  # strangers take no room
            if len(self._known) >= PRINCIPALS_MAX:
                self._known.clear()
            self._known[shown] = principal, ends_ms
        return principal

    def _authenticate(self, shown: Shown, now_ms: int) -> tuple[Principal, int]:
        """Return the principal, and the time in ms at which its credentials end."""
        for_ever = 1 << 63
        if shown.authorization is not None:
            token = token_in(shown.authorization)
            if token is None:
                return Nothing("the Authorization header must be `Bearer` and a token"), 0
            sha256 = hash_of(token)
            if any(hmac.compare_digest(sha256, each) for each in self._administrators):
                return Everything(ADMINISTRATOR_NAME), for_ever
            owner = self._users.of_token(sha256)
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

    # --- metrics -----------------------------------------------------------------------------------------------

    def counters(self) -> Iterator[Metric]:
        """Yield the number of requests that were refused, or in mode permissive would have been."""
        family = CounterMetricFamily(
            "keelmq_auth_refused", "Requests that were refused, or would be if auth were enforced", labels=["reason"]
        )
        for reason, count in sorted(self._refused.items()):
            family.add_metric([reason], count)
        yield family
