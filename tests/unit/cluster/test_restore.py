"""A backup is restored, wherever the command is interrupted; two restores of one file are two clusters."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.broker import Broker
from cluster.process.config import NodeConfig
from cluster.process.data_directory import DataDirectory, read_identity
from cluster.process.exit_codes import ExitCode, StartupError
from cluster.process.offline import restore_command as command
from cluster.security.credentials import hash_of
from store.commands.retention import ExpireMessages
from store.commands.topics import PurgeTopic
from store.commands.users import PutUser, Token
from store.features import FEATURES
from store.index import keys
from store.index.index import Index
from store.log.hard_state import HardState
from store.state.machine import applied_state
from tests.unit.cluster.conftest import START_MS, Node, node_config, running_node
from tests.unit.cluster.test_backup import begin, frames

SEGMENT_BYTES = 1 << 20
PEER = "1=127.0.0.1:1=http://127.0.0.1:2"


class Interrupted(Exception):
    """Raised where the process dies."""


def user(name: str) -> PutUser:
    """Return a command that makes a user with a token, which is its name."""
    return PutUser(name, (), (Token(name, hash_of(name), START_MS, START_MS + 3_600_000),), (), 0)


async def level_is_raised(node: Node) -> bool:
    """Return whether the new cluster has the highest feature level, which it gets soon after its start."""
    return node.core.state.feature_level == FEATURES.maximum


async def backed_up(path: Path, *users: str) -> tuple[Path, str]:
    """Return a backup of a node with one message and the users, and the name of its cluster."""
    async with running_node(node_config(path), []) as node:
        await node.wait(lambda: level_is_raised(node))
        for name in users:
            await node.core.propose(user(name))
        assert (await node.call("PUT", "/v1/topics/orders", {"queues": 1})).status == 201
        payload = {"messages": [{"body": "before", "queue": 0}]}
        assert (await node.call("POST", "/v1/topics/orders/messages", payload)).status == 200
        begun = await begin(node)
        read = await frames(node, f"/v1/backups/{begun['backup_id']}")
        return written(path / "one.backup", read), node.core.state.cluster_uid


def written(file: Path, read: list[bytes]) -> Path:
    file.write_bytes(b"".join(read))
    return file


def exists(data_dir: str) -> bool:
    return Path(data_dir).exists()


def restore(file: Path, config: NodeConfig, data_dir: str | None = None, restore_id: str = "drill") -> int:
    peer = f"{config.node_id}={config.peer_listen}=http://{config.http_listen}"
    return command.restore_command(
        str(file),
        data_dir or config.data_dir,
        config.node_id,
        [peer],
        cluster_id=None,
        restore_id=restore_id,
        segment_bytes=SEGMENT_BYTES,
    )


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (command, "note_unfinished"),
        (command, "remove_copy"),
        (command, "_fill"),
        (command, "append_configuration"),
        (command, "apply_up_to"),
        (command, "delete_join_tokens"),
        (command, "rename_state"),
        (HardState, "become_voter"),
        (DataDirectory, "rename_cluster"),
        (DataDirectory, "finish"),
    ],
)
async def test_it_is_done_again_wherever_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, name: str
) -> None:
    file, uid = await backed_up(tmp_path / "old", "join:4")
    config = node_config(tmp_path)
    inner: Callable[..., Any] = getattr(where, name)

    def die(*arguments: Any) -> None:
        inner(*arguments)
        raise Interrupted

    with monkeypatch.context() as patched:
        patched.setattr(where, name, die)
        with pytest.raises(Interrupted):
            restore(file, config)
    if name != "finish":
        with pytest.raises(StartupError, match="`keelmqd restore` was interrupted here"):
            Broker.open(config, pytest.fail)
        assert restore(file, config) == ExitCode.STOPPED
    with pytest.raises(StartupError, match="is not empty"):
        restore(file, config)
    async with running_node(config, []) as node:
        pulled = (await node.call("GET", "/v1/topics/orders/queues/0/messages?offset=0")).body
        assert [message["body"] for message in pulled["messages"]] == ["before"]
        assert node.core.log.base.index == 2
        assert node.core.state.cluster_uid not in ("", uid)
        assert node.core.state.users.get("join:4") is None


async def test_it_is_done_again_when_the_disk_was_full_at_its_first_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, _ = await backed_up(tmp_path / "old")
    config = node_config(tmp_path)

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(StartupError, match="No space left on device"):
            restore(file, config)
    assert restore(file, config) == ExitCode.STOPPED


async def test_the_name_follows_from_all_that_the_nodes_must_have_in_common(tmp_path: Path) -> None:
    file, uid = await backed_up(tmp_path / "old")
    config = node_config(tmp_path)
    names = []
    for number, restore_id in enumerate(("drill", "drill", "another")):
        place = str(tmp_path / f"data-{number}")
        assert restore(file, config, place, restore_id) == ExitCode.STOPPED
        names.append(read_identity(Path(place)).cluster_uid)
    assert names[0] == names[1]
    assert len({*names, uid}) == 3


async def test_join_tokens_are_not_restored_and_users_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A token that was used up after the backup would be good again, and the secret would be given twice."""
    names = ("join:4", "join:71", "join", "joined", "oidc:join:4", "jo", "k")
    file, _ = await backed_up(tmp_path / "old", *names)
    configs = [node_config(tmp_path / f"node-{number}") for number in range(2)]
    hashes = []
    for number, config in enumerate(configs):
        assert command.restore_command(
            str(file), config.data_dir, 1, [PEER], cluster_id=None, restore_id="drill", segment_bytes=SEGMENT_BYTES
        ) == (ExitCode.STOPPED), number
        assert "used up: join:4, join:71" in capsys.readouterr().out
        index = Index.open(f"{config.data_dir}/index")
        hashes.append(applied_state(index))
        index.close()
    assert hashes[0] == hashes[1]
    async with running_node(configs[0], []) as node:
        users = node.core.state.users
        assert [each.user for each in users.after(None, 100)] == sorted({*names} - {"join:4", "join:71"})
        assert users.of_token(hash_of("join:4")) is None
        assert users.of_token(hash_of("k")) is not None


async def test_a_backup_of_another_format_is_refused_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, _ = await backed_up(tmp_path / "old")
    config = node_config(tmp_path)
    monkeypatch.setattr(command, "INDEX_FORMAT", b"9")
    with pytest.raises(StartupError, match="its state has the format '3', this version reads '9'"):
        restore(file, config)
    assert not exists(config.data_dir)


async def test_a_disk_that_fails_is_not_called_a_mistake_in_the_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, _ = await backed_up(tmp_path / "old")
    config = node_config(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), config.data_dir)

    with monkeypatch.context() as patched:
        patched.setattr(command, "remove_copy", full)
        with pytest.raises(StartupError, match=r"data_dir .*No space left.* half restored") as refused:
            restore(file, config)
    assert refused.value.code == ExitCode.DATA_DIR_UNUSABLE
    with pytest.raises(StartupError, match=r"backup .*: Is a directory") as refused:
        restore(tmp_path, config)
    assert refused.value.code == ExitCode.BAD_CONFIG
    assert restore(file, config) == ExitCode.STOPPED


async def test_limits_purges_and_counted_bytes_go_on_as_where_they_were_backed_up(tmp_path: Path) -> None:
    """The backup is made while rows of a purge are still to be removed, and a topic has more bytes than it keeps."""
    every = tuple(("orders", queue) for queue in range(2))
    never = {"retention_check_ms": 3_600_000}  # so that the test alone removes anything

    def held(node: Node) -> tuple[object, ...]:
        state = node.core.state
        rows = state._index.scan(keys.RETENTION, keys.after(keys.RETENTION))
        kept = (state.kept_bytes("orders"), state.queue_ranges("orders"), state.settings)
        exceeding = [each for each in state.exceeding_topics(100) if each is not None]
        return (*kept, exceeding, state.has_expired_others(START_MS), dict(rows))

    async def remove(node: Node) -> list[object]:
        commands = (
            ExpireMessages(every, 3, node.core.state.applied_index + 1),
            PurgeTopic("orders", 1),
            ExpireMessages((), 100),
        )
        return [(await node.core.propose(command)).result for command in commands]

    source, target = tmp_path / "source", tmp_path / "target"
    async with running_node(node_config(source, **never), []) as node:
        await node.wait(lambda: level_is_raised(node))
        assert (await node.call("PUT", "/v1/topics/orders", {"queues": 2, "retention_bytes": 300})).status == 201
        assert (await node.call("PUT", "/v1/cluster/settings", {"log_retention_bytes": 1 << 20})).status == 200
        for number in range(20):
            node.clock.now_ms += 1
            payload = {"messages": [{"body": "x" * 90, "queue": number % 2}]}
            assert (await node.call("POST", "/v1/topics/orders/messages", payload)).status == 200
            if number == 8:
                assert (await node.call("POST", "/v1/topics/orders/purge", {"queue": 0})).status == 200
        assert node.core.state.has_expired_others(START_MS)
        before = held(node)
        begun = await begin(node)
        file = written(source / "one.backup", await frames(node, f"/v1/backups/{begun['backup_id']}"))
        went, left = await remove(node), held(node)
    config = node_config(target, **never)
    assert restore(file, config) == ExitCode.STOPPED
    async with running_node(config, []) as node:
        assert held(node) == before
        assert await remove(node) == went
        assert held(node)[:-1] == left[:-1]  # without the times of the log, whose positions differ


def test_an_object_store_is_left_to_the_command_for_it(tmp_path: Path) -> None:
    place = (str(tmp_path / "data"), 1, [PEER])
    with pytest.raises(StartupError, match="keelmq backup fetch") as caught:
        command.restore_command("s3://a/b", *place, cluster_id=None, restore_id=None, segment_bytes=SEGMENT_BYTES)
    assert (caught.value.code, (tmp_path / "data").exists()) == (ExitCode.BAD_CONFIG, False)


async def test_a_backup_is_of_its_beginning_whatever_is_written_while_it_is_read(tmp_path: Path) -> None:
    """Also when it is written before the first rows are read, or sorts behind all others."""
    (tmp_path / "old").mkdir()
    fatal: list[str] = []
    async with running_node(node_config(tmp_path / "old"), fatal) as node:
        await node.wait(lambda: level_is_raised(node))
        begun = await begin(node)
        path, read = f"/v1/backups/{begun['backup_id']}", list[bytes]()
        for number in range(2):  # the frame of the beginning, and one of the state
            assert (await node.call("PUT", f"/v1/topics/z{number}", {"queues": 1})).status == 201
            payload = {"messages": [{"body": "later", "queue": 0}]}
            assert (await node.call("POST", f"/v1/topics/z{number}/messages", payload)).status == 200
            read.append((await node.call("GET", f"{path}?frame={number}")).body)
        read += await frames(node, path, len(read))
    assert not fatal
    assert restore(written(tmp_path / "one.backup", read), node_config(tmp_path)) == 0
    async with running_node(node_config(tmp_path), []) as node:
        assert (await node.call("GET", "/v1/topics/z0")).status == 404
