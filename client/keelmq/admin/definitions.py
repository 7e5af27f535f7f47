"""Definitions of a cluster in one file: what administrators have set, without messages, offsets and secrets."""

import json
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from keelmq.admin.changes import ClusterSettings
from keelmq.admin.groups import GroupDetail
from keelmq.admin.producer_groups import ProducerGroup
from keelmq.admin.topics import TopicInfo
from keelmq.admin.users import Rule, UserInfo
from keelmq.errors import InvalidRequest, LimitExceeded
from keelmq.limits import INT64_MAX, QUEUES_MAX, check_group, check_topic

FORMAT: Final = "keelmq-definitions"
VERSION: Final = 1
"""Version of the format that this SDK writes. It reads all versions up to this one."""
DEFINITIONS_BYTES_MAX: Final = 64 << 20
"""Maximum size of a file of definitions."""
WITHOUT: Final = (
    "Users are without tokens: a cluster keeps no secrets that it could export. Messages, offsets, members and the "
    "filters of running consumers are no definitions."
)
JOIN_PREFIX: Final = "join:"
"""Begins the names of users that stand for join tokens, which are secrets and no definitions."""

RESERVED_USERS: Final = frozenset({"admin", "anonymous"})
"""Names that no user may have."""


Limit = Annotated[int, Meta(ge=-1, le=INT64_MAX)]
Count = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]


class Definition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of what a file defines. Equal definitions have equal fields."""


class SettingsDefinition(Definition, frozen=True, kw_only=True):
    reject_transactions: bool
    log_retention_bytes: Limit


class TopicDefinition(Definition, frozen=True, kw_only=True):
    topic: Name
    queues: Annotated[int, Meta(ge=1, le=QUEUES_MAX)]
    type: Literal["normal", "fifo", "delay", "transaction", "any"]
    retention_ms: Limit
    retention_bytes: Limit


class GroupDefinition(Definition, frozen=True, kw_only=True):
    group: Name
    retry_max_attempts: Count
    retry_delays_ms: tuple[Count, ...]


class ProducerGroupDefinition(Definition, frozen=True, kw_only=True):
    producer_group: Name
    check_url: Annotated[str, Meta(min_length=1, max_length=2_048)]


class RuleDefinition(Definition, frozen=True, kw_only=True, order=True):
    resource: Name
    effect: Literal["allow", "deny"] = "allow"
    actions: tuple[Name, ...]
    networks: tuple[Name, ...] = ()

    def rule(self) -> Rule:
        return Rule(effect=self.effect, actions=self.actions, resource=self.resource, networks=self.networks)


class UserDefinition(Definition, frozen=True, kw_only=True):
    """A user without its tokens: one that is made of it has none."""

    user: Name
    certificates: tuple[Name, ...] = ()
    rules: tuple[RuleDefinition, ...] = ()


class Definitions(Definition, frozen=True, kw_only=True):
    """The definitions of a cluster. A part that is None is not looked at by an import."""

    settings: SettingsDefinition | None = None
    topics: tuple[TopicDefinition, ...] | None = None
    groups: tuple[GroupDefinition, ...] | None = None
    producer_groups: tuple[ProducerGroupDefinition, ...] | None = None
    users: tuple[UserDefinition, ...] | None = None


class _File(Definition, frozen=True, kw_only=True):
    format: Literal["keelmq-definitions"]
    version: int
    without: str = ""
    definitions: Definitions


def settings_definition(settings: ClusterSettings) -> SettingsDefinition:
    return SettingsDefinition(
        reject_transactions=settings.reject_transactions, log_retention_bytes=settings.log_retention_bytes
    )


def topic_definition(topic: TopicInfo) -> TopicDefinition:
    return msgspec.convert(topic, TopicDefinition, from_attributes=True)


def group_definition(group: GroupDetail) -> GroupDefinition:
    return msgspec.convert(group, GroupDefinition, from_attributes=True)


def producer_group_definition(group: ProducerGroup) -> ProducerGroupDefinition:
    return msgspec.convert(group, ProducerGroupDefinition, from_attributes=True)


def user_definition(user: UserInfo) -> UserDefinition:
    return sorted_user(msgspec.convert(user, UserDefinition, from_attributes=True))


def sorted_user(user: UserDefinition) -> UserDefinition:
    """Return the user with its rules, their actions and its certificates in order. The order of rules has no effect."""
    rules = (
        msgspec.structs.replace(each, actions=tuple(sorted({*each.actions})), networks=tuple(sorted({*each.networks})))
        for each in user.rules
    )
    return UserDefinition(
        user=user.user, certificates=tuple(sorted({*user.certificates})), rules=tuple(sorted({*rules}))
    )


def encode_definitions(definitions: Definitions) -> bytes:
    """Return the file: JSON with two spaces, sorted names, and a line end, so that equal definitions are equal bytes.

    Raises LimitExceeded (`definitions_too_large`).
    """
    parts = {
        name: msgspec.to_builtins(part)
        for name in Definitions.__struct_fields__
        if (part := getattr(definitions, name)) is not None
    }
    file = {"format": FORMAT, "version": VERSION, "without": WITHOUT, "definitions": parts}
    data = (json.dumps(file, ensure_ascii=False, indent=2, sort_keys=True) + "\n").encode()
    _check_size(len(data))
    return data


def decode_definitions(data: bytes) -> Definitions:
    """Return what a file defines, each part sorted by name.

    Raises InvalidRequest with the code `definitions_invalid`, which says where the file is wrong, or
    `definitions_too_new` for a later version of the format; and LimitExceeded (`definitions_too_large`).
    """
    _check_size(len(data))
    try:
        _require_version(msgspec.json.decode(data))
        found = msgspec.json.decode(data, type=_File).definitions
    except (ValueError, RecursionError) as exc:
        raise InvalidRequest("definitions_invalid", f"not a file of definitions: {exc}") from None
    users = None if found.users is None else tuple(map(sorted_user, found.users))
    return Definitions(
        settings=found.settings,
        topics=_sorted("topic", found.topics),
        groups=_sorted("group", found.groups),
        producer_groups=_sorted("producer_group", found.producer_groups),
        users=_sorted("user", users),
    )


def name_of(definition: Definition) -> str:
    """Return the name of what is defined; that of the settings is `cluster`."""
    return "cluster" if isinstance(definition, SettingsDefinition) else getattr(definition, kind_of(definition))


def kind_of(definition: Definition) -> str:
    """Return `settings`, `topic`, `group`, `producer_group` or `user`."""
    return "settings" if isinstance(definition, SettingsDefinition) else definition.__struct_fields__[0]


def _sorted(kind: str, definitions: tuple[Any, ...] | None) -> Any:
    """Return the definitions by name. Raises InvalidRequest (`definitions_invalid`) for names that are wrong or twice
    there.
    """
    if definitions is None:
        return None
    seen = set()
    for each in definitions:
        name = name_of(each)
        if name in seen:
            raise InvalidRequest("definitions_invalid", f"the {kind} {name} is defined twice")
        seen.add(name)
        if kind == "topic":
            check_topic(name)
        elif kind != "user":
            check_group(name)
    return tuple(sorted(definitions, key=name_of))


def _require_version(file: Any) -> None:
    if not isinstance(file, dict) or file.get("format") != FORMAT:
        raise ValueError(f"`format` is not {FORMAT}")
    version = file.get("version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ValueError("`version` is not a number from 1 on")
    if version > VERSION:
        detail = f"the file has version {version} of the format, this keelmq reads up to {VERSION}: use a newer one"
        raise InvalidRequest("definitions_too_new", detail)


def _check_size(size: int) -> None:
    if size > DEFINITIONS_BYTES_MAX:
        detail = f"definitions have at most {DEFINITIONS_BYTES_MAX} bytes"
        raise LimitExceeded("definitions_too_large", detail)
