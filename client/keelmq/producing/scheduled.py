"""Cancellation of scheduled messages."""

from urllib.parse import quote

from keelmq.limits import check_message_id, check_topic
from keelmq.transport.connection import Connection
from keelmq.transport.retry import Deadline


async def cancel_scheduled(connection: Connection, topic: str, message_id: str, deadline: Deadline | None) -> None:
    """Cancel a scheduled message: on return it will never be delivered. Harmless to repeat.

    Raises NotScheduled when no such message waits for its delivery time.
    """
    check_topic(topic)
    check_message_id(message_id)
    path = f"/v1/topics/{quote(topic, safe='')}/scheduled/{quote(message_id, safe='')}"
    await connection.call("DELETE", path, deadline=deadline)
