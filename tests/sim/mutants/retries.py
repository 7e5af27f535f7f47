"""Broken ways to give messages back, and to tell members their offsets."""

import msgspec
from aiohttp import web

import store.groups.redelivery
from cluster.groups.lists import GroupLists, GroupOffsetsView
from cluster.http.app import json_response
from cluster.limits import LIST_MAX
from store.commands.groups import GiveBack, GivenBack
from store.commands.views import Attempt, Redelivery, Row
from store.groups.given_back import GivenBackMarks, GivingGroup, Mark
from store.groups.groups import Groups
from tests.sim.variant import Swap, mutant

_give_back, _redelivery = Groups.give_back, store.groups.redelivery._redelivery


def gives_back_without_end(groups: Groups, command: GiveBack) -> GivingGroup:
    """A message comes again however often it was given back."""
    return _give_back(groups, command)._replace(max_attempts=1_000)


def kills_one_attempt_early(groups: Groups, command: GiveBack) -> GivingGroup:
    """A message is a dead letter when it has one attempt left."""
    giving = _give_back(groups, command)
    return giving._replace(max_attempts=giving.max_attempts - 1)


def counts_no_attempts(
    row: Row, item: GivenBack, attempt: int, history: tuple[Attempt, ...], *, again: bool = True
) -> Redelivery:
    """A message that comes again is marked as its first attempt."""
    return msgspec.structs.replace(_redelivery(row, item, attempt, history, again=again), attempt=min(attempt, 1))


def gives_back_what_was_given_back(
    marks: GivenBackMarks, group_id: int, topic_id: int, queue: int, offset: int
) -> Mark | None:
    """A message that is given back once more comes again once more."""
    return None


async def tells_what_any_node_knows_of_offsets(lists: GroupLists, request: web.Request) -> web.Response:
    """A group's offsets are answered by whoever is asked, as far as it has applied them."""
    views, _ = lists._offsets(request.match_info["group"], None, None, LIST_MAX)
    return json_response(GroupOffsetsView(offsets=views, next=None))


MUTANTS = (
    mutant(27, Swap(Groups, "give_back", gives_back_without_end)),
    mutant(27, Swap(Groups, "give_back", kills_one_attempt_early)),
    mutant(27, Swap(store.groups.redelivery, "_redelivery", counts_no_attempts)),
    mutant(27, Swap(GivenBackMarks, "get", gives_back_what_was_given_back)),
    mutant(7, Swap(GroupLists, "offsets", tells_what_any_node_knows_of_offsets)),
)
