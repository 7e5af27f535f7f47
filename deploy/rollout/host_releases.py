"""The releases of the program on a host: `releases/NAME`, of which `current` is the one that a start uses, and
`previous` the one before.

Its source is sent with each call, as that of host_agent.py is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from deploy.rollout.host_root import AgentError, is_being_stored, own_environment, require_ours, running

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def release_at(link: Path) -> str:
    """Return the name of the release that a link of the root leads to, empty without one."""
    return link.readlink().name if link.is_symlink() else ""


def install(root: Path, archive: Path, name: str, owner: str) -> dict[str, Any]:
    """Unpack the bundle, have it install itself into `releases/NAME`, and make it the current release."""
    import shutil  # late, as everything that other calls do not need
    import subprocess

    require_ours(root, owner)
    release = root / "releases" / name
    if not (release / "complete").exists():
        unpacked = root / "releases" / f"{name}.unpacked"
        for path in (unpacked, release):
            shutil.rmtree(path, ignore_errors=True)
        script = _unpack(archive, unpacked)
        environment = {**own_environment(), "PYTHON": sys.executable}
        command = ["/bin/sh", str(script), str(release)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)  # noqa: S603
        if done.returncode != 0:
            raise AgentError((done.stderr or done.stdout).strip()[-2000:])
        os.sync()  # a power loss must not keep the mark and take the files
        (release / "complete").touch()
        shutil.rmtree(unpacked)
    archive.unlink(missing_ok=True)
    current = root / "current"
    if current.is_symlink() and current.readlink() != release:
        point(root / "previous", current.readlink())
    point(current, release)
    _remove_old(root)
    return {}


def _remove_old(root: Path) -> None:
    """Remove releases that are neither the current one, nor the one before, nor run: each takes a hundred MB."""
    import shutil

    found = running(root)
    parts = [Path(part) for part in found[1]] if found else []
    used = {part.relative_to(root / "releases").parts[0] for part in parts if part.is_relative_to(root / "releases")}
    used |= {release_at(root / "current"), release_at(root / "previous")}
    for path in (root / "releases").iterdir():
        if path.name in used:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif not is_being_stored(path):
            path.unlink(missing_ok=True)


def _unpack(archive: Path, unpacked: Path) -> Path:
    """Unpack the bundle and return its `install.sh`. Raises AgentError, with both gone, if it is no whole bundle."""
    import gzip
    import shutil
    import tarfile
    import zlib

    unpacked.mkdir(parents=True)
    try:
        shutil.unpack_archive(archive, unpacked, "gztar", filter="data")
        (script,) = unpacked.glob("*/install.sh")
    except (shutil.ReadError, tarfile.TarError, zlib.error, EOFError, ValueError, gzip.BadGzipFile) as error:
        shutil.rmtree(unpacked)
        archive.unlink()
        raise AgentError(f"the file is no whole bundle of `make bundle` ({error}); build or copy it again") from None
    return script


def point(link: Path, target: Path) -> None:
    """Make `link` point to `target`, at once."""
    new = link.with_name(link.name + ".new")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.rename(link)


def rollback(root: Path, owner: str) -> dict[str, Any]:
    """Make the release before the current one again, if there is one. A repetition finds none, and changes nothing."""
    require_ours(root, owner)
    if (root / "previous").is_symlink():
        (root / "previous").rename(root / "current")
    return {}


def stay(root: Path, owner: str) -> dict[str, Any]:
    """Forget the release from before, so that a rollback leaves the current one."""
    require_ours(root, owner)
    (root / "previous").unlink(missing_ok=True)
    return {}
