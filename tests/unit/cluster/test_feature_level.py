"""The data directory names the level of its log for builds that must not open anything of it."""

import json
from pathlib import Path

import pytest

from cluster.process.data_directory import FEATURE_LEVEL_FILE, DataDirectory, Identity
from cluster.process.exit_codes import ExitCode, StartupError
from store.features import FEATURES, LevelOf

IDENTITY = Identity("shop", 1)
ABOVE = FEATURES.maximum + 1


def test_a_build_that_is_too_old_opens_nothing(tmp_path: Path) -> None:
    opened = DataDirectory.open(tmp_path, IDENTITY)
    opened.note_feature_level(LevelOf(ABOVE, "9.1.0"))
    opened.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(StartupError, match=r"which KeelMQ 9\.1\.0 and later know; this is KeelMQ") as caught:
        DataDirectory.open(tmp_path, IDENTITY)
    assert caught.value.code == ExitCode.WRONG_VERSION
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_first_level_needs_no_file(tmp_path: Path) -> None:
    opened = DataDirectory.open(tmp_path, IDENTITY)
    opened.note_feature_level(LevelOf(1, ""))
    assert not (tmp_path / FEATURE_LEVEL_FILE).exists()
    opened.note_feature_level(LevelOf(ABOVE, "9.1.0"))
    assert json.loads((tmp_path / FEATURE_LEVEL_FILE).read_bytes()) == {"level": ABOVE, "version": "9.1.0"}
    opened.note_feature_level(LevelOf(1, ""))
    opened.close()
    DataDirectory.open(tmp_path, IDENTITY).close()


def test_later_versions_may_say_more(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path, IDENTITY).close()
    (tmp_path / FEATURE_LEVEL_FILE).write_text('{"level": 1, "version": "", "and": "more"}')
    DataDirectory.open(tmp_path, IDENTITY).close()


def test_a_damaged_file_is_not_guessed_at(tmp_path: Path) -> None:
    DataDirectory.open(tmp_path, IDENTITY).close()
    (tmp_path / FEATURE_LEVEL_FILE).write_text("{")
    with pytest.raises(StartupError, match="cannot be read") as caught:
        DataDirectory.open(tmp_path, IDENTITY)
    assert caught.value.code == ExitCode.DATA_DIR_UNUSABLE
