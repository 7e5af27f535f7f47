"""`make bundle`: one tarball from which the broker and the `keelmq` command are installed without a network.

It has the wheels of both packages, those of all that they need in the versions of deploy/locks, compared with the
hashes there and built where there is only source, the bytecode of all these, pip, `install.sh` and the unit for
systemd. The wheels are for the Python that runs this and for this kind of machine; the name of the tarball says which.
The last line is `RESULT {json}`.
"""

import argparse
import gzip
import hashlib
import io
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from importlib.resources import files
from pathlib import Path
from typing import Final

from deploy.dist import BuildError, build, commit_time_s, run
from deploy.lock_files import ROOT, LockError, path_of
from deploy.reporting.report import Report
from store.version import VERSION

PACKAGES: Final = ("keelmq-broker", "keelmq")
LOCKS: Final = ("broker", "sdk")
UNITS: Final = ("keelmqd@.service", "keelmq-backup@.service", "keelmq-backup@.timer")
"""Files of deploy/systemd."""
BYTECODE: Final = "bytecode.tar"
PIP_BYTECODE: Final = "pip-bytecode.tar"
"""Files with what Python would compile on each host; without them, `install.sh` has that done there."""
_LIBRARIES: Final = re.compile(r"(?:[^/]+\.data/(?:purelib|platlib)/)?(?P<path>(?![^/]+\.data/).+\.py)")
"""A source file of a wheel, with its path in `site-packages`."""
PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bundle", description=__doc__)
    parser.add_argument("--directory", type=Path, default=ROOT / "dist", help="Directory of the tarball.")
    options = parser.parse_args()
    report = Report()
    try:
        with report.live(), tempfile.TemporaryDirectory() as temporary:
            path = bundle(Path(temporary), options.directory, report)
    except (BuildError, LockError, OSError) as error:
        print(f"bundle: {error}", file=sys.stderr)
        return 1
    content = path.read_bytes()
    report.result({"name": path.name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()})
    return 0


def bundle(work: Path, directory: Path, report: Report) -> Path:
    """Build the tarball into `directory` and return its path. Raises BuildError."""
    time_s = commit_time_s()
    name = f"keelmq-{VERSION}-py{PYTHON}-{sysconfig.get_platform()}"
    root, packages = work / name, work / "packages"
    wheels = root / "wheels"
    wheels.mkdir(parents=True)
    build(PACKAGES, packages, time_s, report)
    for wheel in packages.glob("*.whl"):
        shutil.move(wheel, wheels)
    report.step("collecting what the packages need")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    locks = [part for lock in LOCKS for part in ("--requirement", str(path_of(lock, ROOT)))]
    run([*pip, "--no-build-isolation", "--require-hashes", "--wheel-dir", str(wheels), *locks], cwd=ROOT)
    (root / "pip").mkdir()
    pip_wheel = wheel_of_pip()
    shutil.copyfile(pip_wheel, root / "pip" / pip_wheel.name)
    report.step("compiling all, once for all hosts")
    for folder, file in (("wheels", BYTECODE), ("pip", PIP_BYTECODE)):
        write_bytecode(root / folder, work / f"compiled-{folder}", root / file)
    shutil.copyfile(ROOT / "deploy" / "install.sh", root / "install.sh")
    for unit in UNITS:
        shutil.copyfile(ROOT / "deploy" / "systemd" / unit, root / unit)
    (root / "PYTHON_VERSION").write_text(f"{PYTHON}\n")
    write_sums(root)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.tar.gz"
    path.write_bytes(packed(root, time_s))
    return path


def write_bytecode(wheels: Path, work: Path, target: Path) -> None:
    """Compile the source files of the wheels, and write the results to a tarball with their paths in
    `site-packages`.

    Python compares each with a hash of its source when it loads it: the times of installed files say nothing, and
    what an operator changes by hand is taken.
    """
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if (found := _LIBRARIES.fullmatch(name)) is not None:
                    path = work / found["path"]
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(archive.read(name))
    compiling = [sys.executable, "-I", "-m", "compileall", "-q", "-s", str(work)]
    # Some files are templates and do not compile; pip passes over them, too.
    subprocess.run([*compiling, "--invalidation-mode", "checked-hash", str(work)], capture_output=True)  # noqa: S603
    for source in work.rglob("*.py"):
        source.unlink()
    target.write_bytes(_tar(work, "", 0))


def wheel_of_pip() -> Path:
    """Return the pip that Python brings along to fill new environments. Raises BuildError when it brings none."""
    places = [Path(str(files("ensurepip"))) / "_bundled"]
    if configured := sysconfig.get_config_var("WHEEL_PKG_DIR"):
        places.append(Path(configured))
    found = sorted(wheel for place in places for wheel in place.glob("pip-*.whl"))
    if not found:
        raise BuildError("this Python brings no pip (Debian: python3-venv)")
    return found[-1]


def write_sums(root: Path) -> None:
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    lines = [f"{hashlib.sha256((root / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (root / "SHA256SUMS").write_text("".join(lines))


def packed(root: Path, time_s: int) -> bytes:
    """Return the directory as a tarball without owners, and with `time_s` as every time."""
    result = io.BytesIO()
    # Most of it is packed already: level 9 gains 1 % and takes twice as long.
    with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=result, mtime=time_s) as stream:
        stream.write(_tar(root, f"{root.name}/", time_s))
    return result.getvalue()


def _tar(root: Path, prefix: str, time_s: int) -> bytes:
    result = io.BytesIO()
    with tarfile.open(fileobj=result, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            member = archive.gettarinfo(path, f"{prefix}{path.relative_to(root)}")
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = time_s
            member.mode = 0o755 if path.is_dir() or path.suffix == ".sh" else 0o644
            with path.open("rb") if path.is_file() else io.BytesIO() as stream:
                archive.addfile(member, stream if path.is_file() else None)
    return result.getvalue()


if __name__ == "__main__":
    sys.exit(main())
