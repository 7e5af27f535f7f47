"""Commands about topics, each with its result."""

from typing import Literal

import msgspec

from store.commands.base import CommandBase

TopicType = Literal["normal", "fifo", "delay", "transaction", "any"]


class TopicInfo(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic: str
    queues: int
    type: TopicType
    retention_ms: int
    system: bool
    created_at_ms: int


class PutTopic(CommandBase, frozen=True, tag=1):
    """Create a topic, or change the given fields of an existing one."""

    topic: str
    queues: int | None = None
    retention_ms: int | None = None
    type: TopicType | None = None


class TopicPut(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic: TopicInfo
    created: bool


class DeleteTopic(CommandBase, frozen=True, tag=2):
    topic: str


class TopicDeleted(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic: str
