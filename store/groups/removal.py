"""Deleting a group: everything that is kept for it goes, and nothing of anybody else's.

Its retries go with it, those that wait for their time are dropped when it has come. Its dead letters stay, readable and
for a group of that name to come, unless they are to go too. Its id is never used again, so a group of the same name
begins as a new one. Producer groups are something else, whatever they are called: transactions do not notice.
"""

from store.commands.groups import DeleteGroup, GroupDeleted
from store.errors import INVALID_REQUEST, Refused
from store.groups.given_back import GivenBackMarks
from store.groups.groups import Groups
from store.groups.history import GroupHistory
from store.groups.leases import Leases
from store.limits import OPERATOR_BYTES_MAX, REASON_BYTES_MAX
from store.messages.message_index import MessageIndex
from store.messages.topics import DLQ_PREFIX, RETRY_PREFIX, Topics


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
        """Refused (`group_not_found`, `group_has_members`, `group_is_popped`) when there is none, or it is used."""
        for name, text, most in (
            ("operator", command.operator, OPERATOR_BYTES_MAX),
            ("reason", command.reason, REASON_BYTES_MAX),
        ):
            if len(text.encode()) > most:
                raise Refused(INVALID_REQUEST, f"{name}: more than {most} bytes")
        group_id = self._groups.remove(command.group)
        self._marks.forget_group(group_id)
        self._history.forget_group(group_id)
        self._leases.revoke(group_id)
        removed: list[str] = []
        for prefix in (RETRY_PREFIX, DLQ_PREFIX) if command.with_dead_letters else (RETRY_PREFIX,):
            topic = self._topics.get(prefix + command.group)
            if topic is not None:
                self._topics.remove(topic)
                self._groups.topic_deleted(topic)
                self._messages.forget_topic(topic.id)
                removed.append(topic.name)
        return GroupDeleted(command.group, tuple(removed))
