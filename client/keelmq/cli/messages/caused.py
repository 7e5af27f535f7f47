"""Prints a search for caused messages: each message as it is found, and how far the search is."""

import sys
import time
from typing import TYPE_CHECKING, Final

from keelmq.cli.output import print_json, say, when, zone
from keelmq.cli.sizes import size

if TYPE_CHECKING:
    from keelmq.admin import CausedMessage, CausedPage

TOLD_EVERY_S: Final = 10.0
"""Seconds between two lines of progress where stderr is no terminal."""
_CLEAR: Final = "\r\x1b[K"


class CausedReport:
    """Prints the pages of one search. For programs, all is one document in the end."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._live = sys.stderr.isatty()
        self._told_s = time.monotonic()
        self._found: list[CausedMessage] = []
        self._topics_left_out = False
        self._looked_bytes = 0
        self._log_removed = False

    def add(self, topic: str, page: "CausedPage") -> None:
        """Print the messages of the page, and how far the search in the log is."""
        self._found += page.messages
        self._topics_left_out |= page.topics_left_out
        self._looked_bytes += page.looked_bytes
        self._log_removed |= page.log_removed
        if self._live:
            print(_CLEAR, end="", flush=True, file=sys.stderr)
        if not self._as_json:
            for message in page.messages:
                say(_line(message, topic), flush=True)
        if self._live:
            say(self._progress(page.left_bytes), end="", flush=True, file=sys.stderr)
        elif page.next is not None and time.monotonic() - self._told_s >= TOLD_EVERY_S:
            self._told_s = time.monotonic()
            say(self._progress(page.left_bytes), flush=True, file=sys.stderr)

    def end(self, message_id: str) -> None:
        if self._live:
            print(_CLEAR, end="", flush=True, file=sys.stderr)
        say(self._progress(0), file=sys.stderr)
        if self._topics_left_out:
            say("topics that you may not read were left out: there may be more", file=sys.stderr)
        if self._log_removed:
            say("a part of the log behind the message is removed, and the messages in it", file=sys.stderr)
        if self._as_json:
            print_json(
                {
                    "message_id": message_id,
                    "messages": [each.document for each in self._found],
                    "topics_left_out": self._topics_left_out,
                    "looked_bytes": self._looked_bytes,
                    "log_removed": self._log_removed,
                }
            )

    def _progress(self, left_bytes: int) -> str:
        whole = f" of {size(self._looked_bytes + left_bytes)}" if left_bytes else ""
        return f"looked through {size(self._looked_bytes)}{whole} of the log, {len(self._found)} found"


def _line(message: "CausedMessage", topic: str) -> str:
    place = f"{message.topic}/{message.queue}"
    place += f" at offset {message.offset}" if message.offset is not None else f", {message.state}"
    said = [f"{when(message.at_ms)} {zone()}  {message.message_id}  in {place}"]
    if message.producer_group is not None:
        said.append(f"by group {message.producer_group}")
    if message.transaction_id is not None:
        said.append(f"transaction {message.transaction_id}")
    if message.deliver_at_ms is not None:
        said.append(f"due {when(message.deliver_at_ms)}")
    if not message.names_topic:
        said.append(f"names no topic: its cause may be of another one than {topic}")
    return f"{', '.join(said)}  #{message.raft_index}"
