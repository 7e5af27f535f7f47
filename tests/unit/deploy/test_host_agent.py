"""A host whose tool was killed: what the tool began goes on, and the next call waits for its end."""

import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.rollout import host_releases, host_root
from deploy.rollout.host_agent import destroy
from deploy.rollout.host_data import is_restored, note_restore, restore_note, set_aside
from deploy.rollout.host_root import BUSY, MARK, AgentError, is_ours
from deploy.rollout.transport import agent_source
from tests.e2e.cluster_process import wait_for

OWNER = "node 1 of the cluster shop\n"
NOTE = {"restore_id": "drill", "backup": "b" * 64, "finished": False}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "node1"
    path.mkdir()
    (path / MARK).write_text(OWNER)
    return path


def begun(
    action: str, content: bytes = b"", run: dict[str, object] | None = None, /, **arguments: object
) -> subprocess.Popen[bytes]:
    """Begin a call as the tool does, outside of any run unless told otherwise; more content may follow."""
    request = json.dumps({"action": action, "arguments": arguments, "run": run}).encode() + b"\n" + content
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-I", "-c", agent_source()], stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    process.stdin.write(request)
    process.stdin.flush()
    return process


def call(
    action: str, content: bytes = b"", run: dict[str, object] | None = None, /, **arguments: object
) -> subprocess.Popen[bytes]:
    process = begun(action, content, run, **arguments)
    assert process.stdin is not None
    process.stdin.close()
    return process


def hold_of(root: Path, name: str, *, claims: bool = False) -> subprocess.Popen[bytes]:
    """Begin to hold the root for a run, and return when its name is noted."""
    hold = begun("hold", root=str(root), owner=OWNER, who=f"run {name}", silence_s=600.0, claims=claims, name=name)

    def is_noted() -> bool:
        with contextlib.suppress(FileNotFoundError):
            return (root / BUSY).read_text() == f"run {name}\n{name}\n"
        return False

    wait_for(is_noted, f"run {name} to be noted")
    return hold


def said_by(hold: subprocess.Popen[bytes]) -> dict[str, object]:
    """Return the first line of a hold that goes on."""
    assert hold.stdout is not None
    found: dict[str, object] = json.loads(hold.stdout.readline())
    return found


def answer_of(process: subprocess.Popen[bytes]) -> dict[str, object]:
    with process:
        assert process.stdout is not None
        found: dict[str, object] = json.loads(process.stdout.read())
        return found


def slow_bundle(directory: Path) -> Path:
    """Return a bundle whose installation says that it has begun, and waits until it may go on."""
    os.mkfifo(directory / "go-on")
    source = directory / "keelmq" / "install.sh"
    source.parent.mkdir()
    source.write_text(
        f'echo begun >> "{directory}/begun"; read -r _ < "{directory}/go-on"; mkdir -p "$1/bin"; : > "$1/bin/keelmqd"\n'
    )
    with tarfile.open(directory / "a.tar.gz", "w:gz") as archive:
        archive.add(source.parent, "keelmq")
    return directory / "a.tar.gz"


def waits_for_a_lock(process: subprocess.Popen[bytes]) -> bool:
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(words[1] == "->" and words[5] == str(process.pid) for words in lines)


def test_an_installation_goes_on_without_its_tool_and_is_not_begun_again(root: Path, tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    archive = slow_bundle(tmp_path / "bundle")
    content = archive.read_bytes()
    arguments = {"root": str(root), "name": "a", "owner": OWNER, "program": ""}
    arguments["sha256"] = hashlib.sha256(content).hexdigest()
    first = call("install_sent", content, **arguments)
    begun = tmp_path / "bundle" / "begun"
    wait_for(begun.exists, "the first installation")
    second = call("install_sent", content, **arguments)
    wait_for(lambda: waits_for_a_lock(second), "the second installation to wait")
    (tmp_path / "bundle" / "go-on").write_text("\n")
    for each in (first, second):
        assert (answer_of(each).get("release"), begun.read_text()) == ("a", "begun\n")
    assert (root / "current").readlink() == root / "releases" / "a"
    assert [path.name for path in (root / "releases").iterdir()] == ["a"]


def test_a_host_that_the_tool_did_not_make_gets_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "letter").touch()
    arguments = {"root": str(tmp_path), "name": "a", "owner": OWNER, "program": "", "sha256": ""}
    assert "is in use by something else" in str(answer_of(call("install_sent", b"bundle", **arguments))["error"])
    assert [path.name for path in tmp_path.iterdir()] == ["letter"]


def test_a_file_that_is_no_whole_bundle_is_called_so(root: Path, tmp_path: Path) -> None:
    bundle = slow_bundle(tmp_path).read_bytes()
    (tmp_path / "other").mkdir()
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "other", "other")
    at = len(bundle) // 2
    damaged = [
        *(b"", b"no archive", bundle[:at], bundle[:at] + bytes(16) + bundle[at + 16 :]),
        (tmp_path / "b.tar.gz").read_bytes(),
    ]
    for content in damaged:
        archive_path = root / "releases" / "a.tar.gz"
        archive_path.parent.mkdir(exist_ok=True)
        archive_path.write_bytes(content)
        with pytest.raises(AgentError, match="is no whole bundle"):
            host_releases.install(root, archive_path, "a", OWNER)
        assert list(archive_path.parent.iterdir()) == [], "it takes no room either"
    assert not (root / "current").is_symlink()


def test_old_releases_make_room(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that runs stays, however many were installed since: a node imports of it later, too."""
    (tmp_path / "keelmq").mkdir()
    (tmp_path / "keelmq" / "install.sh").write_text('mkdir -p "$1/bin"; : > "$1/bin/keelmqd"\n')

    def install(name: str) -> set[str]:
        archive = root / "releases" / f"{name}.tar.gz"
        archive.parent.mkdir(exist_ok=True)
        with tarfile.open(archive, "w:gz") as made:
            made.add(tmp_path / "keelmq", "keelmq")
        host_releases.install(root, archive, name, OWNER)
        return {path.name for path in (root / "releases").iterdir()}

    assert install("a") == {"a"}
    command = ["python", f"{root}/releases/a/bin/keelmqd", "--config", f"{root}/etc/keelmqd-1.toml"]
    monkeypatch.setattr(host_releases, "running", lambda _: (4711, command))
    (root / "releases" / "b.unpacked").mkdir()
    (root / "releases" / "left.tar.gz").touch()
    with (root / "releases" / "c.tar.gz.1.new").open("wb") as arrives:  # another run brings the next release
        fcntl.flock(arrives, fcntl.LOCK_EX)
        assert install("b") == {"a", "b", "c.tar.gz.1.new"}
    assert install("c") == {"a", "b", "c"}
    assert install("d") == {"a", "c", "d"}
    monkeypatch.setattr(host_releases, "running", lambda _: None)
    assert install("d") == {"c", "d"}
    assert host_releases.release_at(root / "previous") == "c"


def test_a_release_is_complete_once_its_files_are_durable(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keelmq").mkdir()
    (tmp_path / "keelmq" / "install.sh").write_text('mkdir -p "$1/bin"; : > "$1/bin/keelmqd"\n')
    archive, release = root / "releases" / "a.tar.gz", root / "releases" / "a"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as made:
        made.add(tmp_path / "keelmq", "keelmq")
    synced: list[tuple[bool, bool]] = []

    def sync() -> None:
        synced.append(((release / "bin" / "keelmqd").exists(), (release / "complete").exists()))

    monkeypatch.setattr(os, "sync", sync)
    host_releases.install(root, archive, "a", OWNER)
    assert synced == [(True, False)]
    assert (release / "complete").exists()


@pytest.mark.parametrize("what", ["note", "file"])
def test_a_new_name_is_durable_before_the_answer(root: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    path = root / {"note": "restore.json", "file": "etc/x"}[what]
    synced: list[bool] = []

    def fsync(handle: int) -> None:
        if path.parent.exists() and os.path.samestat(os.fstat(handle), path.parent.stat()):
            synced.append(path.exists())

    monkeypatch.setattr(os, "fsync", fsync)
    if what == "note":
        note_restore(root, OWNER, NOTE)
    else:
        host_root.put_bytes(path, b"content")
    assert synced == [True]


def test_a_file_that_does_not_arrive_whole_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "node1" / MARK
    content = OWNER.encode()
    for sha256 in (hashlib.sha256(b"other").hexdigest(), hashlib.sha256(b"").hexdigest()):
        process = call("put", path=str(path), sha256=sha256, mode=0o600)
        assert ("error" in answer_of(process)) == (sha256 != hashlib.sha256(b"").hexdigest())
    left = path.with_name(f"{MARK}.x1y2z3.new")
    left.write_bytes(content)
    path.unlink()
    assert is_ours(path.parent, OWNER), "a first call that was killed claims nothing"
    answer_of(call("put", path=str(path), sha256=hashlib.sha256(b"").hexdigest(), mode=0o644))
    assert [each.name for each in path.parent.iterdir()] == [MARK]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_restore_is_noted_where_there_is_no_data_only(root: Path) -> None:
    (root / "data").mkdir()
    (root / "data" / "identity").touch()
    with pytest.raises(AgentError, match="is not empty"):
        note_restore(root, OWNER, NOTE)
    assert restore_note(root) == {}
    set_aside(root, OWNER)
    assert (root / "data.old" / "identity").exists()
    note_restore(root, OWNER, NOTE)
    (root / "restore.backup").touch()
    (root / "data").mkdir()
    (root / "data" / "unfinished").touch()
    assert not is_restored(root)
    (root / "data" / "identity").touch()
    assert not is_restored(root)
    (root / "data" / "unfinished").unlink()
    assert is_restored(root)
    note_restore(root, OWNER, {**NOTE, "finished": True})
    assert not (root / "restore.backup").exists()
    with pytest.raises(AgentError, match="is not empty"):
        note_restore(root, OWNER, {**NOTE, "restore_id": "another"})


def set_aside_names(root: Path) -> dict[str, list[str]]:
    return {path.name: sorted(each.name for each in path.iterdir()) for path in root.glob("data*")}


def test_what_is_set_aside_stays_and_a_link_is_left_alone(root: Path, tmp_path: Path) -> None:
    for name in ("first", "second", "third"):
        (root / "data").mkdir()
        (root / "data" / name).touch()
        set_aside(root, OWNER)
    kept = {"data.old": ["first"], "data.old.1": ["second"], "data.old.2": ["third"]}
    assert set_aside_names(root) == kept
    set_aside(root, OWNER)
    assert set_aside_names(root) == kept, "without data nothing is done"
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "log").touch()
    (root / "data").symlink_to(tmp_path / "disk")
    with pytest.raises(AgentError, match="empty it by hand"):
        set_aside(root, OWNER)
    assert (tmp_path / "disk" / "log").exists()


@pytest.mark.parametrize("command", ["restore", "recover"])
def test_what_a_restore_has_begun_takes_no_place_of_data(root: Path, command: str) -> None:
    """A recovery that was not finished works on the data itself."""
    (root / "data.old").mkdir()
    (root / "data.old" / "log").touch()
    (root / "data").mkdir()
    (root / "data" / "unfinished").write_text(json.dumps({"command": command, "cluster_uid": "a"}))
    set_aside(root, OWNER)
    kept = {} if command == "restore" else {"data.old.1": ["unfinished"]}
    assert set_aside_names(root) == {"data.old": ["log"], **kept}


def test_the_output_of_a_node_is_for_its_user_alone(root: Path) -> None:
    log = root / "keelmqd.log"
    log.write_text("before\n")
    log.chmod(0o644)
    said = "import sys; print('started', file=sys.stderr)"
    program = root / "program"
    program.write_text(f"#!{sys.executable}\n{said}\n")
    program.chmod(0o700)
    for expected in ("before\nstarted\n", "started\n"):
        assert answer_of(call("start", root=str(root), program=str(program), config="c", owner=OWNER)) == {}
        while log.read_text() != expected:
            os.sched_yield()
        assert log.stat().st_mode & 0o777 == 0o600
        log.unlink()


def checking_program(directory: Path, code: int) -> str:
    """Return a keelmqd that notes its arguments and finds the configuration good (0) or bad."""
    program = directory / "keelmqd"
    program.write_text(f'#!/bin/sh\necho "$@" > "{directory}/checked"\necho "not so" >&2\nexit {code}\n')
    program.chmod(0o755)
    return str(program)


def test_a_host_is_prepared_in_one_call(tmp_path: Path) -> None:
    files = {"etc/peer_secret": "c2VjcmV0", "etc/keelmqd-1.toml": "aWQgPSAx"}
    given = {"root": str(tmp_path / "new"), "owner": OWNER, "files": files, "config": "etc/keelmqd-1.toml"}
    assert answer_of(call("prepare", program=checking_program(tmp_path, 0), **given)) == {}
    root = tmp_path / "new"
    assert is_ours(root, OWNER)
    assert (root / MARK).exists()
    assert (root / "etc/peer_secret").read_bytes() == b"secret"
    assert (root / "etc/peer_secret").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "checked").read_text() == f"--config {root}/etc/keelmqd-1.toml --check-config\n"
    assert answer_of(call("prepare", program=checking_program(tmp_path, 2), **given)) == {
        "error": "keelmqd --check-config: not so"
    }


def test_a_root_of_something_else_is_not_prepared(root: Path, tmp_path: Path) -> None:
    before = sorted(root.iterdir())
    given = {
        "owner": "node 1 of the cluster bank\n",
        "files": {"etc/a": "YQ=="},
        "program": "/bin/false",
        "config": "a",
    }
    answer = answer_of(call("prepare", root=str(root), **given))
    assert "in use by something else" in str(answer["error"])
    assert sorted(root.iterdir()) == before
    assert (root / MARK).read_text() == OWNER


def test_calls_that_prepare_a_host_exclude_each_other(tmp_path: Path) -> None:
    """A killed tool leaves a call that goes on, under which nothing changes."""
    os.mkfifo(tmp_path / "go-on")
    program = tmp_path / "keelmqd"
    program.write_text(f'#!/bin/sh\necho "$2" >> "{tmp_path}/checked"; read -r _ < "{tmp_path}/go-on"\n')
    program.chmod(0o755)
    root, begun = tmp_path / "new", tmp_path / "checked"
    given = {"root": str(root), "owner": OWNER, "program": str(program)}
    first = call("prepare", files={"etc/a": "YQ=="}, config="etc/a", **given)
    wait_for(begun.exists, "the first check")
    second = call("prepare", files={"etc/b": "Yg=="}, config="etc/b", **given)
    wait_for(lambda: waits_for_a_lock(second), "the second call to wait")
    assert not (root / "etc" / "b").exists()
    for process in (first, second):
        (tmp_path / "go-on").write_text("\n")
        assert answer_of(process) == {}
    assert begun.read_text() == f"{root}/etc/a\n{root}/etc/b\n"


def test_a_host_is_held_once_what_a_former_run_does_there_has_ended(root: Path, tmp_path: Path) -> None:
    """A call that looks whether it may go on, and then stops a node, ends before the next run looks at the nodes."""
    os.mkfifo(tmp_path / "go-on")
    program = tmp_path / "keelmqd"
    program.write_text(f'#!/bin/sh\n: > "{tmp_path}/checked"; read -r _ < "{tmp_path}/go-on"\n')
    program.chmod(0o755)
    given = {"root": str(root), "owner": OWNER, "files": {"etc/a": "YQ=="}, "program": str(program), "config": "etc/a"}
    run = {"root": str(root), "name": "a", "is_held": False}
    first = call("prepare", b"", run, **given)
    wait_for((tmp_path / "checked").exists, "the first call")
    with hold_of(root, "b") as hold:
        late = call("prepare", b"", {**run, "is_held": True}, **given)
        (tmp_path / "go-on").write_text("\n")
        assert answer_of(first) == {}
        assert said_by(hold) == {"held": True}
    assert "this run no longer holds the host" in str(answer_of(late)["error"])


@contextlib.contextmanager
def worked_on(root: Path) -> Iterator[None]:
    """Have a call that goes on without its run work on the root within the block."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def test_a_run_that_ends_while_it_waits_for_a_host_holds_nothing(root: Path) -> None:
    with worked_on(root):
        given_up = hold_of(root, "a")
        assert given_up.stdin is not None
        given_up.stdin.close()
        assert answer_of(given_up) == {}
        with hold_of(root, "b") as hold:
            assert hold.poll() is None


def test_a_run_that_has_lost_its_connection_does_not_find_itself_at_work(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host_root, "BUSY_S_MAX", 0.0)
    with hold_of(root, "a"):
        assert host_root.hold(root, OWNER, "run a", 600.0, False, "a") == {}
        assert host_root.hold(root, OWNER, "run b", 600.0, False, "b") == {"busy": "run a"}
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("claims", [False, True])
def test_a_root_that_a_former_run_removes_is_not_held_by_what_was_there(root: Path, *, claims: bool) -> None:
    """A removal that was killed and is repeated at once waits for the first one, and is done then."""
    with worked_on(root):
        hold = hold_of(root, "a", claims=claims)
        for path in (root / BUSY, root / MARK):
            path.unlink()
        root.rmdir()
    with hold:
        assert said_by(hold) == ({"held": True} if claims else {})
    assert root.exists() == claims


def test_a_run_that_waits_for_a_removal_leaves_no_root_that_is_nobodys(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def unlink_before_a_hold(path: Path, **how: bool) -> None:
        unlink(path, **how)
        if path.name == MARK:
            (root / BUSY).touch()

    monkeypatch.setattr(Path, "unlink", unlink_before_a_hold)
    assert destroy(root, OWNER) == {}
    assert not root.exists()
    root.mkdir()
    (root / BUSY).touch()
    assert is_ours(root, OWNER), "as a killed removal of an earlier version has left it"


def test_a_file_of_a_run_that_has_lost_the_host_meanwhile_is_not_stored(root: Path) -> None:
    """The machine of a restore slept while it sent its backup, and another restore began with another one."""
    path = root / "restore.backup"
    given = {"path": str(path), "sha256": hashlib.sha256(b"whole").hexdigest(), "mode": 0o600}
    with hold_of(root, "a") as hold:
        assert said_by(hold) == {"held": True}
        put = begun("put", b"wh", {"root": str(root), "name": "a", "is_held": True}, **given)
        wait_for(lambda: list(root.glob("restore.backup.*.new")), "the file to be begun")
    with hold_of(root, "b") as hold:
        assert said_by(hold) == {"held": True}
        assert put.stdin is not None
        put.stdin.write(b"ole")
        put.stdin.close()
        assert "this run no longer holds the host, and run b works on this cluster" in str(answer_of(put)["error"])
    assert not list(root.glob("restore.backup*"))
