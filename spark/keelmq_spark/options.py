"""Options of the data source `keelmq`, validated before a query starts. Spark passes their names in lower case."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from keelmq.errors import InvalidRequest
from keelmq.transport.credentials import FILE_VARIABLE
from keelmq.transport.known_nodes import parse_servers
from keelmq.transport.tls import Tls

View = Literal["messages", "events"]

NAMES: Final = (
    "servers",
    "caFile",
    "certificateFile",
    "keyFile",
    "tokenFile",
    "view",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelayMs",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "fetchMaxBytes",
    "failoverTimeoutMs",
    "readerName",
)
MIN_PARTITIONS: Final = 4
MAX_TRIGGER_DELAY_MS: Final = 900_000
FETCH_MAX_BYTES: Final = 4 * 1024 * 1024
FETCH_MAX_BYTES_MAX: Final = 16 * 1024 * 1024
FAILOVER_TIMEOUT_MS: Final = 120_000

READER_NAME_LENGTH_MAX: Final = 64

_NOT_IN_READER_NAMES: Final = r"[^A-Za-z0-9_.:,|%*-]"
_OF_TABLES: Final = "option."
"""Beginning of the options of a table of the catalog, which has each of them without it, too."""
_EARLIEST: Final = -2
_LATEST: Final = -1
_WORDS: Final = {_EARLIEST: "-2 for the earliest", _LATEST: "-1 for the latest"}
_INDEX_KEYS: Final = ({"index"}, {"cluster", "index"})


@dataclass(frozen=True)
class SourceOptions:
    """Parsed options. `starting` and `ending` are words, or the Raft index to begin with and to end before."""

    servers: tuple[str, ...]
    tls: Tls
    """Paths, which every executor reads itself; those that are not given are as the planner's environment says."""
    token_file: str | None
    """Path of a token, which every executor reads itself; by default as the planner's environment says."""
    view: View
    topics: tuple[str, ...]
    pattern: str | None
    """Regular expression for topics, instead of `topics`."""
    starting: Literal["earliest", "latest"] | int
    cluster_uid: str
    """Unique id of the cluster that `starting` or `ending` is an index of; empty for any."""
    first_offsets: Mapping[tuple[str, int], int]
    """First offset by topic and queue; earlier messages are left out."""
    ending: Literal["latest"] | int
    last_offsets: Mapping[tuple[str, int], int]
    """End by topic and queue; messages at it or later are left out."""
    starting_timestamp_ms: int | None
    max_offsets_per_trigger: int | None
    """Maximum number of Raft entries per trigger; an entry may contain many messages."""
    max_bytes_per_trigger: int | None
    """Maximum number of bytes that the Raft entries of a trigger take in the log, unless it is a single entry."""
    min_offsets_per_trigger: int
    """Number of Raft entries that a micro-batch waits for, no longer than `max_trigger_delay_ms`."""
    max_trigger_delay_ms: int
    min_partitions: int
    fail_on_data_loss: bool
    include_headers: bool
    fetch_max_bytes: int
    failover_timeout_ms: int
    reader_name: str
    """Name by which nodes know a streaming query."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Parse options. Raises ValueError that names the wrong option and its valid values."""
        given = {name.lower(): value for name, value in options.items()}
        if any(name.startswith(_OF_TABLES) for name in given):
            raise ValueError(
                "Spark does not tell the reader of a table what its options are: make a view, with CREATE TEMPORARY "
                "VIEW … USING keelmq OPTIONS (…)"
            )
        unknown = given.keys() - {name.lower() for name in NAMES}
        if unknown:
            raise ValueError(f"unknown option {sorted(unknown)[0]}: the options of keelmq are {', '.join(NAMES)}")
        view = _view(given.get("view", "messages"))
        topics = tuple(name.strip() for name in given.get("subscribe", "").split(",") if name.strip())
        pattern = given.get("subscribepattern")
        if view == "messages" and not (topics or pattern):
            raise ValueError("subscribe: the view messages needs topics, with commas between")
        if topics and pattern:
            raise ValueError("subscribe or subscribePattern, not both")
        _require_pattern(pattern)
        starting, cluster_uid, first_offsets = _starting(given.get("startingoffsets", "earliest"), view, topics)
        ending, ending_uid, last_offsets = _ending(given.get("endingoffsets", "latest"), view, topics)
        if cluster_uid and ending_uid and cluster_uid != ending_uid:
            raise ValueError(f"endingOffsets: of the cluster {ending_uid}, and startingOffsets of {cluster_uid}")
        timestamp = given.get("startingtimestamp")
        if timestamp is not None and "startingoffsets" in given:
            raise ValueError("startingOffsets or startingTimestamp, not both")
        max_bytes = given.get("maxbytespertrigger")
        limit, least = given.get("maxoffsetspertrigger"), given.get("minoffsetspertrigger", "1")
        return cls(
            servers=servers_of(given.get("servers", "")),
            tls=tls_of(given),
            token_file=given.get("tokenfile", os.environ.get(FILE_VARIABLE)),
            view=view,
            topics=topics,
            pattern=pattern,
            starting=starting,
            cluster_uid=cluster_uid or ending_uid,
            first_offsets=first_offsets,
            ending=ending,
            last_offsets=last_offsets,
            starting_timestamp_ms=None if timestamp is None else number_of("startingTimestamp", timestamp, 0),
            max_offsets_per_trigger=None if limit is None else number_of("maxOffsetsPerTrigger", limit, 1),
            max_bytes_per_trigger=None if max_bytes is None else number_of("maxBytesPerTrigger", max_bytes, 1),
            min_offsets_per_trigger=number_of(
                "minOffsetsPerTrigger", least, 1, int(limit) if limit is not None and limit.isdecimal() else None
            ),
            max_trigger_delay_ms=number_of(
                "maxTriggerDelayMs", given.get("maxtriggerdelayms", str(MAX_TRIGGER_DELAY_MS)), 1
            ),
            min_partitions=number_of("minPartitions", given.get("minpartitions", str(MIN_PARTITIONS)), 1, 10_000),
            fail_on_data_loss=_flag("failOnDataLoss", given.get("failondataloss", "true")),
            include_headers=_flag("includeHeaders", given.get("includeheaders", "false")),
            fetch_max_bytes=number_of(
                "fetchMaxBytes", given.get("fetchmaxbytes", str(FETCH_MAX_BYTES)), 1, FETCH_MAX_BYTES_MAX
            ),
            failover_timeout_ms=number_of(
                "failoverTimeoutMs", given.get("failovertimeoutms", str(FAILOVER_TIMEOUT_MS)), 1
            ),
            reader_name=_reader_name(given.get("readername"), view, pattern or ",".join(topics)),
        )


def _reader_name(given: str | None, view: View, topics: str) -> str:
    """Return the name, by default one of what is read, which every start of the query has."""
    if given is None:
        name = f"spark:{view}:{topics}" if topics else f"spark:{view}"
        return re.sub(_NOT_IN_READER_NAMES, "_", name)[:READER_NAME_LENGTH_MAX]
    if not 1 <= len(given) <= READER_NAME_LENGTH_MAX or re.search(_NOT_IN_READER_NAMES, given):
        raise ValueError(f"readerName: 1 to {READER_NAME_LENGTH_MAX} characters of A-Z a-z 0-9 _.:,|%*-, not {given!r}")
    return given


def servers_of(text: str) -> tuple[str, ...]:
    if not text.strip():
        raise ValueError("servers: the URLs of the cluster's nodes, with commas between")
    try:
        return tuple(origin.url for origin in parse_servers(text))
    except InvalidRequest as error:
        raise ValueError(error.detail) from None


def tls_of(given: Mapping[str, str]) -> Tls:
    names = {"ca_file": "cafile", "certificate_file": "certificatefile", "key_file": "keyfile"}
    return Tls(**{field: given[name] for field, name in names.items() if name in given})


def _view(text: str) -> View:
    if text == "messages":
        return "messages"
    if text == "events":
        return "events"
    raise ValueError(f"view: messages or events, not {text!r}")


def _starting(
    text: str, view: View, topics: tuple[str, ...]
) -> tuple[Literal["earliest", "latest"] | int, str, Mapping[tuple[str, int], int]]:
    if text == "earliest":
        return "earliest", "", {}
    if text == "latest":
        return "latest", "", {}
    value = _json("startingOffsets", text)
    if value.keys() in _INDEX_KEYS:
        return *_index("startingOffsets", value), {}
    if view != "messages":
        raise ValueError('startingOffsets: earliest, latest or {"index": n}')
    return "earliest", "", _offsets("startingOffsets", value, topics, _EARLIEST)


def _offsets(name: str, value: Mapping[str, object], topics: tuple[str, ...], word: int) -> dict[tuple[str, int], int]:
    """Return offsets by topic and queue, without those that are the `word` for all messages."""
    found: dict[tuple[str, int], int] = {}
    for topic, queues in value.items():
        if topic not in topics or not isinstance(queues, dict):
            raise ValueError(f"{name}: {topic!r} is not a topic of subscribe with its queues")
        for queue, offset in queues.items():
            if not queue.isdecimal() or type(offset) is not int or (offset < 0 and offset != word):
                raise ValueError(f"{name}: queue {queue!r} of {topic}: an offset, or {_WORDS[word]}")
            if offset != word:
                found[topic, int(queue)] = offset
    return found


def _ending(
    text: str, view: View, topics: tuple[str, ...]
) -> tuple[Literal["latest"] | int, str, Mapping[tuple[str, int], int]]:
    if text == "latest":
        return "latest", "", {}
    value = _json("endingOffsets", text)
    if value.keys() in _INDEX_KEYS:
        return *_index("endingOffsets", value), {}
    if view != "messages":
        raise ValueError('endingOffsets: latest or {"index": n}')
    return "latest", "", _offsets("endingOffsets", value, topics, _LATEST)


def _require_pattern(pattern: str | None) -> None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise ValueError(f"subscribePattern: {error}") from None


def _json(name: str, text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not value:
        raise ValueError(f"{name}: a word or a JSON object, not {text!r}")
    return value


def _index(name: str, value: Mapping[str, object]) -> tuple[int, str]:
    """Return the index, and the cluster's unique id, empty for any."""
    index, cluster_uid = value["index"], value.get("cluster", "")
    if not isinstance(cluster_uid, str):
        raise ValueError(f"{name}: the cluster is the unique id of one, not {cluster_uid!r}")
    if not isinstance(index, int) or isinstance(index, bool) or index < 1:
        raise ValueError(f"{name}: the index is a number from 1 on, not {index!r}")
    return index, cluster_uid


def number_of(name: str, text: str, least: int, most: int | None = None) -> int:
    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        raise ValueError(f"{name}: a number from {least}{'' if most is None else f' to {most}'}, not {text!r}")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{name}: true or false, not {text!r}")
    return text.lower() == "true"
