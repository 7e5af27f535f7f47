"""`make dist`: wheels and source distributions of the broker, the SDK and the Spark package, built reproducibly.

A package is built from copies of the files that git tracks, as they are in the working tree, by the backend that its
pyproject.toml names, in the version of deploy/locks/build.txt. Every time stamp is the time of the last commit, so that
building the same commit with the same Python gives identical bytes, also on another day. The programs say which commit
it was. Beside the wheel and the source distribution lies the package's bill of materials (deploy/sbom.py). The last
line is `RESULT {json}`.
"""

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from deploy.lock_files import FOLDERS, ROOT, LockError, path_of
from deploy.reporting.report import Report
from deploy.sbom import document

BACKEND: Final = """
import importlib, sys
libraries, name, out = sys.argv[1:]
sys.path.insert(0, libraries)
backend = importlib.import_module(name)
backend.build_sdist(out)
backend.build_wheel(out)
"""
VERSION_FILES: Final = ("store/version.py", "client/keelmq/version.py")
SBOM_END: Final = ".cdx.json"
UMASK: Final = 0o022


class BuildError(Exception):
    """A program that the build runs has failed; the text says which, and why."""


class Built(NamedTuple):
    """One file of a package, as it lies in the target directory."""

    name: str
    size: int
    sha256: str


def main() -> int:
    options = parse_arguments()
    report = Report()
    try:
        uncommitted = bool(run(["git", "status", "--porcelain", "--untracked-files=no"], cwd=ROOT).strip())
        with report.live():
            built = build(options.package or list(FOLDERS), options.directory, commit_time_s(), report)
    except (BuildError, LockError, OSError) as error:
        print(f"dist: {error}", file=sys.stderr)
        return 1
    report.table("packages", ("file", "bytes", "sha256"), built)
    if uncommitted:
        report.event("the files have changes that are not committed", "problem")
    result: dict[str, Any] = {"uncommitted": uncommitted, "files": [each._asdict() for each in built]}
    report.result(result)
    return 0


def build(packages: Sequence[str], directory: Path, time_s: int, report: Report) -> list[Built]:
    """Build the packages into `directory`; they replace earlier builds of the same packages. Raises BuildError."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        tree, new = work / "tree", work / "new"
        copy_tracked(tree, time_s)
        new.mkdir()
        install_backend(path_of("build", tree), work / "backend")
        for package in packages:
            report.step(f"building {package}")
            call_backend(tree / FOLDERS[package], work / "backend", new, time_s)
        for archive in new.glob("*.tar.gz"):
            archive.write_bytes(settled(archive.read_bytes(), time_s))
        for package in packages:
            write_sbom(package, new, tree)
        directory.mkdir(parents=True, exist_ok=True)
        for old in (path for package in packages for path in earlier(directory, package)):
            old.unlink()
        return [deliver(path, directory) for path in sorted(new.iterdir())]


def earlier(directory: Path, package: str) -> list[Path]:
    """Return the files of the package, of any version, that `directory` contains."""
    begin = package.replace("-", "_")
    return [path for end in (".whl", ".tar.gz", SBOM_END) for path in directory.glob(f"{begin}-*{end}")]


def write_sbom(package: str, directory: Path, tree: Path) -> None:
    """Write the bill of materials of the package, whose files were built into `directory` from `tree`."""
    built = earlier(directory, package)
    _, version, *_ = next(path.name for path in built if path.suffix == ".whl").split("-")
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in built}
    name = f"{package.replace('-', '_')}-{version}{SBOM_END}"
    (directory / name).write_text(document(package, version, files, tree))


def commit_time_s() -> int:
    """Return the time of the last commit, in Unix seconds."""
    return int(run(["git", "log", "-1", "--format=%ct"], cwd=ROOT))


def copy_tracked(tree: Path, time_s: int) -> None:
    """Copy the files that git tracks to `tree`, with modes and times that do not depend on this machine."""
    for name in run(["git", "ls-files", "-z"], cwd=ROOT).rstrip("\0").split("\0"):
        source, target = ROOT / name, tree / name
        if not source.is_file():
            continue  # deleted in the working tree
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755 if os.access(source, os.X_OK) else 0o644)
        os.utime(target, (time_s, time_s))
    for name in VERSION_FILES:
        note_commit(tree / name, commit(), time_s)


def commit() -> str:
    """Return the id of the last commit, with `+changes` if tracked files differ from it."""
    changed = run(["git", "status", "--porcelain", "--untracked-files=no"], cwd=ROOT).strip()
    return run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT).strip() + ("+changes" if changed else "")


def note_commit(file: Path, commit: str, time_s: int) -> None:
    """Have the programs of the packages say what they were built from."""
    file.write_text(file.read_text().replace('COMMIT: Final = ""', f'COMMIT: Final = "{commit}"'))
    os.utime(file, (time_s, time_s))


def install_backend(lock: Path, libraries: Path) -> None:
    """Install the locked build backend into `libraries`, from a package index or pip's cache."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--ignore-installed"]
    run([*pip, "--require-hashes", "--no-deps", "--target", str(libraries), "--requirement", str(lock)], cwd=ROOT)


def call_backend(project: Path, libraries: Path, out: Path, time_s: int) -> None:
    """Build a source distribution and a wheel of the project into `out`.

    The backend comes from `libraries` and sees no other installed package.
    """
    name = tomllib.loads((project / "pyproject.toml").read_text())["build-system"]["build-backend"]
    command = [sys.executable, "-I", "-S", "-c", BACKEND, str(libraries), name, str(out)]
    run(command, cwd=project, environment={**os.environ, "SOURCE_DATE_EPOCH": str(time_s)})


def settled(archive: bytes, time_s: int) -> bytes:
    """Return the source distribution with its members in order, without owners and with `time_s` as every time."""
    tar, packed = io.BytesIO(), io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as old,
        tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime, member.pax_headers = time_s, {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=time_s) as stream:
        stream.write(tar.getvalue())
    return packed.getvalue()


def deliver(path: Path, directory: Path) -> Built:
    """Move the file into `directory` and describe it."""
    content = path.read_bytes()
    shutil.move(path, directory / path.name)
    return Built(path.name, len(content), hashlib.sha256(content).hexdigest())


def run(command: Sequence[str], *, cwd: Path, environment: dict[str, str] | None = None) -> str:
    """Return the standard output of the command. Raises BuildError, with its last lines, when it fails."""
    try:
        done = subprocess.run(command, cwd=cwd, env=environment, umask=UMASK, capture_output=True, text=True)  # noqa: S603
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error}") from None
    if done.returncode != 0:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise BuildError(f"{' '.join(command[:4])} ended with exit code {done.returncode}:\n{last}")
    return done.stdout


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make dist", description="Build the packages reproducibly.")
    parser.add_argument("--directory", type=Path, default=ROOT / "dist", help="Directory of the built files.")
    parser.add_argument("--package", action="append", choices=list(FOLDERS), help="Build this package (default: all).")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
