"""The history of a group's offsets: one row for every commit that moved an offset, with its member and time.

Commits only move forward, so the commits of a queue sort by offset, and the first commit beyond a message is the one
that passed it. A reset begins a new pass over the queue, in which the offsets start anew: each pass is searched
separately.
"""

from typing import Final, NamedTuple

import msgspec

from store.index import keys
from store.index.index import Index
from store.messages.named_rows import encoded_with_principal
from store.messages.placement import At

PASSES_SHOWN_MAX: Final = 64
"""Maximum number of passes searched: of a queue that was reset more often, only the last passes are searched."""


class Commit(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """A commit, or a reset. All queues of one command share the value, except for `is_first`."""

    at_ms: int
    raft_index: int
    member_id: str
    client_id: str
    is_first: bool = False
    """True if the group had no offset in this queue before."""
    reset_from: int | None = None
    """The offset before a reset; None for a commit."""
    popped: bool = False
    """True if the messages before the offset were handed out to a pop consumer and are not processed yet."""
    principal: str | None = None
    """The authenticated principal that reset the offset."""


class Passed(NamedTuple):
    """A commit, or a reset, that moved a group's offset to `offset`."""

    offset: int
    commit: Commit


Queue = tuple[int, int, int]
"""A group's queue: group id, topic id and queue number."""

_decode = msgspec.msgpack.Decoder(Commit).decode


def encoded_commits(at: At, member_id: str, client_id: str, *, popped: bool = False) -> tuple[bytes, bytes]:
    """Return the row of a command's commits, which all its queues share, and the row for queues where the commit is the
    first.
    """
    commit = Commit(at.clock_ms, at.raft_index, member_id, client_id, popped=popped)
    first = msgspec.structs.replace(commit, is_first=True)
    return encoded_with_principal(commit), encoded_with_principal(first)


class EncodedResets(dict[int | None, bytes]):
    """Rows of the resets of one command, by the offset before: queues with the same one share the row. None stands for
    a group that had no offset.
    """

    def __init__(self, at: At) -> None:
        super().__init__()
        self._at = at

    def __missing__(self, before: int | None) -> bytes:
        at = self._at
        commit = Commit(at.clock_ms, at.raft_index, "", "", before is None, before or 0, principal=at.principal)
        self[before] = encoded = encoded_with_principal(commit)
        return encoded


class GroupHistory:
    def __init__(self, index: Index) -> None:
        self._index = index
        self._passes: dict[int, dict[int, dict[int, int]]] = {}
        """By group and topic: number of the last pass of each queue that was looked up. A deleted topic costs each of
        its groups the queues of that topic, a deleted group its own topics, not those of all groups.
        """

    # Changes, during apply.

    def committed(self, queue: Queue, offset: int, encoded: bytes, *, is_first: bool = False) -> None:
        """Note a commit that moved the offset forward; `encoded` comes from encoded_commits. `is_first` says that the
        group had no offset, and so no history: none is looked up.
        """
        self._index.put(keys.group_commit(*queue, self._pass(queue, is_first=is_first), offset), encoded)

    def pass_begun(self, queue: Queue, offset: int, *, is_first: bool) -> bytes:
        """Begin another pass at `offset`, and return the key of the reset that the caller puts into the index, with a
        value of EncodedResets. `is_first` is described at `committed`.
        """
        number = self._pass(queue, is_first=is_first) + 1
        self._passes[queue[0]][queue[1]][queue[2]] = number
        return keys.group_commit(*queue, number, offset)

    def forget_group(self, group_id: int) -> None:
        prefix = keys.group_history(group_id)
        self._index.delete_range(prefix, keys.after(prefix))
        self._passes.pop(group_id, None)

    def forget_topic(self, group_id: int, topic_id: int) -> None:
        prefix = keys.group_commits(group_id, topic_id)
        self._index.delete_range(prefix, keys.after(prefix))
        topics = self._passes.get(group_id, {})
        topics.pop(topic_id, None)
        if not topics:
            self._passes.pop(group_id, None)

    # Queries.

    def passed(self, queue: Queue, offset: int) -> list[Passed]:
        """Return the commits and resets that moved the group over the message at `offset`, or back before it, in order:
        of each pass, the reset that began it, if the message lies between the offsets before and after the reset, and
        the first commit beyond the message.
        """
        last = self._pass(queue)
        found: list[Passed] = []
        for number in range(max(0, last - PASSES_SHOWN_MAX + 1), last + 1):
            begin, end = keys.group_pass(*queue, number), keys.group_pass(*queue, number + 1)
            start = 0
            if number:
                key, value = next(self._index.scan(begin, end))
                start, commit = keys.read_u64(key[15:]), _decode(value)
                before = commit.reset_from or 0
                if min(start, before) <= offset < max(start, before):
                    found.append(Passed(start, commit))
            if start <= offset:
                beyond = next(self._index.scan(keys.group_commit(*queue, number, offset + 1), end), None)
                if beyond is not None:
                    found.append(Passed(keys.read_u64(beyond[0][15:]), _decode(beyond[1])))
        return found

    def _pass(self, queue: Queue, *, is_first: bool = False) -> int:
        group_id, topic_id, place = queue
        passes = self._passes.setdefault(group_id, {}).setdefault(topic_id, {})
        number = passes.get(place)
        if number is None and is_first:
            passes[place] = number = 0
        if number is None:
            begin = keys.group_pass(*queue, 0)
            found = self._index.last(begin, keys.after(begin[:-4]))
            passes[place] = number = keys.group_pass_number(found[0]) if found is not None else 0
        return number
