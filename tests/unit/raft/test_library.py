"""Our overrides rest on one exact version of PySyncObj, which is pinned."""

import re
from pathlib import Path

import pytest
from pysyncobj import SyncObj
from pysyncobj import syncobj as library
from pysyncobj.journal import Journal
from pysyncobj.transport import Transport

import raft.library as ours
from raft.errors import SafetyViolation
from raft.journal import Journal as OurJournal
from raft.library import PRIVATE_NAMES, VERSION, PeerTransport, check_library, library_configuration

PRIVATE_NAME = r"\b(_SyncObj__\w+|_on[A-Z]\w+|setOn\w+Callback|_checkCommandsToApply)\b"
SOURCES = sorted(Path(ours.__file__).parent.rglob("*.py"))


def test_installed_library_is_the_pinned_one() -> None:
    check_library()


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "VERSION", "0.3.18")
    with pytest.raises(SafetyViolation, match=f"PySyncObj {VERSION} is required, 0.3.18"):
        check_library()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (SyncObj, "_SyncObj__applyLogEntries"),
        (SyncObj, "_onTick"),
        (Transport, "_onNodeConnected"),
        (Transport, "setOnMessageReceivedCallback"),
        (Journal, "_destroy"),
        (Journal, "setCurrentTerm"),
    ],
)
def test_a_renamed_private_member_is_noticed(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    monkeypatch.delattr(owner, name)
    with pytest.raises(SafetyViolation, match=name):
        check_library()


@pytest.mark.parametrize("name", ["createJournal", "monotonicTime", "PIPE_NOTIFIER_ENABLED"])
def test_a_renamed_name_of_the_module_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Some are replaced when ours is imported, so the module would have them in any case."""
    monkeypatch.setattr(ours, "MODULE_NAMES", ours.MODULE_NAMES - {name})
    with pytest.raises(SafetyViolation, match=name):
        check_library()


def test_private_names_are_used_in_one_module_only() -> None:
    names = {*PRIVATE_NAMES[SyncObj], *PRIVATE_NAMES[Transport]} - {"send", "destroy"}  # common words
    users = {path.name for path in SOURCES if any(name in path.read_text() for name in names)}
    assert users == {"library.py"}
    assert {
        path.name for path in SOURCES if "import pysyncobj" in path.read_text() or "from pysyncobj" in path.read_text()
    } == {
        "library.py",
        "journal.py",
    }


def used_of(text: str) -> set[str]:
    """Return the private names of the library that the text of a module uses outside the list of them."""
    start = text.index("PRIVATE_NAMES: Final")
    end = text.index("}\n", start)
    assert "_SyncObj__raftState" in text[start:end], "the list"
    return set(re.findall(PRIVATE_NAME, text[:start] + text[end:]))


def test_every_private_name_that_is_used_is_in_the_list() -> None:
    text = Path(ours.__file__).read_text()
    overridden = {
        name
        for owner in (PeerTransport, ours._PeerLink)
        for name in vars(owner)
        if name in vars(Transport) and not name.startswith("__")
    }
    assert used_of(text) | overridden == {*PRIVATE_NAMES[SyncObj], *PRIVATE_NAMES[Transport]}
    replaced = set(re.findall(r"\blibrary\.(\w+) = ", text))
    assert replaced == set(PRIVATE_NAMES[library])
    overridden = {name for name in vars(OurJournal) if name in vars(Journal) and not name.startswith("__")}
    assert overridden == set(PRIVATE_NAMES[Journal])


def test_a_name_in_the_list_alone_does_not_count_as_used() -> None:
    text = Path(ours.__file__).read_text()
    listed = text.replace('"_SyncObj__raftState",', '"_SyncObj__raftState", "_SyncObj__raftNextIndex",', 1)
    assert listed != text
    assert used_of(listed) == used_of(text)


def test_unsafe_paths_are_configured_away() -> None:
    conf = library_configuration(election_timeout_ms=1000, heartbeat_ms=100, max_message_bytes=1 << 20)
    assert not conf.autoTick
    assert not conf.dynamicMembershipChange
    assert conf.fullDumpFile is None
    assert conf.journalFile is None
    assert conf.leaderFallbackTimeout == 2.0
