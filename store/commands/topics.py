"""Commands about topics, each with its result."""

from typing import Literal

import msgspec

from store.commands.base import CommandBase
from store.commands.retention import ExpiredQueue
from store.limits import RETENTION_UNLIMITED_BYTES

TopicType = Literal["normal", "fifo", "delay", "transaction", "any"]


class TopicInfo(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic: str
    queues: int
    type: TopicType
    retention_ms: int
    system: bool
    created_at_ms: int
    retention_bytes: int = RETENTION_UNLIMITED_BYTES


class PutTopic(CommandBase, frozen=True, tag=1):
    """Create a topic, or change the given fields of an existing one."""

    topic: str
    queues: int | None = None
    retention_ms: int | None = None
    type: TopicType | None = None
    retention_bytes: int | None = None


class TopicPut(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic: TopicInfo
    created: bool


class DeleteTopic(CommandBase, frozen=True, tag=2):
    topic: str


class TopicDeleted(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic: str


class PurgeTopic(CommandBase, frozen=True, tag=31):
    """Remove all messages that a topic, or one of its queues, has now. The queues go on at their present ends."""

    topic: str
    queue: int | None = None


class TopicPurged(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The queues that had messages; none of them has messages from before `start` any more."""

    queues: tuple[ExpiredQueue, ...]
