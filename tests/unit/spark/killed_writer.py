"""Write batches into tables and get killed in the middle. test_sink.py runs this module as a process.

For every `step`th change of the file system that Python makes (they are audit events) a fork of this process is killed
right before it, and another one begins again where that one ended. The last line says how many kills there were; the
exit code is 1 when the tables differ from those that nobody disturbed.
"""

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import duckdb

from keelmq_spark.folding.sink import LineageSink
from keelmq_spark.tables import layout
from keelmq_spark.tables.published import with_columns
from keelmq_spark.tables.tables import Tables
from tests.unit.spark.history import History, shop

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.link", "open")
KILLED_AT = (14, 100)
"""Batches end before these entries."""
CONTINUED_AT = (20, 100)
"""Batches of the process that begins again end before these entries: it has no checkpoint, so they end elsewhere."""


def longer() -> History:
    """Return the history up to the last end, and one message more."""
    log = shop()
    while log.end < KILLED_AT[-1]:
        log.entry()
    log.publish("orders", "z-0")
    return log


def write(directory: Path, format: Any, ends: Sequence[int] = KILLED_AT) -> None:
    """Write batches that end before the entries `ends`, from where the tables end."""
    log = shop()
    sink = LineageSink(Tables(directory, format))
    for end in ends:
        begin = sink.next_index
        if begin < end:
            sink.write(log.between(begin, end), begin, end)


def content(directory: Path, format: Any) -> str:
    tables = Tables(directory, format)
    found: dict[str, list[str]] = {}
    for name, table in (("events", tables.events), ("nodes", tables.nodes), ("edges", tables.edges)):
        query = with_columns(name, "SELECT * FROM read_parquet(?, hive_partitioning = true, union_by_name = true)")
        rows = duckdb.connect().sql(query, params=[table.files()]).to_arrow_table().to_pylist()
        found[name] = sorted(json.dumps(row, default=str, sort_keys=True) for row in rows)
    return json.dumps(found)


def kill_before(change: int, directory: Path) -> None:
    """End this process, as kill -9 does, before its `change`th change of the directory."""
    left = [change]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES and str(arguments[0]).startswith(str(directory)):
            if event == "open" and "r" in str(arguments[1]):
                return
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def in_fork(work: Any) -> int:
    """Do `work` in a fork and return its exit status; -9 when it was killed."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if work() is not False else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_everywhere(step: int, disturb: Callable[[int], int], begin_again: Callable[[int], bool]) -> int:
    """Kill a writer before change 1, 1 + `step`, ... until one gets through: `disturb` runs it and returns its exit
    status, `begin_again` runs the next one in a fork and returns whether the tables are right. Return the exit code.
    """
    kills = 0
    for change in itertools.count(1, step):
        status = disturb(change)
        if status == 0:
            break
        assert status == -signal.SIGKILL, status
        kills += 1
        if in_fork(partial(begin_again, change)) != 0:
            print(f"other tables after a kill before change {change}")
            return 1
    print(kills)
    return 0


def main(root: Path, format: str, step: int, compact_every: int) -> int:
    layout.COMPACT_EVERY = compact_every  # type: ignore[misc]
    expected = root / "expected"

    def undisturbed() -> None:
        write(root / "undisturbed", format)
        expected.write_text(content(root / "undisturbed", format))

    assert in_fork(undisturbed) == 0

    def disturbed(change: int) -> None:
        directory = root / f"killed-{change}"
        kill_before(change, directory)
        write(directory, format)

    def begin_again(change: int) -> bool:
        directory = root / f"killed-{change}"
        write(directory, format, CONTINUED_AT)
        return content(directory, format) == expected.read_text()

    return kill_everywhere(step, lambda change: in_fork(partial(disturbed, change)), begin_again)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
