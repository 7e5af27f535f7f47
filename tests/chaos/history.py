"""The history of a run: one JSON line per operation and per fault, in the order in which they ended.

A line is `{"at_s", "kind", …}`; operations also have `begin_s`. Times are seconds of the monotonic clock since the run
began. The history is bounded: beyond `max_bytes` the older half is dropped, file by file.
"""

import time
from pathlib import Path
from typing import IO, Any, Final

import msgspec

HISTORY_BYTES_MAX: Final = 256 << 20

_encode = msgspec.json.Encoder().encode


class History:
    """Writes `history.jsonl`, and keeps at most one older part of the same size as `history.old.jsonl`."""

    def __init__(self, directory: Path, max_bytes: int = HISTORY_BYTES_MAX) -> None:
        self.path = directory / "history.jsonl"
        self._older = directory / "history.old.jsonl"
        self._part_bytes = max_bytes // 2
        self._size = 0
        self._started_s = time.monotonic()
        self._file: IO[bytes] = self.path.open("wb")

    def now_s(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self._started_s

    def write(self, kind: str, **fields: Any) -> None:
        line = _encode({"at_s": round(self.now_s(), 4), "kind": kind, **fields}) + b"\n"
        if self._size + len(line) > self._part_bytes:
            self._file.close()
            self.path.replace(self._older)
            self._file = self.path.open("wb")
            self._size = 0
        self._size += len(line)
        self._file.write(line)

    def close(self) -> None:
        self._file.close()
