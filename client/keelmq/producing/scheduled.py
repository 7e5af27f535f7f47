"""Messages that wait for their time: taking one back."""

from urllib.parse import quote

from keelmq.limits import check_message_id, check_topic
from keelmq.transport.connection import Connection
from keelmq.transport.retry import Deadline


async def cancel_scheduled(connection: Connection, topic: str, message_id: str, deadline: Deadline | None) -> None:
    """On return the message will never be delivered. Raises NotScheduled when it does not wait. Harmless to repeat."""
    check_topic(topic)
    check_message_id(message_id)
    path = f"/v1/topics/{quote(topic, safe='')}/scheduled/{quote(message_id, safe='')}"
    await connection.call("DELETE", path, deadline=deadline)
