"""Commands of `keelmq backup`."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final, Protocol

import typer

from keelmq.cli.operations.backup_files import SUFFIX, FilePlace, Found, Opened
from keelmq.cli.output import (
    DEFAULT_SERVERS,
    EXIT_ERROR,
    EXIT_INTERRUPTED,
    AsJson,
    Servers,
    connection_to,
    fail,
    print_json,
    print_table,
    run,
    say,
    when,
    zone,
)
from keelmq.cli.sizes import parse_size
from keelmq.errors import Conflict, InvalidRequest, KeelMQError

if TYPE_CHECKING:
    from keelmq.admin import Admin, BackupBegun
    from keelmq.log.backup_frames import Findings
    from keelmq.transport.connection import Connection

app = typer.Typer(no_args_is_help=True, help="Backups of the whole cluster; keelmqd restore brings them back.")

FRAME_TIMEOUT_MS: Final = 30_000
IDLE_SHARE: Final = 4
"""Part of the time after which a node gives up a backup, in which it is asked for something in any case."""
TAIL_BYTES: Final = 4096
"""Bytes at the ends of two backups that are compared; the last frame, with the digest of all, is smaller."""

BackupName = Annotated[str, typer.Argument(metavar="FILE|S3_URL", help="File of the backup, or s3://BUCKET/KEY.")]
Endpoint = Annotated[
    str | None,
    typer.Option(
        "--endpoint-url",
        metavar="URL",
        help="Address of the object store for s3://…; by default that of AWS_ENDPOINT_URL, or Amazon's.",
    ),
]


class New(Protocol):
    """A backup that is being written, which appears under its name when it is whole and stored."""

    name: str
    size_bytes: int
    is_published: bool
    """True once `publish` has done its work."""

    def write(self, data: bytes) -> None: ...

    def publish(self) -> None: ...


class Place(Protocol):
    """Place of backups. All methods raise OSError and KeelMQError."""

    name: str

    def prepare(self) -> None: ...

    def remove_left(self) -> None: ...

    def new(self, name: str) -> AbstractContextManager[New]: ...

    def open(self) -> AbstractContextManager[Opened]: ...

    def found(self) -> list[Found]: ...


@app.callback()
def _root() -> None: ...


@app.command(epilog="Example:  keelmq backup create /backups/ --servers http://10.0.0.1:7081")
def create(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|DIR/|S3_URL",
            help="New file, or directory in which a file is named by the backup; DIR/ is made if it is missing. Or "
            "s3://BUCKET/PREFIX/, or s3://BUCKET/KEY.backup.",
        ),
    ],
    node: Annotated[
        str | None,
        typer.Option(
            "--node",
            metavar="URL",
            help="Node that is read, whether it knows a leader or not; by default the follower that has most.",
        ),
    ] = None,
    endpoint_url: Endpoint = None,
    part_size: Annotated[
        str,
        typer.Option(
            "--part-size",
            metavar="SIZE",
            help="Size of the parts of an upload to s3://…, from 5M to 1G: 10,000 parts are the most of a backup, "
            "and two are held in memory.",
        ),
    ] = "16M",
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Back up the state and the log of the running cluster from one node, verified as it is written."""
    with _errors_of(target, as_json):
        place = place_of(target, endpoint_url, part_size)
        place.prepare()
    url = node or run(servers, lambda _: _node_to_read(servers), as_json=as_json)

    async def work() -> tuple["BackupBegun", New]:
        connection = connection_to(servers, FRAME_TIMEOUT_MS, node=url)
        try:
            return await _create(connection, place, knows_leader=node is None)
        finally:
            connection.close()

    with _interrupted_by_sigterm():
        begun, made = run(servers, lambda _: work(), as_json=as_json)
    if as_json:
        print_json({**begun.document, "file": made.name, "bytes": made.size_bytes})
    else:
        say(f"{made.name}: {made.size_bytes} bytes, the state after entry {begun.index}, state hash {begun.state_hash}")


@app.command(epilog="Example:  keelmq backup verify /backups/shop-1200-20260102T030405678Z.backup")
def verify(file: BackupName, endpoint_url: Endpoint = None, as_json: AsJson = False) -> None:
    """Read a backup and compare all its checksums. Exit code 1 if it is not whole; each damage is named."""
    from keelmq.log import backup_frames

    with _errors_of(file, as_json), place_of(file, endpoint_url).open() as opened:
        findings = backup_frames.verify(opened.stream)
    _print_findings(file, findings, as_json)
    if findings.damage:
        raise typer.Exit(EXIT_ERROR)


@app.command(epilog="Example:  keelmq backup fetch s3://backups/shop/shop-1200-20260102T030405678Z.backup /restore/")
def fetch(
    source: BackupName,
    target: Annotated[
        str,
        typer.Argument(metavar="FILE|DIR/", help="New file, or directory of the file; DIR/ is made if it is missing."),
    ],
    endpoint_url: Endpoint = None,
    as_json: AsJson = False,
) -> None:
    """Bring a backup from an object store into a file, for keelmqd restore. All its checksums are compared, and the
    file appears only if it is whole. A file that is this backup already is read again instead.
    """
    with _interrupted_by_sigterm(), _errors_of(target, as_json):
        files = FilePlace(target)
        with place_of(source, endpoint_url).open() as opened:
            if target.endswith("/"):
                files.prepare()
            files.remove_left()
            path = files.path_of(opened.name)
            findings = _read_again(FilePlace(str(path)), opened) if path.exists() else _fetched(files, opened)
    _print_findings(str(path), findings, as_json)
    if findings.damage:
        raise typer.Exit(EXIT_ERROR)


@app.command("list", epilog="Example:  keelmq backup list /backups")
def list_backups(
    directory: Annotated[
        str, typer.Argument(metavar="DIR|S3_URL", help="Directory with backups, or s3://BUCKET/PREFIX/.")
    ],
    endpoint_url: Endpoint = None,
    as_json: AsJson = False,
) -> None:
    """List the backups in a directory, the newest first, by their own descriptions; verify reads a whole backup."""
    with _errors_of(directory, as_json):
        found = place_of(directory, endpoint_url).found()
    found.sort(key=lambda each: each.get("created_ms", 0), reverse=True)
    if as_json:
        print_json(found)
        return
    columns = ["file", f"created ({zone()})", "cluster", "entry", "bytes", "state hash"]
    rows = [
        (
            each["file"],
            when(each.get("created_ms")),
            each.get("cluster_id", each.get("error")),
            each.get("index"),
            each["bytes"],
            each.get("state_hash", "")[:12] or None,
        )
        for each in found
    ]
    print_table(None, columns, rows)


def place_of(text: str, endpoint_url: str | None = None, part_size: str | None = None) -> Place:
    """Return the place that the text names. Raises KeelMQError, and BadParameter for the size of parts."""
    from keelmq.cli.operations import backup_objects, object_store

    if not text.startswith(object_store.SCHEME):
        return FilePlace(text)
    part_bytes = backup_objects.PART_BYTES_DEFAULT if part_size is None else parse_size(part_size, "--part-size")
    if not backup_objects.PART_BYTES_MIN <= part_bytes <= backup_objects.PART_BYTES_MAX:
        raise typer.BadParameter("is from 5M to 1G", param_hint="--part-size")
    place = object_store.parse_location(text)
    return backup_objects.ObjectPlace(place, object_store.ObjectStore(endpoint_url), part_bytes)


@contextlib.contextmanager
def _errors_of(name: str, as_json: bool) -> Iterator[None]:
    """An error with a file or an object ends the process with a message and an exit code."""
    try:
        yield
    except KeelMQError as exc:
        fail(exc, as_json=as_json)
    except OSError as exc:
        fail(InvalidRequest("file_unusable", f"{exc.filename or name}: {exc.strerror}"), as_json=as_json)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """A service that is stopped cleans up as one that is interrupted: an upload that is not ended costs money."""
    former = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


async def _node_to_read(servers: str) -> str:
    """Return the URL of the follower that has applied most, since the leader has the most to do; of the leader if no
    follower knows the leader of the newest term. A node that knows none may have been cut off for days.
    """
    from keelmq.cli.operations.cluster import ask_all
    from keelmq.errors import NoLeader, Unavailable

    answers = [(each.url, each.status) for each in await ask_all(servers) if each.status and not each.status.removed]
    if not answers:
        raise Unavailable("no_answer", "no node answers")
    term = max(status.term for _, status in answers)
    led = [(url, status) for url, status in answers if status.leader_id is not None and status.term == term]
    if not led:
        raise NoLeader(
            "no_leader",
            "no node that answers knows a leader, so any of them may lack what others have; --node URL reads one all "
            "the same",
        )
    followers = [each for each in led if each[1].role == "follower"]
    return max(followers or led, key=lambda each: each[1].applied_index)[0]


async def _create(connection: "Connection", place: Place, *, knows_leader: bool) -> tuple["BackupBegun", New]:
    import asyncio

    from keelmq.admin import Admin

    admin = Admin(connection)
    begun = await admin.begin_backup()
    if not knows_leader and begun.leader_id is None:
        say(f"warning: node {begun.node_id} knows no leader: others may have what it lacks", file=sys.stderr)
    stored = False
    try:
        await asyncio.to_thread(place.remove_left)
        with place.new(_name_of(begun)) as made:
            await _copy(admin, begun, made)
        stored = True
    except OSError as exc:
        raise InvalidRequest("file_unusable", f"{exc.filename2 or exc.filename or place.name}: {exc.strerror}") from exc
    finally:
        try:
            await admin.end_backup(begun.backup_id, stored=stored)
        except KeelMQError as exc:  # the backup is whole, or the first error counts
            say(f"warning: the node was not told of the end: {exc.detail}", file=sys.stderr)
    return begun, made


async def _copy(admin: "Admin", begun: "BackupBegun", made: New) -> None:
    """Copy all frames, and publish the backup. An interrupt that comes when it is published already is ignored."""
    import asyncio

    from keelmq.log.backup_frames import END, parse_frame

    kind, number = 0, 0
    while kind != END:
        data = await admin.backup_frame(begun.backup_id, number)
        kind = parse_frame(data, number).kind
        await _kept_alive(admin, begun, number, partial(made.write, data))
        number += 1
    try:
        await _kept_alive(admin, begun, number - 1, made.publish)
    except asyncio.CancelledError:
        if not made.is_published:
            raise


async def _kept_alive(admin: "Admin", begun: "BackupBegun", last: int, work: Callable[[], None]) -> None:
    """Do the work in a thread. While it lasts, which over a slow line is long, the node is asked for the last frame
    again and again: it gives up a backup that nobody asks for.
    """
    import asyncio

    pause_s = begun.idle_ms_max / 1000 / IDLE_SHARE or None
    done = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        while not (await asyncio.wait({done}, timeout=pause_s))[0]:
            await admin.backup_frame(begun.backup_id, last)
    except BaseException:
        await asyncio.wait({done})  # what it writes is removed only when it has ended
        done.exception()
        raise
    done.result()


def _name_of(begun: "BackupBegun") -> str:
    seconds, ms = divmod(begun.created_ms, 1000)  # with ms: two may be made in the same second, of the same entry
    created = datetime.fromtimestamp(seconds, UTC)
    return f"{begun.cluster_id}-{begun.index}-{created:%Y%m%dT%H%M%S}{ms:03d}Z{SUFFIX}"


class _Copied:
    """Reads a stream, and writes what it reads."""

    def __init__(self, stream: BinaryIO, made: New) -> None:
        self._stream, self._made = stream, made

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._made.write(data)
        return data


def _fetched(files: FilePlace, opened: Opened) -> "Findings":
    """Copy the backup into a new file if it is whole."""
    from keelmq.log import backup_frames

    with files.new(opened.name) as made:
        made.require_links()
        findings = backup_frames.verify(_Copied(opened.stream, made))
        if not findings.damage:
            made.publish()
    return findings


def _read_again(place: FilePlace, opened: Opened) -> "Findings":
    """Verify the file. Raises Conflict unless it is the same backup."""
    from keelmq.log import backup_frames

    with place.open() as local:
        if local.size_bytes != opened.size_bytes or _tail_of(local) != _tail_of(opened):
            raise Conflict("file_exists", f"{place.name} exists and is not this backup; nothing is replaced")
        local.stream.seek(0)
        return backup_frames.verify(local.stream)


def _tail_of(opened: Opened) -> bytes:
    opened.stream.seek(max(0, opened.size_bytes - TAIL_BYTES))
    return opened.stream.read(TAIL_BYTES)


def _print_findings(file: str, findings: "Findings", as_json: bool) -> None:
    summary = findings.summary
    if as_json:
        print_json(
            {
                "file": file,
                "whole": not findings.damage,
                "frames": findings.frames,
                "bytes": findings.bytes,
                "index": summary and summary.index,
                "state_hash": summary and summary.state_hash,
                "damage": list(findings.damage),
            }
        )
        return
    if summary is not None:
        say(
            f"{file}: cluster {summary.cluster_id} ({summary.cluster_uid}) after entry {summary.index}, created "
            f"{when(summary.created_ms)} by node {summary.node_id}, state hash {summary.state_hash}"
        )
    for damage in findings.damage:
        say(f"DAMAGE: {damage}")
    say(f"{findings.frames} frames, {findings.bytes} bytes: {'DAMAGED' if findings.damage else 'whole'}")
