"""Options of writing with the format `keelmq`, validated before a query starts. Spark gives names in lower case."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from keelmq.errors import KeelMQError
from keelmq.limits import check_group, check_message_id, check_topic
from keelmq.transport.credentials import FILE_VARIABLE
from keelmq.transport.tls import Tls
from keelmq_spark.options import number_of, servers_of, tls_of

NAMES: Final = (
    "servers",
    "caFile",
    "certificateFile",
    "keyFile",
    "tokenFile",
    "topic",
    "producerGroup",
    "writeId",
    "onceBy",
    "batchMessages",
    "sendTimeoutMs",
)
OF_SPARK: Final = ("checkpointlocation", "path", "queryname")
"""Options that Spark hands to each sink."""
BATCH_MESSAGES: Final = 1_000
BATCH_MESSAGES_MAX: Final = 5_000
"""Below the keys and ids that a request may have."""
SEND_TIMEOUT_MS: Final = 120_000
ROW: Final = "row"
BATCH: Final = "batch"
ONCE_BY: Final = (ROW, BATCH)
"""Units that have an id by which a repetition is known."""


@dataclass(frozen=True)
class SinkOptions:
    """Parsed options. `topic` is that of rows without one."""

    servers: tuple[str, ...]
    tls: Tls
    """Paths, which every executor reads itself; those that are not given are as the planner's environment says."""
    token_file: str | None
    """Path of a token, which every executor reads itself; by default as the planner's environment says."""
    topic: str | None
    group: str | None
    """Producer group for the lineage."""
    write_id: str | None
    """Name of a write that is not a stream. Two with one name write the same rows once."""
    once_by: str
    batch_messages: int
    send_timeout_ms: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SinkOptions":
        """Parse options. Raises ValueError that names the wrong option and its valid values."""
        given = {name.lower(): value for name, value in options.items() if name.lower() not in OF_SPARK}
        unknown = given.keys() - {name.lower() for name in NAMES}
        if unknown:
            raise ValueError(
                f"unknown option {sorted(unknown)[0]}: the options of keelmq for writing are {', '.join(NAMES)}"
            )
        topic, group, write_id = given.get("topic"), given.get("producergroup"), given.get("writeid")
        for value, check in ((topic, check_topic), (group, check_group), (write_id, check_message_id)):
            if value is not None:
                _checked(check, value)
        once_by = given.get("onceby", ROW)
        if once_by not in ONCE_BY:
            raise ValueError(f"onceBy: {once_by} is none of {', '.join(ONCE_BY)}")
        return cls(
            servers=servers_of(given.get("servers", "")),
            tls=tls_of(given),
            token_file=given.get("tokenfile", os.environ.get(FILE_VARIABLE)),
            topic=topic,
            group=group,
            write_id=write_id,
            once_by=once_by,
            batch_messages=number_of(
                "batchMessages", given.get("batchmessages", str(BATCH_MESSAGES)), 1, BATCH_MESSAGES_MAX
            ),
            send_timeout_ms=number_of("sendTimeoutMs", given.get("sendtimeoutms", str(SEND_TIMEOUT_MS)), 1, 3_600_000),
        )


def _checked(check: Callable[[object], None], value: str) -> None:
    try:
        check(value)
    except KeelMQError as error:
        raise ValueError(error.detail) from None
