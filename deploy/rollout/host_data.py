"""The data of a stopped node on its host: made of a backup or of what a survivor has, and set aside.

Its source is sent with each call, as that of host_agent.py is.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from deploy.rollout.host_root import (
    AgentError,
    has_data,
    opened_directory,
    own_environment,
    require_ours,
    require_stopped,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RESTORE_NOTE = "restore.json"
"""File that says of which backup, and as part of which restore, the data is made; `finished` when all nodes have it."""
BACKUP = "restore.backup"
SET_ASIDE = "data.old"
FRAGMENT = "data.deleted"
"""Directory that is being deleted."""
RESTORE = "restore"
"""Command of keelmqd that a file UNFINISHED names where a restore has begun the data."""
UNFINISHED = "unfinished"
"""File of keelmqd in a data directory whose restore or recovery is under way."""


def restore_note(root: Path) -> dict[str, Any]:
    """Return the note about a restore on this host, empty without one."""
    try:
        found: dict[str, Any] = json.loads((root / RESTORE_NOTE).read_text())
    except FileNotFoundError:
        return {}
    return found


def is_restored(root: Path) -> bool:
    """Return whether the data is what keelmqd made of the backup that is noted: it writes the identity after
    `unfinished`, and nothing else writes there between the note and the end of the restore.
    """
    data = root / "data"
    return bool(restore_note(root)) and (data / "identity").exists() and not (data / UNFINISHED).exists()


def note_restore(root: Path, owner: str, note: dict[str, Any]) -> dict[str, Any]:
    """Note the restore, before its first write and after its last; durable on return. Its backup goes with the last."""
    require_ours(root, owner)
    old = restore_note(root)
    if old.get("restore_id") != note["restore_id"]:
        require_stopped(root)
        if has_data(root):
            raise AgentError(f"{root}/data is not empty")
    new = root / f"{RESTORE_NOTE}.new"
    with new.open("w") as stream:
        stream.write(json.dumps(note) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    with opened_directory(root) as directory:
        new.rename(root / RESTORE_NOTE)
        os.fsync(directory)
    if note["finished"]:
        (root / BACKUP).unlink(missing_ok=True)
    return {}


def restore(root: Path, owner: str, program: str, arguments: list[str]) -> dict[str, Any]:
    """Have keelmqd make the data of the backup that was brought, unless it has; return its output."""
    require_ours(root, owner)
    if is_restored(root):
        return {"said": ""}
    require_stopped(root)
    return {"said": _offline(program, "restore", "--backup", f"{root / BACKUP}", *_data(root), *arguments)}


def recover(root: Path, owner: str, program: str, arguments: list[str]) -> dict[str, Any]:
    """Have keelmqd say what the stopped node knows and, with its flag among the arguments, recover it."""
    require_ours(root, owner)
    require_stopped(root)
    return {"said": _offline(program, "recover", *_data(root), *arguments)}


def set_aside(root: Path, owner: str) -> dict[str, Any]:
    """Rename the data of a stopped node to `data.old`, or `data.old.1` and so on where that is taken: it may be all
    that is left of a cluster. What a restore has begun and not finished is nothing of anybody's, and is deleted.
    """
    import shutil

    require_ours(root, owner)
    require_stopped(root)
    data, gone = root / "data", root / FRAGMENT
    shutil.rmtree(gone, ignore_errors=True)  # of a call that was killed
    if has_data(root):
        if os.path.ismount(data) or data.is_symlink():
            raise AgentError(f"{data} is a mount point or a link and cannot be renamed: empty it by hand")
        if _is_fragment(data):
            # By another name first: half deleted, without its mark, it would pass for restored data.
            data.rename(gone)
            shutil.rmtree(gone)
        else:
            data.rename(_free_name(root))
    return {}


def _is_fragment(data: Path) -> bool:
    """Return whether a restore that was not finished has begun the data. A recovery works on the data itself."""
    try:
        return bool(json.loads((data / UNFINISHED).read_bytes())["command"] == RESTORE)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _free_name(root: Path) -> Path:
    """Return the path of the data that is set aside. The name is taken by whatever is there, an empty directory
    included."""
    path, number = root / SET_ASIDE, 0
    while os.path.lexists(path):
        number += 1
        path = root / f"{SET_ASIDE}.{number}"
    return path


def _data(root: Path) -> list[str]:
    return ["--data-dir", str(root / "data")]


def _offline(program: str, *arguments: str) -> str:
    """Return the output of a command of keelmqd. Raises AgentError with its message when it fails."""
    import subprocess

    command = [program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=own_environment(), umask=0o077)  # noqa: S603
    if done.returncode != 0:
        raise AgentError((done.stderr.strip() or f"{program} ended with {done.returncode}")[-2000:])
    return done.stdout
