"""A process that is killed between applies leaves an index that is exactly the state after some whole apply."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from store.commands.entry import Command, Proposal
from store.commands.groups import CommitOffsets, JoinGroup, QueueOffset
from store.commands.topics import DeleteTopic, PutTopic
from store.commands.transactions import Decide
from store.index.index import Index
from store.state.machine import StateMachine
from tests.patience import PATIENCE_S
from tests.unit.store.replica import EntryLog, apply_all, dump, header, prepare, produce

ENTRIES = 400

# Applies entries one by one and dies by SIGKILL after the given one, flushing sometimes.
VICTIM = """
import os, signal, sys
from store.index.index import Index
from store.state.machine import StateMachine
from tests.unit.store.test_index_crash import a_long_log

path, die_after, flush_entries = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
index = Index.open(path)
machine = StateMachine(index, flush_entries=flush_entries)
for entry in a_long_log().entries:
    if entry.index <= machine.applied_index:
        continue
    machine.apply([entry])
    if entry.index == die_after:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def a_long_log() -> EntryLog:
    """Return a log that writes to every table of the index, deletes and range deletes included."""
    log = EntryLog()
    log.append(1_000, [PutTopic("orders", 2), PutTopic("passing", 1), JoinGroup("g", "m", "c", ("orders",), 30_000)])
    for number in range(ENTRIES):
        queue = number % 2
        proposals: list[Proposal | Command] = [
            produce(header(queue=queue, batch_id=f"b{number}", message_ids=[f"m{number}"])),
            prepare(f"tx{number}", header(queue=queue, batch_id=f"h{number}", message_ids=[f"h{number}"])),
            CommitOffsets("g", "m", 1, (QueueOffset("orders", queue, number // 2),)),
        ]
        if number % 3:
            proposals.append(Decide(f"tx{number}", "commit" if number % 3 == 1 else "rollback"))
        if number % 50 == 10:
            proposals += [DeleteTopic("passing"), PutTopic("passing", 1)]
        if number % 50 == 5:
            proposals.append(produce(header("passing", batch_id=f"p{number}")))
        # A minute per entry: the dedupe window expires along the way.
        log.append(1_000 + number * 60_000, proposals)
    return log


def replayed(directory: Path, last_index: int) -> tuple[dict[bytes, bytes], str]:
    index = Index.open(str(directory))
    machine = StateMachine(index)
    apply_all(machine, a_long_log().entries[:last_index])
    contents = dump(index)
    index.close()
    return contents, machine.state_hash


@pytest.mark.parametrize(("die_after", "flush_entries"), [(399, 37), (150, 10), (220, 1), (60, 10_000)])
def test_a_killed_process_leaves_the_state_after_a_whole_apply(
    tmp_path: Path, die_after: int, flush_entries: int
) -> None:
    path = tmp_path / "index"
    victim = subprocess.run(
        [sys.executable, "-c", VICTIM, str(path), str(die_after), str(flush_entries)],
        cwd=os.getcwd(),
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        check=False,
        timeout=PATIENCE_S,
    )
    assert victim.returncode == -signal.SIGKILL

    index = Index.open(str(path))
    machine = StateMachine(index)
    survived = machine.applied_index
    # The last flush was asked for within flush_entries of the end, and may not have finished when the process died.
    assert survived <= die_after
    if survived:
        assert (dump(index), machine.state_hash) == replayed(tmp_path / "replayed", survived)

    log = a_long_log()
    apply_all(machine, log.entries[survived:])
    contents = dump(index)
    index.close()
    assert (contents, machine.state_hash) == replayed(tmp_path / "whole", len(log.entries))


def test_an_awaited_flush_survives_a_kill(tmp_path: Path) -> None:
    code = VICTIM.replace(
        "    if entry.index == die_after:",
        "    if entry.index == die_after - 5:\n        index.flush(wait=True)\n    if entry.index == die_after:",
    )
    victim = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "index"), "100", "1000000"],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        check=False,
        timeout=PATIENCE_S,
    )
    assert victim.returncode == -signal.SIGKILL
    index = Index.open(str(tmp_path / "index"))
    assert StateMachine(index).applied_index == 95
    index.close()
