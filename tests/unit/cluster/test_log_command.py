"""`keelmqd log` reads what it may read only, and does not call a log damaged that it cannot read."""

import errno
import os
from pathlib import Path

import pytest

from cluster.process.exit_codes import ExitCode, StartupError
from cluster.process.offline.log_command import LOG_ACTIONS, log_command
from store.log.commit_log import CommitLog
from store.log.disk import PosixDisk


@pytest.fixture
def data_dir(tmp_path: Path) -> str:
    log = CommitLog.open(PosixDisk(), str(tmp_path / "log"), segment_bytes=1 << 20, cache_bytes=1 << 20)
    log.close()
    return str(tmp_path)


def refuse(monkeypatch: pytest.MonkeyPatch, flags_refused: int, error: int) -> None:
    """Have the operating system open no file with these flags."""
    inner = os.open

    def opened(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_ACCMODE == flags_refused and not flags & os.O_DIRECTORY:
            raise OSError(error, os.strerror(error))
        return inner(path, flags, mode)

    monkeypatch.setattr(os, "open", opened)


@pytest.mark.parametrize("action", LOG_ACTIONS)
def test_a_log_is_read_where_nothing_can_be_written(
    data_dir: str, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    refuse(monkeypatch, os.O_RDWR, errno.EROFS)
    assert log_command(action, data_dir, 1) == ExitCode.STOPPED


@pytest.mark.parametrize("action", LOG_ACTIONS)
def test_a_log_that_cannot_be_read_is_not_called_damaged(
    data_dir: str, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    for flags in (os.O_RDWR, os.O_RDONLY):
        refuse(monkeypatch, flags, errno.EACCES)
    with pytest.raises(StartupError, match="Permission denied") as raised:
        log_command(action, data_dir, 1)
    assert raised.value.code == ExitCode.DATA_DIR_UNUSABLE


def test_a_directory_that_may_not_be_entered_is_named(data_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stat(path: Path, **_: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", stat)
        with pytest.raises(StartupError, match=f"{data_dir}/log: Permission denied") as raised:
            log_command("verify", data_dir, 1)
    assert raised.value.code == ExitCode.DATA_DIR_UNUSABLE
