"""A bundle of the last release: its broker and its SDK, with the dependencies of a bundle of this tree."""

import tarfile
import tempfile
from pathlib import Path
from typing import Final

from deploy.bundle import BYTECODE, packed, write_sums
from deploy.dist import call_backend, commit_time_s, install_backend
from deploy.lock_files import ROOT, path_of
from tests.versions.releases import PACKAGES, Release, releases, unpack

PROJECTS: Final = (".", "client")
BUILT_FROM: Final = (*PACKAGES, "client", "pyproject.toml", "README.md", "LICENSE")


def former_bundle(present: Path, directory: Path) -> tuple[Release, Path] | None:
    """Write a bundle of the last release into the directory; None where its commit is not in this clone."""
    release = releases()[-1]
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        tree, unpacked, built = work / "tree", work / "unpacked", work / "built"
        if not unpack(release.commit, tree, BUILT_FROM):
            return None
        built.mkdir()
        install_backend(path_of("build", ROOT), work / "backend")
        for project in PROJECTS:
            call_backend(tree / project, work / "backend", built, commit_time_s())
        with tarfile.open(present) as archive:
            archive.extractall(unpacked, filter="data")
        (root,) = unpacked.iterdir()
        for wheel in built.glob("*.whl"):
            package = wheel.name.partition("-")[0]
            for other in root.glob(f"wheels/{package}-*.whl"):
                other.unlink()
            wheel.rename(root / "wheels" / wheel.name)
        (root / BYTECODE).unlink()  # it is not that of these wheels
        (root / "SHA256SUMS").unlink()
        write_sums(root)
        directory.mkdir(exist_ok=True)
        path = directory / f"keelmq-{release.version}.tar.gz"
        path.write_bytes(packed(root, commit_time_s()))
        return release, path
