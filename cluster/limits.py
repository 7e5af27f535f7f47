"""Limits of the HTTP API and patterns of accepted names. docs/http-api.md states the same; a test compares the two."""

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
"""Share of a budget, in percent of the part that other addresses leave free, that one client address may hold: see
cluster/budgets/client_budget.py."""
TLS_HANDSHAKE_TIMEOUT_S: Final = 10.0
"""Seconds in which a client must end its TLS handshake; its connection counts meanwhile."""
TLS_SHUTDOWN_TIMEOUT_S: Final = 5.0
"""Seconds for which a connection that this node closes waits until the client takes leave of TLS, too."""
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
BLOCK_BYTES_MAX: Final = 8 * 1024 * 1024
BLOCK_MESSAGES_MAX: Final = 10_000
REQUEST_MESSAGES_MAX: Final = 10_000
"""Maximum number of messages in one request, over all its batches: the loop does nothing else while it checks them."""
DUPLICATES_SOUGHT_BYTES_MAX: Final = 64 * 1024
"""Largest JSON body in bytes that is searched for fields that appear twice."""
REQUEST_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest value that the option `max_request_bytes` of a node may have."""
JSON_BYTES_MAX: Final = 1024 * 1024
"""Maximum bytes of a JSON request without messages: several times the longest request within the other limits."""
JSON_STRINGS_MAX: Final = 250_000
"""Maximum number of strings in one JSON request, field names included: they are the cost of decoding. The limit allows
25 strings for each of 10,000 messages."""
TAG_BYTES_MAX: Final = 255
KEYS_MAX: Final = 32
KEY_BYTES_MAX: Final = 255
REQUEST_KEYS_MAX: Final = 6_400
"""Maximum number of keys and explicit message ids of one send or one transaction together. Each is one or two separate
writes to the index, 2.7 us of every replica's loop, and one entry is applied in one step. A request of 1 MiB that the
SDK of 0.2.0 collects has at most 6,241 keys."""
SHARDING_KEY_BYTES_MAX: Final = 255
PROPERTIES_BYTES_MAX: Final = 32_767
PROPERTIES_MAX: Final = 8_192
REQUEST_PROPERTIES_MAX: Final = 100_000
"""Maximum number of properties in one request, over all its messages: each one costs time whenever the block is read
as messages."""
TOPIC_LENGTH_MAX: Final = 127
GROUP_LENGTH_MAX: Final = 255
CLIENT_ID_LENGTH_MAX: Final = 255
BATCHES_MAX: Final = 1_000
"""Maximum number of batches in one request. One batch per queue of a large topic is far below the limit."""
TRANSACTIONS_MAX: Final = 256
"""Maximum number of transactions that one request prepares or decides. Each is a separate command in the log."""
RETENTION_MS_MAX: Final = 3650 * 86_400_000
RETENTION_BYTES_MAX: Final = 1 << 50
WAIT_MS_MAX: Final = 30_000
PULL_MESSAGES_DEFAULT: Final = 32
PULL_MESSAGES_MAX: Final = 10_000
PULL_BYTES_DEFAULT: Final = 1024 * 1024
PULL_BYTES_MAX: Final = 16 * 1024 * 1024
CHECKS_MAX: Final = 256
LIST_MAX: Final = 1_000
LAGS_MAX: Final = 100
"""Maximum number of groups on a page with their lag: each costs a look at all queues that the group has read."""
CLIENTS_MAX: Final = 100
"""Maximum number of connections on a page: a connection shows up to 32 names of groups, and a page is one step."""
AUDIT_RECORDS_MAX: Final = 500
"""Maximum number of records on a page of the audit."""
LIST_ROWS_MAX: Final = 4_096
"""Number of queues, members and offsets after which a page of topics or groups ends: the topic or group that reaches
the number is the last one on the page."""
MESSAGES_OF_ID_MAX: Final = 16
"""Maximum number of messages shown for one message id, which is looked up in all topics. `topic` narrows the search."""
TAGS_LENGTH_MAX: Final = 2_048
FILTER_BYTES_MAX: Final = 2_048
"""Maximum bytes of an SQL92 expression in UTF-8: with every byte percent-encoded it still fits a request line."""
FILTER_DEPTH_MAX: Final = 32
"""Maximum nesting depth of parentheses and NOTs."""
FILTER_IN_ITEMS_MAX: Final = 256
FILTER_LIKES_MAX: Final = 32
FILTER_PATTERN_LENGTH_MAX: Final = 256
"""Maximum number of characters in a LIKE pattern."""
FILTER_NUMBER_LENGTH_MAX: Final = 40
"""Maximum number of characters in a number, in an expression and in a property: a longer text is not a number."""
DELAY_LEVELS_S: Final = (1, 5, 10, 30, *(60 * minutes for minutes in (*range(1, 11), 20, 30, 60, 120)))
"""Delays in seconds of the delay levels 1 to 18, the same as in RocketMQ."""
OFFSETS_MAX: Final = 1_024
POP_INVISIBLE_MS_DEFAULT: Final = 60_000
POP_ACKS_MAX: Final = 256
"""Maximum number of receipt handles that one request acknowledges."""
GIVE_BACK_MESSAGES_MAX: Final = 256
"""Maximum number of messages that one request gives back or replays from the dead letters: each message costs reading
and writing one row."""
GROUP_TOPICS_MAX: Final = 64
GROUP_QUEUES_MAX: Final = 16_384
"""Maximum number of queues of all topics that a group subscribes to: a rebalance visits all of them in one step."""
SESSION_TIMEOUT_MS_MIN: Final = 1_000
SESSION_TIMEOUT_MS_MAX: Final = 30 * 60_000
LOG_BYTES_DEFAULT: Final = 1024 * 1024
LOG_BYTES_MAX: Final = 16 * 1024 * 1024
LOG_TOPICS_MAX: Final = 64
"""Maximum number of names by which a reader of events selects topics: each event is compared with all of them."""
RESPONSE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum bytes of large responses that a node holds at a time for clients that have not read them yet."""
LOG_READERS_MAX: Final = 100
"""Maximum number of readers of the log whose positions a node knows."""
URL_LENGTH_MAX: Final = 2_048
INT64_MAX: Final = (1 << 63) - 1

ID_PATTERN: Final = "^[A-Za-z0-9_-]{1,64}$(?!\n)"
POP_HANDLE_PATTERN: Final = "^[0-9a-f]{1,15}-[0-9a-f]{1,7}-[0-9a-f]{1,15}$(?!\n)"
READER_PATTERN: Final = "^[A-Za-z0-9_.:,|%*-]{1,64}$(?!\n)"
USER_PATTERN: Final = (
    "^([A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}|oidc(-group)?:[A-Za-z0-9_.@|+=~-]{1,128}|join:[0-9]{1,10})$(?!\n)"
)
"""Local users, people and groups of an issuer of tokens, and join tokens: a local user has no colon in its name."""
JOIN_PREFIX: Final = "join:"
"""Begins the names of users whose only token lets a new node join; the id of the node follows."""
MESSAGE_ID_PATTERN: Final = "^[A-Za-z0-9_.:-]{1,128}$(?!\n)"

NAME_REGEX: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
ID_REGEX: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
POP_HANDLE_REGEX: Final = re.compile(r"[0-9a-f]{1,15}-[0-9a-f]{1,7}-[0-9a-f]{1,15}")
MESSAGE_ID_REGEX: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
