"""Work of the store that takes long is begun in a thread, where one can be started."""

import threading

import pytest

from cluster.node_store import begin_in_thread


def test_without_a_thread_what_takes_long_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def starts_none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done: list[str] = []
    monkeypatch.setattr(threading.Thread, "start", starts_none)
    begin_in_thread(lambda: done.append("it"))()
    assert done == ["it"]
