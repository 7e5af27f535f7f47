"""The audit's files: rotation, torn lines, full disks, and pages that read them backwards in bounded pieces."""

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cluster.audit.page import PIECES_MAX, Page, read_page
from cluster.audit.record import TEXT_CHARACTERS_MAX, AuditFilter, AuditRecord, cut, line_of
from cluster.audit.stream import CLOCK_STEP_MS, FILES, NAMES, PIECE_BYTES, AuditStream, Name, Place
from cluster.core.audit_trail import BATCH_RECORDS_MAX, streams_in
from cluster.process.credential_options import AUDIT_BYTES_MIN
from store.log.disk import PosixDisk
from store.log.errors import DiskError, DiskFull

T = TypeVar("T")
FILE_BYTES_MAX = 4_096


def record(number: int, **changes: Any) -> AuditRecord:
    given = {
        "at_ms": number,
        "principal": "ann",
        "address": "127.0.0.1",
        "method": "PUT",
        "path": f"/v1/topics/t{number}",
        "route": "/v1/topics/{topic}",
        "outcome": "done",
        "request_id": f"r-{number}",
        **changes,
    }
    return AuditRecord(**given)


def stream(path: Path, name: Name = "calls", file_bytes_max: int = FILE_BYTES_MAX) -> AuditStream:
    return AuditStream(PosixDisk(), str(path), name, file_bytes_max)


class Steps:
    """Carries out steps at once, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, step: Callable[[], T]) -> T:
        self.count += 1
        return step()


async def page(
    streams: dict[Name, AuditStream],
    limit: int = 500,
    after: str | None = None,
    steps: Steps | None = None,
    **wanted: Any,
) -> Page:
    return await read_page(streams, AuditFilter(**wanted), limit, after, steps or Steps())


def both(path: Path, file_bytes_max: int = FILE_BYTES_MAX) -> dict[Name, AuditStream]:
    return {name: stream(path, name, file_bytes_max) for name in NAMES}


def times(found: Page) -> list[int]:
    return [each.record.at_ms for each in found.records]


async def all_pages(streams: dict[Name, AuditStream], limit: int, **wanted: Any) -> list[int]:
    found: list[int] = []
    after: str | None = None
    while True:
        one = await page(streams, limit, after, **wanted)
        assert len(one.records) <= limit
        found += times(one)
        if one.next is None:
            return found
        after = one.next


def files(path: Path) -> list[Path]:
    return sorted(path.glob("calls-*"))


def append_each(to: AuditStream, records: Sequence[AuditRecord]) -> None:
    for each in records:
        to.append([each])


async def test_the_newest_record_of_all_streams_comes_first(tmp_path: Path) -> None:
    streams = both(tmp_path)
    streams["calls"].append([record(1), record(4)])
    streams["denied"].append([record(2), record(3), record(5)])
    found = await page(streams)
    assert times(found) == [5, 4, 3, 2, 1]
    assert [each.id.partition("-")[0] for each in found.records] == ["denied", "calls", "denied", "denied", "calls"]
    assert (found.next, found.unreadable) == (None, 0)


async def test_nothing_is_there_before_the_first_record(tmp_path: Path) -> None:
    assert await page(both(tmp_path / "new")) == Page([], None, 0)


@pytest.mark.parametrize("limit", [1, 2, 7, 100])
async def test_pages_go_on_where_the_one_before_ended(tmp_path: Path, limit: int) -> None:
    streams = both(tmp_path)
    append_each(streams["calls"], [record(number) for number in range(0, 40, 2)])
    append_each(streams["denied"], [record(number) for number in range(1, 40, 2)])
    assert await all_pages(streams, limit) == list(reversed(range(40)))


async def test_records_that_come_meanwhile_move_no_page(tmp_path: Path) -> None:
    streams = both(tmp_path)
    append_each(streams["calls"], [record(number) for number in range(10)])
    first = await page(streams, 4)
    append_each(streams["calls"], [record(number) for number in range(10, 20)])
    assert times(first) + times(await page(streams, 500, first.next)) == list(reversed(range(10)))


async def test_a_page_goes_on_at_a_node_that_was_started_again(tmp_path: Path) -> None:
    former = both(tmp_path)
    append_each(former["calls"], [record(number) for number in range(10)])
    first = await page(former, 4)
    assert times(await page(both(tmp_path), 500, first.next)) == [5, 4, 3, 2, 1, 0]


async def test_the_oldest_file_goes_when_a_new_one_begins(tmp_path: Path) -> None:
    streams = both(tmp_path)
    append_each(streams["calls"], [record(number) for number in range(400)])
    kept_files = files(tmp_path)
    assert len(kept_files) == FILES
    assert all(file.stat().st_size <= FILE_BYTES_MAX for file in kept_files)
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in kept_files)
    kept = await all_pages(streams, 7)
    assert kept == list(range(399, kept[-1] - 1, -1)), "all that is kept, without a gap"
    assert kept[-1] > 0
    assert sum(len(line_of(record(number))) for number in kept) == sum(file.stat().st_size for file in kept_files)


async def test_a_page_whose_place_was_removed_ends(tmp_path: Path) -> None:
    streams = both(tmp_path)
    streams["calls"].append([record(0)])
    streams["calls"].append([record(1)])
    first = await page(streams, 1)
    assert first.next is not None
    append_each(streams["calls"], [record(number) for number in range(2, 400)])
    assert await page(streams, 10, first.next) == Page([], None, 0)


async def test_a_stream_goes_on_behind_its_records_when_it_is_opened_again(tmp_path: Path) -> None:
    former = stream(tmp_path)
    former.append([record(1)])
    former.close()
    append_each(stream(tmp_path), [record(2)])
    assert times(await page(both(tmp_path))) == [2, 1]
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("torn", [b"{", b'{"at_ms":2,"princ', line_of(record(2))[:-1], b"\xff" * 3])
async def test_a_line_that_a_kill_cut_short_is_removed(tmp_path: Path, torn: bytes) -> None:
    former = stream(tmp_path)
    former.append([record(1)])
    (file,) = files(tmp_path)
    with file.open("ab") as opened:
        opened.write(torn)
    streams = both(tmp_path)
    streams["calls"].append([record(3)])
    found = await page(streams)
    assert (times(found), found.unreadable) == ([3, 1], 0)
    assert file.read_bytes() == line_of(record(1)) + line_of(record(3))


async def test_a_file_that_holds_no_whole_line_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "calls-00000007.jsonl").write_bytes(b"x" * 3 * PIECE_BYTES)
    streams = both(tmp_path)
    streams["calls"].append([record(1)])
    assert times(await page(streams)) == [1]


async def test_damaged_lines_are_passed_by_and_counted(tmp_path: Path) -> None:
    lines = [line_of(record(1)), b"not a record\n", b"{}\n", b"\x00\n", b"[" * 5_000 + b"\n", line_of(record(2))]
    (tmp_path / "calls-00000001.jsonl").write_bytes(b"".join(lines))
    found = await page(both(tmp_path))
    assert (times(found), found.unreadable) == ([2, 1], 4)


async def test_a_line_that_nobody_wrote_is_passed_by(tmp_path: Path) -> None:
    data = line_of(record(1)) + b"x" * 3 * PIECE_BYTES + b"\n" + line_of(record(2))
    (tmp_path / "calls-00000001.jsonl").write_bytes(data)
    (tmp_path / "calls-00000002.jsonl").write_bytes(line_of(record(3)))
    found = await page(both(tmp_path))
    assert times(found) == [3, 2, 1]
    assert found.unreadable > 0


async def test_other_files_of_the_directory_are_left_alone(tmp_path: Path) -> None:
    for name in ("calls-1.jsonl", "calls-00000001.jsonl.gz", "notes"):
        (tmp_path / name).write_text("x")
    append_each(stream(tmp_path), [record(number) for number in range(400)])
    assert all((tmp_path / name).read_text() == "x" for name in ("calls-1.jsonl", "calls-00000001.jsonl.gz", "notes"))


class FullDisk:
    """Lets the disk take `bytes_left` more bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, bytes_left: int = 0) -> None:
        self.bytes_left: float = bytes_left
        self._pwrite = os.pwrite
        monkeypatch.setattr("store.log.disk.os.pwrite", self)

    def __call__(self, descriptor: int, data: Any, position: int) -> int:
        room = int(min(len(data), self.bytes_left))
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.bytes_left -= room
        return self._pwrite(descriptor, bytes(data)[:room], position)


@pytest.mark.parametrize("bytes_left", [0, 1, 50])
async def test_what_a_full_disk_does_not_take_leaves_no_part_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_left: int
) -> None:
    streams = both(tmp_path)
    streams["calls"].append([record(1)])
    disk = FullDisk(monkeypatch, bytes_left)
    with pytest.raises(DiskFull):
        streams["calls"].append([record(2), record(3)])
    found = await page(streams)
    assert (times(found), found.unreadable) == ([1], 0)
    disk.bytes_left = float("inf")
    streams["calls"].append([record(4)])
    assert (tmp_path / "calls-00000001.jsonl").read_bytes() == line_of(record(1)) + line_of(record(4))


async def test_a_file_that_cannot_be_begun_is_begun_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = both(tmp_path, file_bytes_max=1)
    append_each(streams["calls"], [record(number) for number in range(FILES)])
    with monkeypatch.context() as patch:

        def refused(*_: object, **__: object) -> None:
            raise DiskError("open", "calls", errno.EIO, "Input/output error")

        patch.setattr(PosixDisk, "open", refused)
        with pytest.raises(DiskError):
            streams["calls"].append([record(FILES)])
    streams["calls"].append([record(FILES + 1)])
    assert await all_pages(streams, 10) == [FILES + 1, *reversed(range(1, FILES))]


async def test_a_directory_that_cannot_be_made_is_told_and_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = both(tmp_path / "audit")
    with monkeypatch.context() as patch:

        def refused(*_: object) -> None:
            raise DiskError("make directory", "audit", errno.EROFS, "Read-only file system")

        patch.setattr(PosixDisk, "make_directory", refused)
        with pytest.raises(DiskError):
            streams["calls"].append([record(1)])
        found = await page(streams)
        assert (found.records, found.next, found.unreadable) == ([], None, 2)
    streams["calls"].append([record(2)])
    assert times(await page(streams)) == [2]


async def test_a_file_that_is_gone_or_cannot_be_read_hides_no_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = both(tmp_path, file_bytes_max=1)
    append_each(streams["calls"], [record(1), record(2), record(3)])
    os.unlink(tmp_path / "calls-00000002.jsonl")
    assert times(await page(streams)) == [3, 1]

    def damaged(*_: object) -> bytes:
        raise DiskError("read", "calls", errno.EIO, "Input/output error")

    monkeypatch.setattr("store.log.disk.PosixFile.pread", damaged)
    found = await page(streams)
    assert (found.records, found.unreadable) == ([], 2)


FILTERED = [
    record(1, principal="bob"),
    record(2, outcome="failed", code="topic_exists"),
    record(3, action="admin", method="DELETE", path="/v1/users/bob"),
    record(4, request_id="looked-for"),
]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, [4, 3, 2, 1]),
        ({"principal": "bob"}, [1]),
        ({"principal": "bo"}, []),
        ({"outcome": "failed"}, [2]),
        ({"action": "admin"}, [3]),
        ({"route": "DELETE /v1/users"}, [3]),
        ({"route": "topics/t2"}, [2]),
        ({"request_id": "looked-for"}, [4]),
        ({"since_ms": 3}, [4, 3]),
        ({"until_ms": 3}, [2, 1]),
        ({"since_ms": 2, "until_ms": 4}, [3, 2]),
        ({"since_ms": 9}, []),
        ({"principal": "ann", "outcome": "done", "route": "PUT"}, [4]),
    ],
)
async def test_records_are_filtered(tmp_path: Path, wanted: dict[str, Any], expected: list[int]) -> None:
    streams = both(tmp_path)
    streams["calls"].append(FILTERED)
    assert times(await page(streams, **wanted)) == expected
    assert await all_pages(streams, 1, **wanted) == expected


async def test_a_search_since_a_time_reads_no_more_than_that_but_for_a_clock_that_was_put_back(tmp_path: Path) -> None:
    streams = both(tmp_path, file_bytes_max=1 << 20)
    day_ms = 86_400_000
    old = [record(number, detail="x" * TEXT_CHARACTERS_MAX) for number in range(1_000)]
    for begin in range(0, len(old), BATCH_RECORDS_MAX):
        streams["calls"].append(old[begin : begin + BATCH_RECORDS_MAX])
    streams["calls"].append([record(day_ms + 5), record(day_ms - CLOCK_STEP_MS + 6), record(day_ms + 7)])
    steps = Steps()
    found = await page(streams, steps=steps, since_ms=day_ms)
    assert (times(found), found.next) == ([day_ms + 7, day_ms + 5], None)
    assert steps.count == 2, "one piece of each stream"


async def test_a_page_reads_a_bounded_number_of_pieces_and_the_next_one_goes_on(tmp_path: Path) -> None:
    """Both streams are looked at, however long the search in one of them is."""
    streams = both(tmp_path, file_bytes_max=1 << 30)
    (tmp_path / "denied-00000001.jsonl").write_bytes(line_of(record(0, principal="bob")))
    line = line_of(record(1, detail="x" * TEXT_CHARACTERS_MAX))
    lines = PIECES_MAX * PIECE_BYTES // len(line) + 500
    (tmp_path / "calls-00000001.jsonl").write_bytes(line_of(record(2, principal="bob")) + line * lines)
    steps = Steps()
    first = await page(streams, steps=steps, principal="bob")
    assert (first.records, steps.count) == ([], PIECES_MAX)
    assert first.next is not None
    assert times(await page(streams, 10, first.next, principal="bob")) == [2, 0]


async def test_a_step_reads_one_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = both(tmp_path, file_bytes_max=1 << 20)
    streams["calls"].append([record(number) for number in range(2_000)])
    read: list[int] = []
    pread = os.pread

    def counted(descriptor: int, length: int, position: int) -> bytes:
        read.append(length)
        return pread(descriptor, length, position)

    monkeypatch.setattr("store.log.disk.os.pread", counted)
    steps = Steps()
    assert await page(streams, 500, steps=steps)
    assert max(read) <= PIECE_BYTES
    assert len(read) <= steps.count


@pytest.mark.parametrize("cursor", ["", "x", "1-2", "1.2", "1.2-3.4-", "-1.2-3.4", "1.2-\n", f"{10**18}.1-"])
async def test_a_cursor_that_is_none_is_refused(tmp_path: Path, cursor: str) -> None:
    with pytest.raises(ValueError, match="is no cursor"):
        await page(both(tmp_path), 1, cursor)


@pytest.mark.parametrize("cursor", ["-", "9.1-9.1", "1.3-1.5", f"1.{10**17}-1.{10**17}", "0.0-0.0"])
async def test_a_cursor_that_nobody_gave_reads_what_is_there(tmp_path: Path, cursor: str) -> None:
    streams = both(tmp_path)
    for each in streams.values():
        each.append([record(1)])
    found = await page(streams, 10, cursor)
    assert len(found.records) in (0, 2)
    assert found.next is None


async def test_the_files_of_a_node_take_what_the_option_says(tmp_path: Path) -> None:
    streams = streams_in(PosixDisk(), str(tmp_path), AUDIT_BYTES_MIN)
    text = "\x01" * TEXT_CHARACTERS_MAX  # what JSON writes longest
    longest = record(1, principal=text, path=text, resource=text, detail=text, route="x" * 100)
    batch = [longest] * BATCH_RECORDS_MAX
    for _ in range(FILES + 2):
        for each in streams.values():
            each.append(batch)
    taken = sum(file.stat().st_size for file in (tmp_path / "audit").iterdir())
    assert taken <= AUDIT_BYTES_MIN
    looks = [streams["calls"].newest()]
    while (place := looks[-1]) is not None:
        looks.append(streams["calls"].look(place, lambda _: True, None).rest)
    assert len(looks) > 2 * FILES, "more than one piece of each file"


def test_a_text_is_cut_and_can_be_written() -> None:
    assert cut("x" * 1_000) == "x" * TEXT_CHARACTERS_MAX
    assert line_of(record(1, path=cut("\udc80\n"))).count(b"\n") == 1


def test_the_place_before_a_file_is_its_beginning(tmp_path: Path) -> None:
    one = stream(tmp_path)
    one.append([record(1)])
    assert one.look(Place(1, 0), lambda _: True, None).rest is None
    assert asyncio.run(page(both(tmp_path), 10, "1.0-1.0")).records == []


def test_files_that_somebody_has_removed_are_not_missed_when_the_next_one_begins(tmp_path: Path) -> None:
    written = stream(tmp_path, file_bytes_max=1)
    for number in range(FILES):
        written.append([record(number)])
    (tmp_path / "calls-00000001.jsonl").unlink()
    written.append([record(FILES)])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"calls-{number:08d}.jsonl" for number in range(2, FILES + 2)
    ]
