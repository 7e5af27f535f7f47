"""Our overrides rest on one exact version of PySyncObj, which is pinned."""

import pytest
from pysyncobj import SyncObj
from pysyncobj import syncobj as library

from raft.errors import SafetyViolation
from raft.library import PRIVATE_NAMES, VERSION, check_library, library_configuration


def test_installed_library_is_the_pinned_one() -> None:
    check_library()


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "VERSION", "0.3.18")
    with pytest.raises(SafetyViolation, match=f"PySyncObj {VERSION} is required, 0.3.18"):
        check_library()


def test_a_renamed_private_member_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(SyncObj, "_SyncObj__applyLogEntries")
    with pytest.raises(SafetyViolation, match="_SyncObj__applyLogEntries"):
        check_library()


def test_private_names_are_used_in_one_module_only() -> None:
    from pathlib import Path

    import raft

    users = {
        path.name
        for path in Path(raft.__path__[0]).rglob("*.py")
        if any(name in path.read_text() for name in PRIVATE_NAMES)
    }
    assert users == {"library.py"}


def test_unsafe_paths_are_configured_away() -> None:
    conf = library_configuration(election_timeout_ms=1000, heartbeat_ms=100, max_message_bytes=1 << 20)
    assert not conf.autoTick
    assert not conf.dynamicMembershipChange
    assert conf.fullDumpFile is None
    assert conf.journalFile is None
    assert conf.leaderFallbackTimeout == 2.0
