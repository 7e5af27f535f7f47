"""Limits on the number of objects that stay in the state: topics, groups, members, check URLs, users, undecided
transactions, timers.

The limits are checked where a command is proposed, from counts that the state keeps anyway; apply accepts every command
in the log. Commands under way at the same time may therefore exceed a limit by their number. A limit on objects that
go away by themselves is answered with 429 (send the request again later), one on objects that somebody has to delete
first with 409.
"""

from collections.abc import Callable, Collection
from typing import Any, get_args

from cluster.problems import Problem
from cluster.process.config import NodeConfig
from store.commands.entry import Command
from store.commands.groups import CloneOffsets, CommitOffsets, GiveBack, JoinGroup, PutGroup
from store.commands.messages import Produce
from store.commands.pops import Pop
from store.commands.topics import PutTopic
from store.commands.transactions import Prepare, SetCheckUrl
from store.commands.users import PutUser
from store.state.machine import StateMachine

_CreatesGroup = CloneOffsets | CommitOffsets | GiveBack | JoinGroup | Pop | PutGroup


def require_capacity(config: NodeConfig, state: StateMachine, command: Command) -> None:
    """Check that the state has room for the objects that the command adds.

    A command that only touches existing objects passes, a repeated request included. Raises Problem when a limit is
    reached: too_many_timers, too_many_transactions, too_many_topics, too_many_groups, too_many_members,
    too_many_check_urls, too_many_users.
    """
    check = _CHECKS.get(type(command))
    if check is not None:
        check(config, state, command)


def _require_topics(config: NodeConfig, state: StateMachine, command: PutTopic) -> None:
    count = state.topics_of_clients
    if count >= config.max_topics and state.topic(command.topic) is None:
        raise _full("too_many_topics", f"there are {count} topics: delete some", config.max_topics)


def _require_users(config: NodeConfig, state: StateMachine, command: PutUser) -> None:
    count = len(state.users)
    if count >= config.max_users and state.users.get(command.user) is None:
        raise _full("too_many_users", f"there are {count} users: delete some", config.max_users)


def _require_check_urls(config: NodeConfig, state: StateMachine, command: SetCheckUrl) -> None:
    count = len(state.check_urls(config.max_check_urls))
    if count >= config.max_check_urls and command.url is not None and state.check_url(command.producer_group) is None:
        detail = f"{count} producer groups have a check URL: set the URLs of some to null"
        raise _full("too_many_check_urls", detail, config.max_check_urls)


def _require_groups(config: NodeConfig, state: StateMachine, command: _CreatesGroup) -> None:
    members = state.member_ids(command.group)
    if members is None and state.groups_count >= config.max_groups:
        raise _full("too_many_groups", f"there are {state.groups_count} groups: delete some", config.max_groups)
    if isinstance(command, JoinGroup) and members is not None:
        _require_members(config, members, command)


def _require_undecided(config: NodeConfig, state: StateMachine, command: Prepare) -> None:
    count = state.transactions_undecided
    if count >= config.max_undecided_transactions and state.transaction(command.transaction_id) is None:
        detail = f"{count} transactions are undecided: decide some, and send the request again"
        raise _full("too_many_transactions", detail, config.max_undecided_transactions)
    # A commit is never refused, so the delayed messages of a transaction are counted when it is prepared.
    too_many = state.timers_pending >= config.max_timers and any(each.is_delayed for each in command.batches)
    if too_many and state.transaction(command.transaction_id) is None:
        raise _too_many_timers(config, state)


def _require_members(config: NodeConfig, members: Collection[str], command: JoinGroup) -> None:
    if len(members) >= config.max_group_members and command.member_id not in members:
        detail = f"group {command.group} has {len(members)} members: stop some"
        raise _full("too_many_members", detail, config.max_group_members)


def _require_timers(config: NodeConfig, state: StateMachine, command: Produce) -> None:
    if state.timers_pending < config.max_timers:
        return
    delayed = [each for each in command.batches if each.is_delayed]
    if not all(state.knows_batch(each.topic, each.batch_id) for each in delayed):
        raise _too_many_timers(config, state)


def _too_many_timers(config: NodeConfig, state: StateMachine) -> Problem:
    detail = f"{state.timers_pending} delayed batches are pending: send the request again when some were delivered"
    return _full("too_many_timers", detail, config.max_timers)


def _full(code: str, detail: str, limit: int) -> Problem:
    return Problem(code, f"{detail}; the limit is {limit}", {"limit": limit})


_CHECKS: dict[type, Callable[[NodeConfig, StateMachine, Any], None]] = {
    Produce: _require_timers,
    Prepare: _require_undecided,
    PutTopic: _require_topics,
    PutUser: _require_users,
    SetCheckUrl: _require_check_urls,
    **dict.fromkeys(get_args(_CreatesGroup), _require_groups),
}
"""The check of each command that adds objects, looked up since every command passes here."""
