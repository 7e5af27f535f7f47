"""Limits of the contract, checked in the client with the broker's error codes before anything is sent."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from keelmq.errors import Forbidden, InvalidName, InvalidRequest, LimitExceeded

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
BLOCK_BYTES_MAX: Final = 8 * 1024 * 1024
BATCH_MESSAGES_MAX: Final = 10_000
REQUEST_MESSAGES_MAX: Final = 10_000
"""Maximum number of messages over all batches of a request."""
REQUEST_BATCHES_MAX: Final = 1_000
TRANSACTIONS_MAX: Final = 256
"""Maximum number of transactions that one request prepares or decides."""
REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum size of a request in bytes, as sent and also with its blocks uncompressed."""
PROPERTIES_BYTES_MAX: Final = 32_767
TAG_BYTES_MAX: Final = 255
SHARDING_KEY_BYTES_MAX: Final = 255
KEYS_MAX: Final = 32
KEY_BYTES_MAX: Final = 255
REQUEST_KEYS_MAX: Final = 6_400
"""Maximum number of keys and explicit message ids over all messages of a request."""
REQUEST_PROPERTIES_MAX: Final = 100_000
"""Maximum number of properties over all messages of a request."""
TOPIC_LENGTH_MAX: Final = 127
GROUP_LENGTH_MAX: Final = 255
QUEUES_MAX: Final = 1_024
TRANSACTION_ID_LENGTH_MAX: Final = 64
OPERATOR_BYTES_MAX: Final = 255
REASON_BYTES_MAX: Final = 255
DELAY_MS_MAX: Final = 40 * 24 * 3_600_000
DELAY_LEVELS_S: Final = (1, 5, 10, 30, *(60 * minutes for minutes in (*range(1, 11), 20, 30, 60, 120)))
"""Delays of the levels 1 to 18, in seconds."""
CHECK_AFTER_MAX_MS: Final = 7 * 24 * 3_600_000
PULL_MESSAGES_MAX: Final = 10_000
WAIT_MS_MAX: Final = 30_000
"""Longest time that a request may wait for messages."""
OFFSETS_MAX: Final = 1_024
"""Maximum number of offsets that one request commits."""
GIVE_BACK_MESSAGES_MAX: Final = 256
"""Maximum number of messages that one request gives back, or replays from the dead letters."""
GIVE_BACK_REASON_BYTES_MAX: Final = 255
POP_MESSAGES_MAX: Final = 32
POP_ACKS_MAX: Final = 256
"""Maximum number of receipt handles in one request."""
POP_INVISIBLE_MS_MAX: Final = 12 * 3_600_000
LIST_MAX: Final = 1_000
"""Maximum number of entries on a page of a list."""
CLIENTS_MAX: Final = 100
"""Maximum number of connections on a page of the clients of a node."""
AUDIT_RECORDS_MAX: Final = 500
"""Maximum number of records on a page of the audit."""
LOG_TOPICS_MAX: Final = 64
"""Maximum number of names by which a reader of events selects topics."""
NODE_ID_MAX: Final = 1 << 31
TIMEOUT_MS_MAX: Final = 3_600_000
"""Longest time that a request may give the broker for its answer."""
INT64_MAX: Final = (1 << 63) - 1
"""Largest offset, time and number of bytes."""

SYSTEM_TOPICS: Final = frozenset(
    {"RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"}
)

GROUP_TOPIC_PREFIXES: Final = ("%RETRY%", "%DLQ%")
"""Prefixes of the retry topic and the dead-letter topic of a group; the group's name follows the prefix."""

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_MESSAGE_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_TRANSACTION_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def check_topic(topic: object) -> None:
    """Check the name of a topic. Raises InvalidName (code `invalid_topic`)."""
    length_max = TOPIC_LENGTH_MAX
    if isinstance(topic, str) and topic.startswith(GROUP_TOPIC_PREFIXES):
        length_max = GROUP_LENGTH_MAX + topic.index("%", 1) + 1
    if not isinstance(topic, str) or not _NAME.fullmatch(topic) or len(topic) > length_max:
        raise InvalidName(
            "invalid_topic", f"topic {topic!r}: 1-{TOPIC_LENGTH_MAX} characters of A-Z a-z 0-9 _ - % | are allowed"
        )


def check_writable_topic(topic: object) -> None:
    """Check that clients may write to the topic. Raises InvalidName, or Forbidden (code `system_topic`)."""
    check_topic(topic)
    if topic in SYSTEM_TOPICS or str(topic).startswith(GROUP_TOPIC_PREFIXES):
        raise Forbidden("system_topic", f"topic {topic} is the broker's own and cannot be written to", status=403)


def check_group(group: object) -> None:
    """Check the name of a group. Raises InvalidName (code `invalid_group`)."""
    if not isinstance(group, str) or not _NAME.fullmatch(group) or len(group) > GROUP_LENGTH_MAX:
        raise InvalidName(
            "invalid_group", f"group {group!r}: 1-{GROUP_LENGTH_MAX} characters of A-Z a-z 0-9 _ - % | are allowed"
        )


def check_message_id(message_id: object) -> None:
    if not (isinstance(message_id, str) and _MESSAGE_ID.fullmatch(message_id)):
        raise InvalidRequest("invalid_request", "message_id: 1-128 characters of A-Z a-z 0-9 _ . : - are allowed")


def check_batch_id(batch_id: object) -> None:
    if not (isinstance(batch_id, str) and _TRANSACTION_ID.fullmatch(batch_id)):
        raise InvalidRequest("invalid_request", "batch_id: 1-64 characters of A-Z a-z 0-9 _ - are allowed")


def check_transaction_id(transaction_id: str) -> None:
    if not _TRANSACTION_ID.fullmatch(transaction_id):
        raise InvalidRequest("invalid_request", "transaction_id: 1-64 characters of A-Z a-z 0-9 _ - are allowed")


def check_audit(operator: object, reason: object) -> None:
    """Check the operator and the reason of a manual intervention. Raises InvalidRequest unless both are given."""
    for name, value, bytes_max in (("operator", operator, OPERATOR_BYTES_MAX), ("reason", reason, REASON_BYTES_MAX)):
        if not value:
            raise InvalidRequest("invalid_request", f"{name}: say who does this, and why")
        _check_text(name, value, bytes_max)


def check_body(body: object) -> None:
    if not isinstance(body, bytes):
        raise InvalidRequest("invalid_request", f"body must be bytes, not {type(body).__name__}: encode it first")
    if not body:
        raise LimitExceeded("empty_body", "a message needs a body of at least one byte")
    if len(body) > BODY_BYTES_MAX:
        raise LimitExceeded("message_too_large", f"the body has {len(body)} bytes, {BODY_BYTES_MAX} are allowed")


def check_key_count(count: int) -> None:
    """Check the number of keys and ids of all messages in a request. Raises LimitExceeded (code `batch_too_large`)."""
    if count > REQUEST_KEYS_MAX:
        detail = f"the messages have {count} keys and ids together, {REQUEST_KEYS_MAX} are allowed in a request"
        raise LimitExceeded("batch_too_large", f"{detail}: send them in parts")


def check_bodies(bodies: Sequence[bytes]) -> None:
    """Check the sizes of all `bodies`, at C speed when all are valid. Raises the error of the first invalid body."""
    if not bodies or (min(map(len, bodies)) > 0 and max(map(len, bodies)) <= BODY_BYTES_MAX):
        return
    for body in bodies:
        check_body(body)


def check_attributes(
    tag: str | None,
    keys: Sequence[str],
    properties: Mapping[str, str],
    sharding_key: object,
    message_id: object,
) -> None:
    """Check a message's attributes, not its body. Raises InvalidRequest, or LimitExceeded (`too_many_properties`)."""
    _check_text("tag", tag, TAG_BYTES_MAX)
    _check_text("sharding_key", sharding_key, SHARDING_KEY_BYTES_MAX)
    if isinstance(keys, str):
        raise InvalidRequest("invalid_request", "keys must be a sequence of strings, not one string")
    if len(keys) > KEYS_MAX:
        raise InvalidRequest("invalid_request", f"keys: {len(keys)} given, {KEYS_MAX} are allowed")
    for key in keys:
        _check_text("keys", key, KEY_BYTES_MAX)
    size = 0
    for name, value in properties.items():
        size += _byte_length("properties", name) + _byte_length("properties", value)
    if size > PROPERTIES_BYTES_MAX:
        raise LimitExceeded("too_many_properties", f"{size} bytes of properties, {PROPERTIES_BYTES_MAX} are allowed")
    if message_id is not None:
        check_message_id(message_id)


def check_sharding_key(sharding_key: object) -> None:
    """Check a sharding key that only chooses a queue. Raises InvalidRequest unless it is text that can be hashed."""
    _byte_length("sharding_key", sharding_key)


def check_text(field: str, value: object) -> None:
    """Raise InvalidRequest unless the value is text that UTF-8 can carry."""
    _byte_length(field, value)


def _check_text(field: str, value: object, bytes_max: int) -> None:
    if value is not None and _byte_length(field, value) > bytes_max:
        raise InvalidRequest("invalid_request", f"{field} is longer than {bytes_max} bytes")


def _byte_length(field: str, value: object) -> int:
    if not isinstance(value, str):
        raise InvalidRequest("invalid_request", f"{field} must be a string, not {type(value).__name__}")
    try:
        return len(value.encode())
    except UnicodeEncodeError as exc:
        raise no_text(exc, field) from None


def no_text(error: UnicodeEncodeError, field: str = "") -> InvalidRequest:
    """Return the error of a string with half of a surrogate pair, as an argument of a command has for each byte that is
    no UTF-8.
    """
    named = field or f"a string with {error.object[error.start]!a}"  # not the whole: it may be long, or a secret
    return InvalidRequest("invalid_request", f"{named} is not text that UTF-8 can carry: {error.reason}")


def check_range(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequest("invalid_request", f"{name} must be between {low} and {high}, not {value!r}")
