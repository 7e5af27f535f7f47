"""Names that nobody answers for keep no other name waiting."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.process.name_lookups import LOOKUPS_MAX, NameLookups
from tests.patience import PATIENCE_S
from tests.unit.raft.test_transport import until


class SilentNames:
    """A name service that does not answer for names that begin with `hang` until it is released."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._released = threading.Event()

    def release(self) -> None:
        self._released.set()

    def getaddrinfo(self, host: str, *_: Any, **__: Any) -> list[Any]:
        self.asked.append(host)
        if host.startswith("hang"):
            self._released.wait()
        if host == "nobody":
            raise socket.gaierror("no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", 0))]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentNames]:
    service = SilentNames()
    monkeypatch.setattr(socket, "getaddrinfo", service.getaddrinfo)
    yield service
    service.release()


async def test_names_that_hang_keep_no_other_name_waiting(names: SilentNames) -> None:
    lookups = NameLookups()
    hanging = [asyncio.ensure_future(lookups.resolve(f"hang{number}", 443)) for number in range(20)]
    await until(lambda: len(names.asked) == 20)
    (found,) = await lookups.resolve("there", 443)
    assert (found["host"], found["port"], found["hostname"]) == ("192.0.2.7", 443, "there")
    names.release()
    assert len(await asyncio.gather(*hanging)) == 20


async def test_a_name_is_looked_up_once_at_a_time(names: SilentNames) -> None:
    lookups = NameLookups()
    first, second = (asyncio.ensure_future(lookups.resolve("hang", 443)) for _ in range(2))
    await until(lambda: names.asked == ["hang"])
    first.cancel()
    names.release()
    assert (await second)[0]["host"] == "192.0.2.7"
    assert names.asked == ["hang"]


async def test_more_names_than_threads_are_refused(names: SilentNames) -> None:
    lookups = NameLookups()
    hanging = [asyncio.ensure_future(lookups.resolve(f"hang{number}", 443)) for number in range(LOOKUPS_MAX)]
    await until(lambda: len(names.asked) == LOOKUPS_MAX)
    with pytest.raises(OSError, match="other names are being looked up"):
        await lookups.resolve("there", 443)
    names.release()
    await asyncio.gather(*hanging)
    with pytest.raises(socket.gaierror, match="no such name"):
        await lookups.resolve("nobody", 443)
    assert await lookups.resolve("there", 443)


async def test_a_lookup_for_which_there_is_no_thread_fails_and_the_next_one_begins(
    names: SilentNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups = NameLookups()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="there cannot be looked up: can't start new thread"):
            await lookups.resolve("there", 443)
    async with asyncio.timeout(PATIENCE_S):
        assert await lookups.resolve("there", 443)
