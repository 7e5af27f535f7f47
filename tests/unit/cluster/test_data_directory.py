"""The data directory belongs to one node for ever, and to one process at a time."""

import json
from pathlib import Path

import pytest

from cluster import main
from cluster.process.data_directory import IDENTITY_FILE, DataDirectory, Identity
from cluster.process.exit_codes import ExitCode, StartupError
from cluster.service_manager.supervisor import STARTS_MAX, STARTS_WITHIN_S
from tests.descriptors import without_descriptors

MINE = Identity("shop", 1)


def refused(path: Path, identity: Identity = MINE) -> str:
    with pytest.raises(StartupError) as caught:
        DataDirectory.open(path, identity)
    assert caught.value.code == ExitCode.DATA_DIR_UNUSABLE
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_it_is_claimed_once_and_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "data"
    DataDirectory.open(path, MINE).close()
    DataDirectory.open(path, MINE).close()
    stored = json.loads((path / IDENTITY_FILE).read_text())
    assert (stored["cluster_id"], stored["node_id"]) == ("shop", 1)


@pytest.mark.parametrize("other", [Identity("shop", 2), Identity("bank", 1)])
def test_another_node_is_refused(tmp_path: Path, other: Identity) -> None:
    DataDirectory.open(tmp_path, MINE).close()
    assert "belongs to node 1 of cluster 'shop'" in refused(tmp_path, other)
    DataDirectory.open(tmp_path, MINE).close()


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    held = DataDirectory.open(tmp_path, MINE)
    assert "in use by another process" in refused(tmp_path)
    held.close()
    DataDirectory.open(tmp_path, MINE).close()


def test_a_log_without_identity_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    assert "no identity file" in refused(tmp_path)
    assert not (tmp_path / IDENTITY_FILE).exists()


@pytest.mark.parametrize("text", ["", "{", '{"cluster_id":"shop"}', '{"cluster_id":"shop","node_id":1,"more":1}'])
def test_a_damaged_identity_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / IDENTITY_FILE).write_text(text)
    assert "cannot be read" in refused(tmp_path)


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file")
    refused(tmp_path / "file" / "below")


def test_a_name_that_could_not_be_noted_is_noted_later(tmp_path: Path) -> None:
    """A full disk, for example, refuses the write. Nothing is remembered that is not on disk."""
    directory = DataDirectory.open(tmp_path, MINE)
    temporary = tmp_path / f"{IDENTITY_FILE}.new"
    temporary.mkdir()
    with pytest.raises(StartupError):
        directory.belong_to("c1")
    assert directory.cluster_uid == ""
    temporary.rmdir()
    directory.belong_to("c1")
    directory.close()
    assert json.loads((tmp_path / IDENTITY_FILE).read_text())["cluster_uid"] == "c1"


def test_a_machine_that_opens_nothing_now_is_no_reason_to_give_up(tmp_path: Path) -> None:
    """Service managers start the node again after this exit code."""
    DataDirectory.open(tmp_path, MINE).close()
    with without_descriptors(), pytest.raises(StartupError, match="Too many open files") as caught:
        DataDirectory.open(tmp_path, MINE)
    assert caught.value.code == ExitCode.DISK_REFUSES
    with without_descriptors(left=1), pytest.raises(StartupError, match="cannot be read") as caught:
        DataDirectory.open(tmp_path, MINE)
    assert caught.value.code == ExitCode.DISK_REFUSES
    assert "backup" not in str(caught.value)
    DataDirectory.open(tmp_path, MINE).close()


def test_a_managed_node_waits_before_it_ends_for_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten starts in ten minutes are allowed, and a disk may stay full for longer."""
    waited: list[str] = []

    def refuse(_: object) -> int:
        raise StartupError(ExitCode.DISK_REFUSES, "no room")

    monkeypatch.setattr(main, "run", refuse)
    monkeypatch.setattr("time.sleep", lambda _: waited.append(capsys.readouterr().err))
    assert main.command([]) == ExitCode.DISK_REFUSES
    assert not waited
    capsys.readouterr()
    monkeypatch.setenv("NOTIFY_SOCKET", "@nobody")
    assert main.command([]) == ExitCode.DISK_REFUSES
    assert waited == ["keelmqd: no room\n"]
    assert main.DISK_PAUSE_S * STARTS_MAX >= STARTS_WITHIN_S
