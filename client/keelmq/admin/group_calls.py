"""Administration calls about consumer groups."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from keelmq.admin.calls import AdminCalls, group_path, query_of
from keelmq.admin.groups import (
    CommittedOffsets,
    GroupDetail,
    GroupMember,
    GroupOffset,
    GroupPauseResult,
    GroupSettings,
)
from keelmq.admin.requests import CloneOffsets, OperatorNote, PutGroup, ResetGroup
from keelmq.admin.view import View, view_of
from keelmq.errors import InvalidRequest
from keelmq.limits import LIST_MAX, check_group, check_topic
from keelmq.transport.connection import Connection

ResetTo = Literal["earliest", "latest"]


class GroupCalls:
    """The part of Admin that is about groups."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._calls = AdminCalls(connection)

    async def groups(self) -> list[GroupDetail]:
        """Return all groups by name, fetched page by page; each with at most 1,000 members and 1,000 offsets."""
        return await self._calls.pages(GroupDetail, "/v1/groups", "groups", {})

    async def group(self, group: str) -> GroupDetail:
        """Return the group with all members and offsets; fetches further pages as needed."""
        path = group_path(group)
        first = await self._calls.view(GroupDetail, "GET", path)
        found = {**first.document}
        lists: tuple[tuple[str, type[View]], ...] = (("members", GroupMember), ("offsets", GroupOffset))
        for name, kind in lists:
            following = found.pop(f"{name}_next", None)
            if isinstance(following, str):
                rest = await self._calls.pages(kind, f"{path}/{name}", name, {"limit": LIST_MAX, "after": following})
                found[name] = [*msgspec.convert(found[name], list), *(each.document for each in rest)]
        return view_of(GroupDetail, found)

    async def put_group(
        self, group: str, *, retry_max_attempts: int | None = None, retry_delays_ms: Sequence[int] | None = None
    ) -> GroupSettings:
        """Create the group, or change the given settings of an existing group; durable on return."""
        settings = PutGroup(retry_max_attempts=retry_max_attempts, retry_delays_ms=retry_delays_ms)
        return await self._calls.view(GroupSettings, "PUT", group_path(group), settings)

    async def pause_group(self, group: str, *, operator: str = "", reason: str = "") -> GroupPauseResult:
        """Have the broker hand out nothing to the group until it is resumed; durable on return.

        Members keep their queues, and commit and acknowledge what they have. `operator` and `reason` are kept in the
        log and told to the consumers. Raises GroupNotFound."""
        return await self._turn_group(group, "pause", operator, reason)

    async def resume_group(self, group: str, *, operator: str = "", reason: str = "") -> GroupPauseResult:
        """Hand out messages to the group again, from where it was paused; durable on return. Raises GroupNotFound."""
        return await self._turn_group(group, "resume", operator, reason)

    async def _turn_group(self, group: str, verb: str, operator: str, reason: str) -> GroupPauseResult:
        note = OperatorNote(operator, reason)
        return await self._calls.view(GroupPauseResult, "POST", f"{group_path(group)}/{verb}", note)

    async def delete_group(
        self, group: str, *, with_dead_letters: bool = False, operator: str = "", reason: str = ""
    ) -> None:
        """Delete the offsets, settings and retries of a group, and its dead letters if `with_dead_letters` is set.

        `operator` and `reason` are kept in the log. Raises GroupNotFound, or Conflict while the group has members or
        its pop consumers hold messages, and UnknownOutcome when the answer is lost: repeated, it would take a group
        that was made anew meanwhile."""
        flag = "true" if with_dead_letters else "false"
        query = query_of({"with_dead_letters": flag, "operator": operator, "reason": reason})
        await self._connection.call("DELETE", f"{group_path(group)}?{query}", leader_first=True, once=True)

    async def reset_group(
        self,
        group: str,
        topic: str,
        *,
        queue: int | None = None,
        to: ResetTo | None = None,
        offset: int | None = None,
        timestamp_ms: int | None = None,
    ) -> CommittedOffsets:
        """Set the group's committed offsets; running members continue from there. Raises InvalidRequest unless exactly
        one of `to`, `offset` and `timestamp_ms` is given, and for `latest` or a time UnknownOutcome when the answer is
        lost: repeated, it could skip what was sent meanwhile."""
        check_topic(topic)
        if sum(each is not None for each in (to, offset, timestamp_ms)) != 1:
            raise InvalidRequest("invalid_request", "give exactly one of to, offset and timestamp_ms")
        request = ResetGroup(topic=topic, queue=queue, to=to, offset=offset, timestamp_ms=timestamp_ms)
        skips = to == "latest" or timestamp_ms is not None
        path = f"{group_path(group)}/reset"
        return await self._calls.view(CommittedOffsets, "POST", path, request, leader_first=skips, once=skips)

    async def clone_offsets(self, source: str, target: str, *, topic: str | None = None) -> CommittedOffsets:
        """Set the committed offsets of `target` to those of `source`, for one topic or for all; durable on return.

        Raises Conflict (`group_has_members`) while `target` has members, which would continue at their own positions.
        """
        check_group(source)
        if topic is not None:
            check_topic(topic)
        path = f"{group_path(target)}/clone-offsets"
        return await self._calls.view(CommittedOffsets, "POST", path, CloneOffsets(source, topic))
