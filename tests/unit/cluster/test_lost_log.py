"""A node whose log is gone must not vote as if it still held what it has acknowledged."""

import shutil
from pathlib import Path

import pytest

from cluster.broker import Broker
from cluster.process.exit_codes import ExitCode, StartupError
from store.log.disk import PosixDisk
from store.log.hard_state import HardState
from tests.unit.cluster.conftest import node_config


def used_node(path: Path, *, term: int = 0, voter: bool = False) -> Path:
    """Return the data directory of a node that was started once and has this hard state."""
    config = node_config(path)
    Broker.open(config, print).close()
    data = Path(config.data_dir)
    hard_state = HardState(PosixDisk(), str(data / "hard_state"))
    if term:
        hard_state.set(term, None)
    if voter:
        hard_state.become_voter()
    return data


@pytest.mark.parametrize(("term", "voter"), [(3, True), (3, False), (0, True)])
def test_a_lost_log_is_refused_at_every_start(tmp_path: Path, term: int, voter: bool) -> None:
    data = used_node(tmp_path, term=term, voter=voter)
    Broker.open(node_config(tmp_path), print).close()  # with its log it starts
    shutil.rmtree(data / "log")
    shutil.rmtree(data / "index")  # an index that is behind proves nothing either way
    for _ in range(2):
        with pytest.raises(StartupError, match=r"no segment is left.*mounted.*remove the directory") as caught:
            Broker.open(node_config(tmp_path), print)
        assert caught.value.code == ExitCode.LOG_CORRUPT


def test_a_node_that_has_never_taken_part_begins_anew(tmp_path: Path) -> None:
    data = used_node(tmp_path)
    shutil.rmtree(data / "log")
    Broker.open(node_config(tmp_path), print).close()
