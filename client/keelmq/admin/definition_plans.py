"""Exports and imports of definitions: `ClusterDefinitions`, and the plan of an import."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from keelmq.admin.admin import Admin
from keelmq.admin.definitions import (
    JOIN_PREFIX,
    RESERVED_USERS,
    Definition,
    Definitions,
    GroupDefinition,
    ProducerGroupDefinition,
    SettingsDefinition,
    TopicDefinition,
    UserDefinition,
    group_definition,
    kind_of,
    name_of,
    producer_group_definition,
    settings_definition,
    topic_definition,
    user_definition,
)
from keelmq.admin.producer_groups import ProducerGroups
from keelmq.admin.users import Users
from keelmq.errors import Forbidden, KeelMQError, Unauthenticated
from keelmq.limits import check_writable_topic
from keelmq.transport.connection import Connection

Action = Literal["create", "alter", "same", "refused"]

_SEEN_WITH: Final = (
    ("settings", "cluster", "describe"),
    ("topics", "topic:*", "describe"),
    ("groups", "group:*", "describe"),
    ("producer_groups", "producer-group:*", "alter"),
    ("users", "cluster", "admin"),
)
"""Parts of definitions, each with the resource and the action with which a principal sees all of it."""


class PlannedChange(msgspec.Struct, frozen=True, kw_only=True):
    """The step of an import with one definition: `create`, `alter`, nothing (`same`), or nothing as it is `refused`.

    `differences` tell what is altered; `code` and `detail` tell why it is refused.
    """

    kind: str
    name: str
    action: Action
    differences: tuple[str, ...] = ()
    code: str = ""
    detail: str = ""


class ImportStep(NamedTuple):
    """A planned change with the definition, and the revision of a user that it replaces."""

    change: PlannedChange
    definition: Definition
    revision: int = 0


class _Current(NamedTuple):
    definitions: Definitions
    revisions: Mapping[str, int]


class ClusterDefinitions:
    """Exports and imports the definitions of a cluster over `connection`, which the caller owns."""

    def __init__(self, connection: Connection) -> None:
        self._admin = Admin(connection)
        self._users = Users(connection)
        self._producer_groups = ProducerGroups(connection)

    async def export(self) -> Definitions:
        """Return all definitions. Raises Forbidden unless the client may see every part of them.

        What changes meanwhile may or may not be in it.
        """
        every: Definitions = Definitions(topics=(), groups=(), producer_groups=(), users=(), settings=_ANY_SETTINGS)
        return (await self._current(every)).definitions

    async def plan(self, definitions: Definitions) -> list[ImportStep]:
        """Return what an import has to do, one step per definition, and refusals that are known beforehand.

        Nothing is changed. What the cluster has and the definitions lack stays, and is in no step. Raises Forbidden
        unless the client may see all of each part that is defined.
        """
        current = await self._current(definitions)
        return list(_steps(definitions, current))

    async def carry_out(self, step: ImportStep) -> PlannedChange:
        """Carry out one step; durable on return. Returns its change, which is `refused` if the cluster refuses it.

        Other errors are raised: it is then not known of every step whether it has taken effect, and the import is
        repeated.
        """
        if step.change.action in ("same", "refused"):
            return step.change
        try:
            await self._put(step.definition, step.revision)
        except Unauthenticated:
            raise
        except KeelMQError as error:
            if error.retryable or error.outcome_unknown or not 400 <= error.status < 500:
                raise
            return msgspec.structs.replace(step.change, action="refused", code=error.code, detail=error.detail)
        return step.change

    async def _put(self, definition: Definition, revision: int) -> None:
        match definition:
            case SettingsDefinition():
                await self._admin.put_settings(**msgspec.to_builtins(definition))
            case TopicDefinition():
                await self._admin.put_topic(**msgspec.to_builtins(definition))
            case GroupDefinition():
                await self._admin.put_group(**msgspec.to_builtins(definition))
            case ProducerGroupDefinition():
                await self._producer_groups.put(definition.producer_group, check_url=definition.check_url)
            case UserDefinition():
                rules = [each.rule() for each in definition.rules]
                await self._users.put(
                    definition.user, rules=rules, certificates=definition.certificates, revision=revision
                )

    async def _current(self, wanted: Definitions) -> _Current:
        """Return the parts of the cluster's definitions that are not None in `wanted`."""
        await self._require_sight(wanted)
        settings = topics = groups = producer_groups = users = None
        revisions: dict[str, int] = {}
        if wanted.settings is not None:
            settings = settings_definition(await self._admin.settings())
        if wanted.topics is not None:
            topics = tuple(map(topic_definition, await self._admin.topics()))
        if wanted.groups is not None:
            groups = tuple(map(group_definition, await self._admin.groups()))
        if wanted.producer_groups is not None:
            producer_groups = tuple(map(producer_group_definition, await self._producer_groups.all()))
        if wanted.users is not None:
            found = [each for each in await self._users.all() if not each.user.startswith(JOIN_PREFIX)]
            users = tuple(map(user_definition, found))
            revisions = {each.user: each.revision for each in found}
        definitions = Definitions(
            settings=settings, topics=topics, groups=groups, producer_groups=producer_groups, users=users
        )
        return _Current(definitions, revisions)

    async def _require_sight(self, wanted: Definitions) -> None:
        for part, resource, action in _SEEN_WITH:
            if getattr(wanted, part) is None:
                continue
            seen = await self._users.principal(resource=resource)
            if action not in seen.actions:
                detail = f"{seen.principal} may not {action} {resource}, and so does not see all {part} of the cluster"
                raise Forbidden("forbidden", detail, status=403)


_ANY_SETTINGS: Final = SettingsDefinition(reject_transactions=False, log_retention_bytes=-1)


def _steps(wanted: Definitions, current: _Current) -> Iterator[ImportStep]:
    """Yield the steps in the order in which they are carried out. Users come last, because they may change what the
    importing user itself may do.
    """
    held = current.definitions
    for part in ("topics", "groups", "producer_groups"):
        yield from _steps_of(getattr(wanted, part) or (), getattr(held, part) or ())
    if wanted.settings is not None and held.settings is not None:
        yield _step(wanted.settings, held.settings)
    for step in _steps_of(wanted.users or (), held.users or ()):
        yield step._replace(revision=current.revisions.get(step.change.name, 0))


def _steps_of(wanted: Sequence[Definition], held: Sequence[Definition]) -> Iterator[ImportStep]:
    by_name = {name_of(each): each for each in held}
    for definition in wanted:
        yield _step(definition, by_name.get(name_of(definition)))


def _step(wanted: Definition, held: Definition | None) -> ImportStep:
    change = PlannedChange(kind=kind_of(wanted), name=name_of(wanted), action="same")
    refusal = _refusal(wanted, held)
    if refusal is not None:
        change = msgspec.structs.replace(change, action="refused", code=refusal[0], detail=refusal[1])
    elif held is None:
        change = msgspec.structs.replace(change, action="create")
    elif held != wanted:
        change = msgspec.structs.replace(change, action="alter", differences=tuple(_differences(wanted, held)))
    return ImportStep(change, wanted)


def _refusal(wanted: Definition, held: Definition | None) -> tuple[str, str] | None:
    """Return code and detail of a refusal that is known before the cluster is asked."""
    if isinstance(wanted, TopicDefinition) and isinstance(held, TopicDefinition) and wanted.queues < held.queues:
        detail = f"topic {held.topic} has {held.queues} queues; their number can only grow"
        return "topic_exists_with_more_queues", detail
    if isinstance(wanted, TopicDefinition):
        try:
            check_writable_topic(wanted.topic)
        except KeelMQError as error:
            return error.code, error.detail
    if isinstance(wanted, UserDefinition) and wanted.user.startswith(JOIN_PREFIX):
        return "invalid_request", f"user {wanted.user} stands for a join token: keelmq cluster join-token"
    if isinstance(wanted, UserDefinition) and wanted.user in RESERVED_USERS:
        return "invalid_request", f"user {wanted.user} is the cluster's own"
    return None


def _differences(wanted: Definition, held: Definition) -> Iterator[str]:
    """Yield a sentence for each field that differs: of lists what comes and goes, else both values."""
    for field in wanted.__struct_fields__:
        new, old = getattr(wanted, field), getattr(held, field)
        if new == old:
            continue
        if field in ("rules", "certificates"):
            yield from (f"{field}: -{_shown(each)}" for each in old if each not in new)
            yield from (f"{field}: +{_shown(each)}" for each in new if each not in old)
        else:
            yield f"{field}: {_shown(old)} -> {_shown(new)}"


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()
