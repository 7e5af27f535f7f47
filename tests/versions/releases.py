"""The releases and their trees: `releases.toml` names commits, since a clone need not have tags."""

import io
import subprocess
import tarfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.requirements import GIT

REPOSITORY: Final = Path(__file__).parents[2]
TABLE: Final = Path(__file__).with_name("releases.toml")
PACKAGES: Final = ("cluster", "raft", "store")
"""Packages that a node consists of; its dependencies are those of this environment."""


class Release(NamedTuple):
    """A version with its commit, and the highest feature level that it knows."""

    version: str
    commit: str
    feature_level: int


def releases() -> list[Release]:
    """Return all releases, the oldest first."""
    return [Release(**row) for row in tomllib.loads(TABLE.read_text()).get("release", [])]


def frozen_level() -> int:
    """Return the highest released feature level, whose content never changes any more; 0 before the first release."""
    return max((release.feature_level for release in releases()), default=0)


def unpack(commit: str, directory: Path, names: Sequence[str] = PACKAGES) -> bool:
    """Put these files and folders as of a commit below `directory`. Returns False where that commit is not in this
    clone, for instance in a shallow one.
    """
    GIT.require()
    command = [
        "git",
        "-c",
        "safe.directory=*",
        "-C",
        str(REPOSITORY),
        "archive",
        "--format=tar",
        commit,
        "--",
        *names,
    ]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        return False
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.0 to 3.11.3 have no filters
        archive.extractall(directory)
    return True
