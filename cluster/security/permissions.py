"""Permissions: actions on resources, and the rules that allow or deny them.

A rule names actions and one resource, `KIND:NAME`, `KIND:PREFIX*` or `*`. What no rule allows is denied, and a rule
that denies wins over all that allow. Every allowed action implies `describe`, unless a rule denies `describe` itself. A
rule with networks holds only for client addresses inside one of them.
"""

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final, Literal, NamedTuple, get_args

from store.commands.users import Rule
from store.messages.topics import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS

Action = Literal["send", "read", "describe", "create", "alter", "delete", "reset", "decide", "admin"]
Kind = Literal["topic", "group", "producer-group", "cluster", "log"]

ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
SINGLE: Final[frozenset[Kind]] = frozenset({"cluster", "log"})
"""Kinds with a single resource, which is named like the kind."""
ANY: Final = "*"

RULES_MAX: Final = 256
"""Maximum number of rules of a user."""
RESOURCE_CHARACTERS_MAX: Final = 300
NETWORKS_MAX: Final = 32
"""Maximum number of networks of a rule."""

_MEANT: Final[dict[Kind, frozenset[Action]]] = {
    "topic": frozenset({"send", "read", "describe", "create", "alter", "delete"}),
    "group": frozenset({"read", "describe", "create", "alter", "delete", "reset"}),
    "producer-group": frozenset({"send", "describe", "alter", "decide"}),
    "cluster": frozenset({"describe", "admin"}),
    "log": frozenset({"read", "describe"}),
}
"""Actions that are checked on the resources of a kind."""


def actions_on(kind: Kind) -> tuple[Action, ...]:
    """Return the actions that are checked on the resources of a kind, in the order of ACTIONS."""
    return tuple(action for action in ACTIONS if action in _MEANT[kind])


_MAPPED: Final = IPv6Network("::ffff:0:0/96")


class Resource(NamedTuple):
    """A resource, as a request uses it."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return self.kind if self.kind in SINGLE else f"{self.kind}:{self.name}"


CLUSTER: Final = Resource("cluster", "cluster")
LOG: Final = Resource("log", "log")


def group(name: str) -> Resource:
    return Resource("group", name)


def producer_group(name: str) -> Resource:
    return Resource("producer-group", name)


def topic(name: str) -> Resource:
    """Return the resource to which a topic belongs: retries and dead letters are of their group, the half topics with
    the messages of all transactions are of the log.
    """
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return Resource("group", name.removeprefix(prefix))
    return LOG if name in SYSTEM_TOPICS else Resource("topic", name)


def resource_of(text: str) -> Resource:
    """Parse `KIND:NAME`, `cluster` or `log`, as a request uses it. Raises ValueError with a sentence for the user."""
    kind, _, name = text.partition(":")
    for known in KINDS:
        if kind == known and (name in ("", known) if known in SINGLE else name):
            return topic(name) if known == "topic" else Resource(known, name or known)
    raise ValueError(f"{text[:80]!r} is not a resource: give KIND:NAME, of which KIND is one of {', '.join(KINDS)}")


def check_rule(rule: Rule) -> None:
    """Raise ValueError, with a sentence for the user, when the rule is not valid or could never match."""
    if len(rule.resource) > RESOURCE_CHARACTERS_MAX:
        raise ValueError(f"resource: at most {RESOURCE_CHARACTERS_MAX} characters")
    unknown = [action for action in rule.actions if action != ANY and action not in ACTIONS]
    if unknown or not rule.actions:
        raise ValueError(f"actions: give at least one of {', '.join(ACTIONS)}, or *; not {unknown[:3]}")
    if rule.resource != ANY:
        resource = resource_of(rule.resource)
        if resource.kind != "topic" and rule.resource.startswith("topic:"):
            raise ValueError(f"resource: the topic {rule.resource[6:]!r} belongs to {resource}: give that one")
        if ANY in resource.name[:-1]:
            raise ValueError(f"resource: {rule.resource!r}: * stands at the end only")
        never = [action for action in rule.actions if action != ANY and action not in _MEANT[resource.kind]]
        if never:
            meant = ", ".join(actions_on(resource.kind))
            raise ValueError(f"actions: {never[0]} does not exist for a {resource.kind}, which knows {meant}")
    if len(rule.networks) > NETWORKS_MAX:
        raise ValueError(f"networks: at most {NETWORKS_MAX}")
    for network in rule.networks:
        try:
            parsed = ip_network(network)
        except ValueError as error:
            raise ValueError(f"networks: {error}; give addresses as 10.0.0.0/8") from None
        if isinstance(parsed, IPv6Network) and parsed.overlaps(_MAPPED) and parsed.prefixlen >= _MAPPED.prefixlen:
            raise ValueError(f"networks: {network} holds IPv4 addresses: give them as such, as 10.0.0.0/8")


class Verdict(NamedTuple):
    """Answer whether an action is allowed, and the rule that says so; None when no rule does."""

    allowed: bool
    rule: Rule | None


class Permissions:
    """The rules of a user, as they hold for requests from one client address."""

    def __init__(self, rules: Iterable[Rule], address: str) -> None:
        self._rules = [_Compiled(rule) for rule in rules if _holds_for(rule, address)]

    def verdict(self, action: Action, resource: Resource) -> Verdict:
        """Return whether the action on the resource is allowed, with the rule that decides it."""
        found = None
        for each in self._rules:
            if not each.matches(resource):
                continue
            denies = each.rule.effect == "deny"
            if each.names(action):
                if denies:
                    return Verdict(False, each.rule)
                found = found or each.rule
            elif action == "describe" and not denies:
                found = found or each.rule
        return Verdict(found is not None, found)

    def allow_all(self, action: Action, kind: Kind) -> bool:
        """Return whether the action is allowed on every resource of a kind that has names."""
        concerned = [each for each in self._rules if each.concerns(action, kind)]
        if any(each.rule.effect == "deny" for each in concerned):
            return False
        if action == "describe":  # whatever else is allowed implies it
            concerned = [each for each in self._rules if each.rule.effect == "allow" and each.is_about(kind)]
        return any(each.is_of_all for each in concerned)


class _Compiled:
    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._actions = frozenset(rule.actions)
        self._any = ANY in self._actions
        if rule.resource == ANY:
            self._kind, self._name, self._is_prefix = "", "", True
            return
        kind, name = resource_of(rule.resource)
        self._kind, self._name, self._is_prefix = kind, name.removesuffix(ANY), name.endswith(ANY)

    @property
    def is_of_all(self) -> bool:
        """Return whether the rule is about every resource of its kind."""
        return self._is_prefix and not self._name

    def concerns(self, action: Action, kind: Kind) -> bool:
        """Return whether the rule is about the action on some resources of the kind."""
        return self.is_about(kind) and self.names(action)

    def is_about(self, kind: Kind) -> bool:
        """Return whether the rule is about some resources of the kind."""
        return self._kind in ("", kind)

    def matches(self, resource: Resource) -> bool:
        if self._kind not in ("", resource.kind):
            return False
        return resource.name.startswith(self._name) if self._is_prefix else resource.name == self._name

    def names(self, action: Action) -> bool:
        return self._any or action in self._actions


def _holds_for(rule: Rule, address: str) -> bool:
    if not rule.networks:
        return True
    try:
        client = ip_address(address)
    except ValueError:  # not a network address: a rule that is bound to networks grants nothing, and denies
        return rule.effect == "deny"
    client = getattr(client, "ipv4_mapped", None) or client
    networks: list[IPv4Network | IPv6Network] = [ip_network(each) for each in rule.networks]
    return any(client in network for network in networks)
