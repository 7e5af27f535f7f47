"""Commands of `keelmq backup`."""

import contextlib
import fcntl
import os
import re
import secrets
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer

from keelmq.cli.output import (
    DEFAULT_SERVERS,
    EXIT_ERROR,
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
from keelmq.errors import InvalidRequest, KeelMQError

if TYPE_CHECKING:
    from keelmq.admin import Admin, BackupBegun
    from keelmq.log.backup_frames import Findings
    from keelmq.transport.connection import Connection

app = typer.Typer(no_args_is_help=True, help="Backups of the whole cluster; keelmqd restore brings them back.")

SUFFIX: Final = ".backup"
FRAME_TIMEOUT_MS: Final = 30_000
PARTIAL_END: Final = r"\.[0-9a-f]{8}\.partial"
"""End of the name of a file that is being written, as an expression."""
PRIVATE_DIRECTORY_MODE: Final = 0o700
PRIVATE_MODE: Final = 0o600
"""Mode of the file: it holds the messages of all clients and the hashes of their tokens."""

BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="File of the backup.")]


@app.callback()
def _root() -> None: ...


@app.command(epilog="Example:  keelmq backup create /backups/ --servers http://10.0.0.1:7081")
def create(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|DIR/",
            help="New file, or directory in which a file is named by the backup; DIR/ is made if it is missing.",
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
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Back up the state and the log of the running cluster from one node, verified as it is written."""
    place = Path(target)
    try:
        if target.endswith("/"):
            place.mkdir(mode=PRIVATE_DIRECTORY_MODE, exist_ok=True)
    except OSError as exc:
        fail(InvalidRequest("file_unusable", f"{target}: {exc.strerror}"), as_json=as_json)
    if place.exists() and not place.is_dir():
        exists = InvalidRequest("file_exists", f"{target} exists; a backup never replaces a file")
        fail(exists, as_json=as_json)
    url = node or run(servers, lambda _: _node_to_read(servers), as_json=as_json)

    async def work() -> tuple["BackupBegun", Path]:
        connection = connection_to(servers, FRAME_TIMEOUT_MS, node=url)
        try:
            return await _create(connection, place, knows_leader=node is None)
        finally:
            connection.close()

    begun, file = run(servers, lambda _: work(), as_json=as_json)
    size = file.stat().st_size
    if as_json:
        print_json({**begun.document, "file": str(file), "bytes": size})
    else:
        say(f"{file}: {size} bytes, the state after entry {begun.index}, state hash {begun.state_hash}")


@app.command(epilog="Example:  keelmq backup verify /backups/shop-1200-20260102T030405Z.backup")
def verify(file: BackupFile, as_json: AsJson = False) -> None:
    """Read a backup and compare all its checksums. Exit code 1 if it is not whole; each damage is named."""
    from keelmq.log import backup_frames

    try:
        with open(file, "rb") as stream:
            findings = backup_frames.verify(stream)
    except OSError as exc:
        fail(InvalidRequest("file_unusable", f"{file}: {exc.strerror}"), as_json=as_json)
    _print_findings(file, findings, as_json)
    if findings.damage:
        raise typer.Exit(EXIT_ERROR)


@app.command("list", epilog="Example:  keelmq backup list /backups")
def list_backups(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory with backups.")], as_json: AsJson = False
) -> None:
    """List the backups in a directory, the newest first, by what they say of themselves; verify reads all of one."""
    found: list[dict[str, Any]] = []
    try:
        files = sorted(directory.glob(f"*{SUFFIX}"))
        if not directory.is_dir():
            raise NotADirectoryError(0, "is not a directory")
        found = [_described(file) for file in files]
    except OSError as exc:
        fail(InvalidRequest("file_unusable", f"{directory}: {exc.strerror}"), as_json=as_json)
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


def _described(file: Path) -> dict[str, Any]:
    from keelmq.log.backup_frames import read_summary

    with open(file, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        try:
            summary = read_summary(stream)
        except KeelMQError as exc:
            return {"file": file.name, "bytes": size, "error": exc.detail}
    names = ("cluster_id", "cluster_uid", "node_id", "version", "created_ms", "index", "state_hash")
    return {"file": file.name, "bytes": size, **{name: getattr(summary, name) for name in names}}


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


async def _create(connection: "Connection", target: Path, *, knows_leader: bool) -> tuple["BackupBegun", Path]:
    from keelmq.admin import Admin

    admin = Admin(connection)
    begun = await admin.begin_backup()
    if not knows_leader and begun.leader_id is None:
        say(f"warning: node {begun.node_id} knows no leader: others may have what it lacks", file=sys.stderr)
    stored = False
    remove_left(target)
    try:
        with NewFile(_place(target, begun)) as file:
            await _copy(admin, begun, file)
            file.publish()
        stored = True
    except OSError as exc:
        raise InvalidRequest("file_unusable", f"{exc.filename or target}: {exc.strerror}") from exc
    finally:
        try:
            await admin.end_backup(begun.backup_id, stored=stored)
        except KeelMQError as exc:  # the file is whole, or the first error counts
            say(f"warning: the node was not told of the end: {exc.detail}", file=sys.stderr)
    return begun, file.path


async def _copy(admin: "Admin", begun: "BackupBegun", file: "NewFile") -> None:
    from keelmq.log.backup_frames import END, parse_frame

    kind, number = 0, 0
    while kind != END:
        data = await admin.backup_frame(begun.backup_id, number)
        kind = parse_frame(data, number).kind
        file.write(data)
        number += 1


def _place(target: Path, begun: "BackupBegun") -> Path:
    if not target.is_dir():
        return target
    created = datetime.fromtimestamp(begun.created_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    return target / f"{begun.cluster_id}-{begun.index}-{created}{SUFFIX}"


def remove_left(target: Path) -> None:
    """Remove what backups that were killed have left of their files for the same target. One that is being written is
    locked by its writer; what cannot be removed stays.
    """
    directory, name = (
        (target, rf".*{re.escape(SUFFIX)}") if target.is_dir() else (target.parent, re.escape(target.name))
    )
    left = re.compile(name + PARTIAL_END)
    with contextlib.suppress(OSError):
        for path in [each for each in directory.iterdir() if left.fullmatch(each.name)]:
            with contextlib.suppress(OSError), path.open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


class NewFile:
    """A file that appears under its name when it is whole and durable, and replaces nothing. All raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # A name of its own: of two that write the same file, the one that ends first wins, and the other is an error.
        self._partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
        self._stream = open(  # noqa: SIM115 - closed by __exit__
            os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_MODE), "wb"
        )
        with contextlib.suppress(OSError):  # not every file system has locks; remove_left() leaves the file alone then
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._partial.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        self._stream.write(data)

    def publish(self) -> None:
        """Give the file its name; durable on return."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        os.link(self._partial, self.path)  # unlike a rename it replaces nothing
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _print_findings(file: Path, findings: "Findings", as_json: bool) -> None:
    summary = findings.summary
    if as_json:
        print_json(
            {
                "file": str(file),
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
