"""The permission that a route wants. Every route names one, or says that its handler asks itself."""

from typing import Final, NamedTuple

from cluster.security.permissions import CLUSTER, LOG, Action, Kind, Resource, group, producer_group, topic


class Access(NamedTuple):
    """Principals who may use a route: everybody (`is_public`), or principals who may do `action` on the resource that
    the path parameter `parameter` names. Without `action`, every principal may, and the handler asks for each resource
    that the request uses.
    """

    action: Action | None = None
    kind: Kind | None = None
    parameter: str = ""
    is_public: bool = False
    is_audited: bool = False
    """True when each use of the route is written to the audit log."""
    is_audited_with_reason: bool = False
    """True when those uses of the route are written to the audit log that say who wants it, or why."""
    audits_refusals: bool = False
    """True when requests that were refused for lack of permission are, too; see authorization.py for how many."""

    def in_words(self) -> str:
        """Return the permission as a user reads it."""
        if self.action is None:
            return "every principal; for each resource that the request uses, as docs/security.md says"
        return f"{self.action} on {self.kind}" + (f":{{{self.parameter}}}" if self.parameter else "")

    def resource(self, name: str) -> Resource:
        """Return the resource that `name` in the path stands for."""
        match self.kind:
            case "topic":
                return topic(name)
            case "group":
                return group(name)
            case "producer-group":
                return producer_group(name)
            case "log":
                return LOG
        return CLUSTER


PUBLIC: Final = Access(is_public=True)
SIGNED_IN: Final = Access()
"""Every principal may use the route: it tells no more than each of them needs."""
BY_HANDLER: Final = Access()
BY_HANDLER_AUDITED: Final = Access(is_audited=True)
JOINING: Final = Access(is_audited=True, audits_refusals=True)
"""The handler judges the join token that the request shows."""
ADMINISTRATION: Final = Access("admin", "cluster", is_audited=True)
CLUSTER_DESCRIBED: Final = Access("describe", "cluster")
LOG_READ: Final = Access("read", "log")


def of_topic(action: Action, *, is_audited_with_reason: bool = False) -> Access:
    audited = action in AUDITED
    return Access(action, "topic", "topic", is_audited=audited, is_audited_with_reason=is_audited_with_reason)


def of_group(action: Action) -> Access:
    return Access(action, "group", "group", is_audited=action in AUDITED)


def of_producer_group(action: Action) -> Access:
    return Access(action, "producer-group", "group", is_audited=action in AUDITED)


AUDITED: Final = frozenset({"create", "alter", "delete", "reset", "admin"})
"""Actions each use of which is written to the audit log."""
