"""The file of a backup: it replaces nothing, and two that make the same one do not touch each other's."""

import errno
import os
import resource
from pathlib import Path

import pytest

from keelmq.cli.operations.backup_files import FilePlace, NewFile
from keelmq.errors import InvalidRequest


def test_the_first_that_is_whole_gets_the_name(tmp_path: Path) -> None:
    path = tmp_path / "shop.backup"
    with NewFile(path) as first, NewFile(path) as second:
        first.write(b"first")
        second.write(b"second, longer")
        first.publish()
        assert path.read_bytes() == b"first"
        with pytest.raises(FileExistsError):
            second.publish()
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_left_of_one_that_is_given_up(tmp_path: Path) -> None:
    with NewFile(tmp_path / "shop.backup") as file:
        file.write(b"half")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_of_one_that_does_not_fit_the_disk(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="too large"), NewFile(tmp_path / "shop.backup") as file:
            file.write(b"more than fits")  # buffered: it fails when the file is closed
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_what_killed_backups_have_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    left = tmp_path / "shop-7-20260102T030405Z.backup.0123abcd.partial"
    kept = [tmp_path / name for name in ("shop.backup", "letters.0123abcd.partial", "shop.backup.partial")]
    for path in (left, *kept):
        path.write_bytes(b"half")
    with NewFile(tmp_path / "bank.backup") as file:
        FilePlace(str(tmp_path)).remove_left()
        assert not left.exists()
        file.publish()  # one that is being written is no such file
    assert sorted(tmp_path.iterdir()) == sorted([*kept, tmp_path / "bank.backup"])


def test_a_backup_with_a_name_removes_what_is_left_of_that_name_only(tmp_path: Path) -> None:
    left, other = tmp_path / "one.0123abcd.partial", tmp_path / "two.0123abcd.partial"
    for path in (left, other):
        path.write_bytes(b"half")
    FilePlace(str(tmp_path / "one")).remove_left()
    assert list(tmp_path.iterdir()) == [other]


def test_an_empty_place_is_not_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequest, match="empty"):
        FilePlace("").prepare()


@pytest.mark.parametrize("name", ["", "shop.backup"])
def test_a_file_system_without_hard_links_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def link(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")  # as on FAT

    FilePlace(str(tmp_path / name)).prepare()
    monkeypatch.setattr(os, "link", link)
    with pytest.raises(InvalidRequest, match="a file system without hard links"):
        FilePlace(str(tmp_path / name)).prepare()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_read_hides_no_other_backup(tmp_path: Path) -> None:
    """Another program removes old backups, or makes a directory of that name, while they are listed."""
    (tmp_path / "a.backup").mkdir()
    (tmp_path / "b.backup").write_bytes(b"no backup")
    (tmp_path / "c.backup").symlink_to(tmp_path / "gone")
    found = FilePlace(str(tmp_path)).found()
    assert [each["file"] for each in found] == ["a.backup", "b.backup", "c.backup"]
    assert [each["error"] for each in found[::2]] == ["Is a directory", "No such file or directory"]
    assert [each["bytes"] for each in found] == [None, 9, None]
