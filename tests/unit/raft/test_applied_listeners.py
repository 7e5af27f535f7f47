"""Every listener hears of each applied entry, whatever the other listeners do."""

import pytest

from raft.applied_listeners import AppliedListeners


def test_an_error_of_one_keeps_nobody_from_hearing(caplog: pytest.LogCaptureFixture) -> None:
    listeners = AppliedListeners()
    heard: list[str] = []

    is_broken = True

    def fails() -> None:
        if is_broken:
            raise KeyError("a bug")

    for callback in (lambda: heard.append("first"), fails, lambda: heard.append("last")):
        listeners.add(callback)
    listeners.tell()
    assert heard == ["first", "last"]
    listeners.tell()
    assert ["a bug" in str(record.exc_info) for record in caplog.records] == [True], "logged once"
    is_broken = False
    listeners.tell()
    is_broken = True
    listeners.tell()
    assert len(caplog.records) == 2
