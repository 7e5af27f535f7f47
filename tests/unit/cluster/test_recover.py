"""A survivor is recovered, wherever the command is interrupted; no node starts on a directory that is half done."""

import contextlib
import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.broker import Broker
from cluster.process.data_directory import DataDirectory, read_unfinished
from cluster.process.exit_codes import ExitCode, StartupError
from cluster.process.offline import command_line
from cluster.process.offline import recover_command as command
from store.log.differs import Difference, DiffersMark
from store.log.disk import PosixDisk
from store.log.errors import DiskFull
from store.log.hard_state import HardState
from tests.unit.cluster.conftest import Node, node_config, running_node
from tests.unit.cluster.test_restore import user

SEGMENT_BYTES = 1 << 20


class Interrupted(Exception):
    """Raised where the process dies."""


def recover(path: Path, *, accepted: bool = True) -> int:
    """Recover the node at another place, since a node that is alone at its place needs no recovery."""
    place = "1=127.0.0.1:1=http://127.0.0.1:2"
    return command.recover_command(str(path / "data"), place, accepted=accepted, segment_bytes=SEGMENT_BYTES)


async def used(path: Path) -> tuple[Any, str, str]:
    """Run a node, send a message and return its configuration, its state hash and its cluster's name."""
    config = node_config(path)
    async with running_node(config, []) as node:
        assert (await node.call("PUT", "/v1/topics/orders", {"queues": 1})).status == 201
        await send(node, "before")
        for name in ("join:4", "shop"):
            await node.core.propose(user(name))
        return config, node.core.state.state_hash, node.core.state.cluster_uid


async def send(node: Node, body: str) -> None:
    payload = {"messages": [{"body": body, "queue": 0}]}
    assert (await node.call("POST", "/v1/topics/orders/messages", payload)).status == 200


async def assert_goes_on(config: Any, former_uid: str) -> None:
    async with running_node(config, []) as node:
        await send(node, "after")
        pulled = (await node.call("GET", "/v1/topics/orders/queues/0/messages?offset=0")).body
        assert [message["body"] for message in pulled["messages"]] == ["before", "after"]
        uid = node.core.state.cluster_uid
        assert uid != former_uid
        assert node.core.raft.configuration.origin == uid
        assert node.core.raft.configuration.voters == {node.core.raft.node_id}
        assert node.core.log.base.index == 2
        assert node.broker._data_directory.cluster_uid == uid
        # A token may have been used up by an entry that the survivor lacks.
        assert [each.user for each in node.core.state.users.after(None, 100)] == ["shop"]
    async with running_node(config, []) as node:  # once more: nothing of it was in memory only
        assert node.core.state.cluster_uid == uid


async def test_without_the_flag_it_tells_what_is_known_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, state_hash, uid = await used(tmp_path)
    assert recover(tmp_path, accepted=False) == ExitCode.STOPPED
    said = capsys.readouterr().out
    assert state_hash in said
    assert "nothing was changed" in said
    async with running_node(config, []) as node:
        assert node.core.state.cluster_uid == uid
        assert node.core.log.base.index == 0


async def test_it_goes_on_when_nobody_reads_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, _, uid = await used(tmp_path)
    reading, writing = os.pipe()
    os.close(reading)
    with monkeypatch.context() as patched, contextlib.suppress(BrokenPipeError), os.fdopen(writing, "w", 1) as closed:
        patched.setattr(sys, "stdout", closed)
        assert recover(tmp_path) == ExitCode.STOPPED
    await assert_goes_on(config, uid)


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (command, "append_configuration"),
        (command, "apply_up_to"),
        (command, "delete_join_tokens"),
        (command, "rename_state"),
        (HardState, "become_voter"),
        (command, "cut_front"),
        (DataDirectory, "rename_cluster"),
        (DataDirectory, "finish"),
    ],
)
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
async def test_it_is_finished_wherever_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, done: bool
) -> None:
    config, _, uid = await used(tmp_path)
    inner: Callable[..., Any] = getattr(where, name)

    def die(*arguments: Any) -> None:
        if name == "apply_up_to" and read_unfinished(tmp_path / "data") is None:
            inner(*arguments)  # what is known to be committed, before anything is changed
            return
        if done:
            inner(*arguments)
        raise Interrupted

    with monkeypatch.context() as patched:
        patched.setattr(where, name, die)
        with pytest.raises(Interrupted):
            recover(tmp_path)
    if name != "finish" or not done:
        with pytest.raises(StartupError, match="`keelmqd recover` was interrupted here"):
            Broker.open(config, pytest.fail)
        assert recover(tmp_path) == ExitCode.STOPPED
    await assert_goes_on(config, uid)


async def test_a_node_that_is_alone_stays_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, _, uid = await used(tmp_path)
    command.recover_command(str(tmp_path / "data"), None, accepted=True, segment_bytes=SEGMENT_BYTES)
    assert "is the only voter already" in capsys.readouterr().out
    async with running_node(config, []) as node:
        assert node.core.state.cluster_uid == uid


async def test_a_full_disk_is_not_called_a_damaged_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await used(tmp_path)

    def fail(*_: object) -> None:
        raise DiskFull("write", "log", errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(command, "append_configuration", fail)
    with pytest.raises(StartupError, match="No space left on device") as raised:
        recover(tmp_path)
    assert raised.value.code == ExitCode.DATA_DIR_UNUSABLE


async def test_a_replica_that_differs_is_no_survivor(tmp_path: Path) -> None:
    await used(tmp_path)
    DiffersMark(PosixDisk(), str(tmp_path / "data")).note(Difference(3, 2, records=True))
    with pytest.raises(StartupError, match="differs from the others"):
        recover(tmp_path)
    assert read_unfinished(tmp_path / "data") is None


@pytest.mark.parametrize("command", ["recover", "restore"])
@pytest.mark.parametrize("text", ["4M", "4194304"])
def test_the_size_of_segments_is_written_as_for_a_node(command: str, text: str, tmp_path: Path) -> None:
    given = ["--data-dir", str(tmp_path / "none"), "--segment-bytes", text]
    if command == "restore":
        given += ["--backup", str(tmp_path / "none"), "--node-id", "1", "--peer", "1=127.0.0.1:1=http://127.0.0.1:2"]
    try:
        code = command_line.OFFLINE[command](given)
    except StartupError:
        code = 1
    assert code != 2, "the usage is right, and the directory is not"


def test_a_size_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command_line.OFFLINE["recover"](["--data-dir", "none", "--segment-bytes", "4X"])
    assert "'4X' is no size such as 1G" in capsys.readouterr().err
