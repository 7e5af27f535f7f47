"""The file of a backup: it replaces nothing, and two that make the same one do not touch each other's."""

from pathlib import Path

import pytest

from keelmq.cli.operations.backup import NewFile


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
