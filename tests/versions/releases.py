"""What was released, and its trees: `releases.toml` names commits, since a clone need not have tags."""

import io
import subprocess
import tarfile
import tomllib
from pathlib import Path
from typing import Final, NamedTuple

from tests.requirements import GIT

REPOSITORY: Final = Path(__file__).parents[2]
TABLE: Final = Path(__file__).with_name("releases.toml")
PACKAGES: Final = ("cluster", "raft", "store")
"""What a node runs on; its dependencies are those of this environment."""


class Release(NamedTuple):
    """A version by its commit, and the highest feature level that it knows."""

    version: str
    commit: str
    feature_level: int


def releases() -> list[Release]:
    """All of them, the oldest first."""
    return [Release(**row) for row in tomllib.loads(TABLE.read_text()).get("release", [])]


def frozen_level() -> int:
    """The highest feature level that was released: nothing of it changes any more. 0 before the first release."""
    return max((release.feature_level for release in releases()), default=0)


def unpack(commit: str, directory: Path) -> bool:
    """Puts the broker's packages as of a commit below `directory`. False where that commit is not in this clone, as in
    a shallow one.
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
        *PACKAGES,
    ]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        return False
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.0 to 3.11.3 have no filters
        archive.extractall(directory)
    return True
