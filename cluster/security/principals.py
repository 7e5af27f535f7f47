"""Principals: who a request comes from, with what they may do."""

from typing import Final, Protocol

from cluster.security.permissions import RESOURCE_CHARACTERS_MAX, Action, Kind, Permissions, Resource, Verdict
from store.users.users import User

DECISIONS_MAX: Final = 4_096
"""Maximum number of decisions that one principal's cache holds."""

ADMINISTRATOR_NAME: Final = "admin"
"""Name of the built-in administrator, whose token is in a file on the nodes. No user may have it."""
ANONYMOUS_NAME: Final = "anonymous"
"""Name of clients that do not show who they are. No user may have it."""
RESERVED_NAMES: Final = frozenset({ADMINISTRATOR_NAME, ANONYMOUS_NAME})


class Principal(Protocol):
    """Whoever a request comes from."""

    name: str

    def verdict(self, action: Action, resource: Resource) -> Verdict:
        """Return whether the principal may do this, with the rule that decides it."""
        ...

    def may_all(self, action: Action, kind: Kind) -> bool:
        """Return whether the principal may do this with every resource of the kind, whatever its name."""
        ...


class Everything:
    """A principal who may do everything."""

    def __init__(self, name: str) -> None:
        self.name = name

    def verdict(self, _action: Action, _resource: Resource) -> Verdict:
        return Verdict(True, None)

    def may_all(self, _action: Action, _kind: Kind) -> bool:
        return True


class Nothing:
    """A principal who may do nothing. `reason` says why nothing better is known about it, and `is_awaited` that it may
    be known in a moment.
    """

    def __init__(self, reason: str, *, is_awaited: bool = False) -> None:
        self.name = ANONYMOUS_NAME
        self.reason = reason
        self.is_awaited = is_awaited

    def verdict(self, _action: Action, _resource: Resource) -> Verdict:
        return Verdict(False, None)

    def may_all(self, _action: Action, _kind: Kind) -> bool:
        return False


class UserAt:
    """A user at one client address. Decisions are remembered, because the same ones recur with every request."""

    def __init__(self, user: User, address: str) -> None:
        self.name = user.user
        self._permissions = Permissions(user.rules, address)
        self._decided: dict[tuple[Action, Resource], Verdict] = {}

    def verdict(self, action: Action, resource: Resource) -> Verdict:
        found = self._decided.get((action, resource))
        if found is None:
            if len(resource.name) > RESOURCE_CHARACTERS_MAX:
                return self._permissions.verdict(action, resource)
            if len(self._decided) >= DECISIONS_MAX:
                self._decided.clear()
            found = self._decided[action, resource] = self._permissions.verdict(action, resource)
        return found

    def may_all(self, action: Action, kind: Kind) -> bool:
        return self._permissions.allow_all(action, kind)
