"""A rebuild that was decided on is carried out, wherever it is interrupted, and makes another disk of this one."""

from pathlib import Path

import pytest

from cluster.broker import raft_config
from cluster.process.config import NodeConfig
from cluster.process.data_directory import REBUILD_FILE, DataDirectory, Identity
from cluster.process.exit_codes import StartupError
from cluster.process.rebuild import PARTS, _remove, decide, finish_rebuild, joins_since_rebuild

IDENTITY = Identity("test", 1)


class Interrupted(Exception):
    """Raised where the process dies."""


def full_directory(path: Path) -> None:
    DataDirectory.open(path, IDENTITY).close()
    for part in PARTS:
        if part in ("log", "index", "index.incoming"):
            (path / part).mkdir()
            (path / part / "file").write_bytes(b"x")
        else:
            (path / part).write_bytes(b"x")


def start(path: Path, dies_after: int | None = None) -> tuple[bool, str]:
    """Do the first steps of a start. Returns whether it rebuilt, and the disk's incarnation from then on."""
    left = dies_after

    def remove(part: Path) -> None:
        nonlocal left
        if left is not None:
            if not left:
                raise Interrupted
            left -= 1
        _remove(part)

    directory = DataDirectory.open(path, IDENTITY)
    try:
        return finish_rebuild(directory, remove), directory.incarnation
    finally:
        directory.close()


def test_without_a_decision_nothing_happens(tmp_path: Path) -> None:
    full_directory(tmp_path)
    before = start(tmp_path)
    assert before == start(tmp_path)
    assert not before[0]
    assert all((tmp_path / part).exists() for part in PARTS)


@pytest.mark.parametrize("dies_after", range(2 * len(PARTS) + 1))
def test_it_may_be_interrupted_anywhere(tmp_path: Path, dies_after: int) -> None:
    full_directory(tmp_path)
    _, before = start(tmp_path)
    decide(tmp_path, joins=True)
    try:
        rebuilt, _ = start(tmp_path, dies_after)
    except Interrupted:
        assert (tmp_path / "differs").exists() or not (tmp_path / "hard_state").exists()
        rebuilt, _ = start(tmp_path)
    assert rebuilt
    _, after = start(tmp_path)
    assert after != before, "the others must take it for another disk"
    assert not any((tmp_path / part).exists() for part in PARTS)
    assert not (tmp_path / REBUILD_FILE).exists()
    assert joins_since_rebuild(tmp_path)


@pytest.mark.parametrize("dies_after", range(2 * len(PARTS)))
def test_it_stays_a_node_of_its_cluster(tmp_path: Path, dies_after: int) -> None:
    """The node keeps its cluster's name even if it was killed after log and hard state were gone. Otherwise it might be
    given to another cluster's nodes.
    """
    full_directory(tmp_path)
    directory = DataDirectory.open(tmp_path, IDENTITY)
    directory.belong_to("c1")
    directory.close()
    decide(tmp_path, joins=True)
    with pytest.raises(Interrupted):
        start(tmp_path, dies_after)
    start(tmp_path)
    directory = DataDirectory.open(tmp_path, IDENTITY)
    directory.close()
    assert directory.cluster_uid == "c1"


def test_a_directory_that_cannot_be_emptied_is_said_to_be_so(tmp_path: Path) -> None:
    full_directory(tmp_path)
    decide(tmp_path, joins=False)
    directory = DataDirectory.open(tmp_path, IDENTITY)

    def refuse(part: Path) -> None:
        raise PermissionError(13, "Permission denied", str(part))

    with pytest.raises(StartupError, match="cannot be emptied"):
        finish_rebuild(directory, refuse)
    assert (tmp_path / REBUILD_FILE).exists()
    directory.close()


def test_the_word_of_a_rebuild_that_cannot_be_read_is_to_join(tmp_path: Path) -> None:
    assert not joins_since_rebuild(tmp_path)
    (tmp_path / "rebuilt").write_bytes(b"\xff")
    assert joins_since_rebuild(tmp_path)


def test_a_founder_of_a_cluster_that_has_grown_does_not_begin_another_one(tmp_path: Path) -> None:
    """The founders alone would elect a node with an empty log."""
    config = NodeConfig(http_listen="127.0.0.1:7081")
    directory = DataDirectory.open(tmp_path, IDENTITY)
    assert raft_config(config, directory).joins is False
    decide(tmp_path, joins=True)
    assert finish_rebuild(directory)
    rebuilt = raft_config(config, directory)
    assert (rebuilt.joins, rebuilt.peers, rebuilt.urls) == (True, {}, {})
    directory.close()
