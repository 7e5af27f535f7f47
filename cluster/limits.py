"""The limits of the HTTP API, and the names it accepts. docs/http-api.md states them; a test holds both together."""

import re
from typing import Final

from store.limits import DELAY_MAX_MS as DELAY_MAX_MS
from store.limits import GIVE_BACK_REASON_BYTES_MAX as GIVE_BACK_REASON_BYTES_MAX
from store.limits import POP_INVISIBLE_MS_MAX as POP_INVISIBLE_MS_MAX
from store.limits import POP_MESSAGES_MAX as POP_MESSAGES_MAX
from store.limits import QUEUES_MAX as QUEUES_MAX
from store.limits import RETRY_DELAYS_MAX as RETRY_DELAYS_MAX
from store.limits import RETRY_MAX_ATTEMPTS_MAX as RETRY_MAX_ATTEMPTS_MAX

HTTP_CONNECTIONS_MAX: Final = 4_096
ADDRESS_SHARE_PERCENT: Final = 50
"""What one client address may hold of what others leave: see cluster/budgets/client_budget.py."""
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
BLOCK_BYTES_MAX: Final = 8 * 1024 * 1024
BLOCK_MESSAGES_MAX: Final = 10_000
REQUEST_MESSAGES_MAX: Final = 10_000
"""Messages of one request, over all its batches: the loop does nothing else while it looks at them."""
DUPLICATES_SOUGHT_BYTES_MAX: Final = 64 * 1024
"""Fields that appear twice are sought in JSON bodies up to this size."""
REQUEST_BYTES_MAX: Final = 64 * 1024 * 1024
"""The most that `max_request_bytes` of a node may be."""
JSON_BYTES_MAX: Final = 1024 * 1024
"""Of a JSON request without messages: several times as long as the longest that is within the other limits."""
JSON_STRINGS_MAX: Final = 250_000
"""Of one JSON request, names of fields included: what decoding it costs. 25 for each of 10,000 messages."""
TAG_BYTES_MAX: Final = 255
KEYS_MAX: Final = 32
KEY_BYTES_MAX: Final = 255
REQUEST_KEYS_MAX: Final = 50_000
"""Of one request, over all its messages: each is a write of its own into the index."""
SHARDING_KEY_BYTES_MAX: Final = 255
PROPERTIES_BYTES_MAX: Final = 32_767
PROPERTIES_MAX: Final = 8_192
REQUEST_PROPERTIES_MAX: Final = 100_000
"""Of one request, over all its messages: whoever reads a block as messages pays for each."""
TOPIC_LENGTH_MAX: Final = 127
GROUP_LENGTH_MAX: Final = 255
CLIENT_ID_LENGTH_MAX: Final = 255
BATCHES_MAX: Final = 1_000
"""Batches in one request: one per queue of a large topic is far below it."""
TRANSACTIONS_MAX: Final = 256
"""Transactions that one request prepares or decides: as many commands of the log."""
RETENTION_MS_MAX: Final = 3650 * 86_400_000
WAIT_MS_MAX: Final = 30_000
PULL_MESSAGES_DEFAULT: Final = 32
PULL_MESSAGES_MAX: Final = 10_000
PULL_BYTES_DEFAULT: Final = 1024 * 1024
PULL_BYTES_MAX: Final = 16 * 1024 * 1024
CHECKS_MAX: Final = 256
LIST_MAX: Final = 1_000
LIST_ROWS_MAX: Final = 4_096
"""Queues, members and offsets that a page of topics or groups shows: it ends with the one that brings it there."""
MESSAGES_OF_ID_MAX: Final = 16
"""An id is looked up in all topics; more messages than these are not shown. `topic` chooses among them."""
TAGS_LENGTH_MAX: Final = 2_048
FILTER_BYTES_MAX: Final = 2_048
"""Of an SQL92 expression in UTF-8: with every byte percent-encoded it still fits a request line."""
FILTER_DEPTH_MAX: Final = 32
"""Parentheses and NOTs within each other."""
FILTER_IN_ITEMS_MAX: Final = 256
FILTER_LIKES_MAX: Final = 32
FILTER_PATTERN_LENGTH_MAX: Final = 256
"""Characters of a LIKE pattern."""
FILTER_NUMBER_LENGTH_MAX: Final = 40
"""Characters of a number, in an expression and in a property: a longer text is not one."""
DELAY_LEVELS_S: Final = (1, 5, 10, 30, *(60 * minutes for minutes in (*range(1, 11), 20, 30, 60, 120)))
"""What the delay levels 1 to 18 stand for, those of RocketMQ."""
OFFSETS_MAX: Final = 1_024
POP_INVISIBLE_MS_DEFAULT: Final = 60_000
POP_ACKS_MAX: Final = 256
"""Receipt handles that one request acknowledges."""
GIVE_BACK_MESSAGES_MAX: Final = 256
"""Of one request to give messages back, or to replay dead letters: a row is read and written for each."""
GROUP_TOPICS_MAX: Final = 64
SESSION_TIMEOUT_MS_MIN: Final = 1_000
SESSION_TIMEOUT_MS_MAX: Final = 30 * 60_000
LOG_BYTES_DEFAULT: Final = 1024 * 1024
LOG_BYTES_MAX: Final = 16 * 1024 * 1024
RESPONSE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Large responses that a node holds at a time for clients that have not taken them yet."""
URL_LENGTH_MAX: Final = 2_048
INT64_MAX: Final = (1 << 63) - 1

NAME_PATTERN: Final = "^[%|a-zA-Z0-9_-]+$(?!\n)"
ID_PATTERN: Final = "^[A-Za-z0-9_-]{1,64}$(?!\n)"
POP_HANDLE_PATTERN: Final = "^[0-9a-f]{1,15}-[0-9a-f]{1,7}-[0-9a-f]{1,15}$(?!\n)"
MESSAGE_ID_PATTERN: Final = "^[A-Za-z0-9_.:-]{1,128}$(?!\n)"

NAME_REGEX: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
ID_REGEX: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
POP_HANDLE_REGEX: Final = re.compile(r"[0-9a-f]{1,15}-[0-9a-f]{1,7}-[0-9a-f]{1,15}")
MESSAGE_ID_REGEX: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
