"""Checks of an entry that is applied in part, on a real state machine."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from store.commands.retention import ExpireMessages
from store.commands.topics import PutTopic
from store.log.base import LogBase
from tests.unit.store.replica import Replica, header, produce

from .checkers import Violation
from .checkers.whole_entries import watch_cuts


def test_a_cut_of_what_the_written_index_points_at(tmp_path: Path) -> None:
    """The queries say within an entry that nothing points at it any more."""
    replica = Replica(tmp_path / "index")
    replica.raise_level()
    replica.one(PutTopic("orders", 1, retention_ms=1_000))
    replica.one(produce(header()))
    row = replica.log.entries[-1]
    replica.now_ms += 60_000
    entry = replica.log.append(replica.now_ms, [ExpireMessages((("orders", 0),), 10), PutTopic("other", 1)])
    assert replica.machine.apply([entry], lambda: False) == []
    assert replica.machine.log_floor > row.index, "by the queries it may go"
    log: Any = SimpleNamespace(base=LogBase(0, 0, 0), drop_before=lambda index: LogBase(entry.position, index, 1))
    node: Any = SimpleNamespace(node_id=1, index=replica.index, log=log, observer=SimpleNamespace(finding=nullcontext))
    watch_cuts(node)
    with pytest.raises(Violation, match="log_floor"):
        log.drop_before(row.index)
    replica.machine.apply([entry])
    log.drop_before(row.index)
    replica.close()
