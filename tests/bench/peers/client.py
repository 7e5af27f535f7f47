"""A peer's load generator: a process that stays warm between its turns, and is asked for one load at a time.

It reads a JSON object per line and answers with lines that begin with LOAD: `ready` once, `begin` and `end` around the
measured seconds, then `result {json}`; `settled`; `missing WHY` for a load that the peer does not have; `failed WHY`.
"""

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tests.bench.peers.rows import Row

PREFIX: Final = "LOAD "
READY_TIMEOUT_S: Final = 150.0
SETTLE_TIMEOUT_S: Final = 90.0
ANSWER_TIMEOUT_S: Final = 120.0


class LoadError(Exception):
    """A load could not be run; the text says why."""


class Missing(Exception):
    """The peer has no such load; the text says why."""


class LoadResult(NamedTuple):
    messages: int
    """Acknowledged within the measured seconds; end to end: consumed, up to the last one."""
    seconds: float
    all_messages: int
    """Acknowledged in all, also before and after the measured seconds."""
    errors: int
    error: str
    buckets: dict[int, int]


class LoadClient:
    """Asks one load generator. Every call raises LoadError when it fails, ends or does not answer in time."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def wait_ready(self) -> None:
        self._expect("ready", READY_TIMEOUT_S)

    def settle(self, flavour: str) -> None:
        """Return when the cluster takes messages again after its pause."""
        self._ask({"kind": "settle", "flavour": flavour})
        self._expect("settled", SETTLE_TIMEOUT_S)

    def load(
        self,
        row: Row,
        flavour: str,
        warm_up_s: float,
        seconds: float,
        on_begin: Callable[[], None],
        on_end: Callable[[], None],
    ) -> LoadResult:
        """Run one load; the functions are called when the measured seconds begin and when they end.

        Raises Missing when the peer has no such load.
        """
        if row.kind == "end-to-end":  # all its messages count, from the first one sent to the last one consumed
            warm_up_s = 0.0
        self._ask({**row._asdict(), "flavour": flavour, "warm_up_s": warm_up_s, "seconds": seconds})
        timeout_s = warm_up_s + seconds + ANSWER_TIMEOUT_S
        self._expect("begin", timeout_s)
        on_begin()
        self._expect("end", timeout_s)
        on_end()
        found = json.loads(self._expect("result", timeout_s))
        found["buckets"] = {int(bucket): count for bucket, count in found["buckets"].items()}
        return LoadResult(**found)

    def _read(self) -> None:
        with contextlib.suppress(ValueError):  # the stream was closed
            for line in self._process.stdout or ():
                if line.startswith(PREFIX):
                    self._lines.put(line.removeprefix(PREFIX).rstrip("\n"))
        self._lines.put(None)

    def _ask(self, request: dict[str, Any]) -> None:
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        except OSError as error:
            raise LoadError("the load generator has ended") from error

    def _expect(self, word: str, timeout_s: float) -> str:
        """Return what follows `word` on the next line."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            raise LoadError(f"no answer within {timeout_s:.0f} s") from None
        if line is None:
            self._lines.put(None)
            raise LoadError("the load generator has ended")
        said, _, rest = line.partition(" ")
        if said == word:
            return rest
        if said == "missing":
            raise Missing(rest)
        raise LoadError(rest if said == "failed" else f"{line!r} instead of {word}")
