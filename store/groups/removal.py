"""Deleting a group: everything kept for the group is removed, and nothing that belongs to others.

The group's retries are removed with it; waiting retries are dropped when they are due. Its dead letters stay, readable
and available to a later group of that name, unless their removal is requested. The group's id is never used again, so a
group of the same name starts as a new one. Producer groups are unrelated, whatever their names: transactions are not
affected.
"""

from store.commands.groups import DeleteGroup, GroupDeleted
from store.groups.given_back import GivenBackMarks
from store.groups.groups import Groups
from store.groups.history import GroupHistory
from store.groups.leases import Leases
from store.groups.settings import check_note
from store.messages.message_index import MessageIndex
from store.messages.topics import DLQ_PREFIX, RETRY_PREFIX, Topics
from store.steps import finish


class GroupRemoval:
    def __init__(
        self,
        topics: Topics,
        groups: Groups,
        marks: GivenBackMarks,
        history: GroupHistory,
        leases: Leases,
        messages: MessageIndex,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._marks = marks
        self._history = history
        self._leases = leases
        self._messages = messages

    def delete(self, command: DeleteGroup) -> GroupDeleted:
        """Delete the group. Refused (`group_not_found`, `group_has_members`, `group_is_popped`) when it does not exist
        or is in use, and (`invalid_request`) for an operator or reason that is too long.
        """
        check_note(command.operator, command.reason)
        group_id = self._groups.remove(command.group)
        self._marks.forget_group(group_id)
        self._history.forget_group(group_id)
        self._leases.revoke(group_id)
        removed: list[str] = []
        for prefix in (RETRY_PREFIX, DLQ_PREFIX) if command.with_dead_letters else (RETRY_PREFIX,):
            topic = self._topics.get(prefix + command.group)
            if topic is not None:
                self._topics.remove(topic)
                finish(self._groups.topic_deleted(topic))
                self._messages.forget_topic(topic.id)
                removed.append(topic.name)
        return GroupDeleted(command.group, tuple(removed))
