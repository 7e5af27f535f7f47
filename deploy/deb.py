"""`make deb`: a Debian package of the broker and the `keelmq` command, with all that they need unpacked in it.

It is made of a bundle (deploy/bundle.py), so it has the same locked versions and needs no network, neither here nor
where it is installed. The same bundle gives identical bytes. The last line is `RESULT {json}`.
"""

import argparse
import hashlib
import os
import re
import shutil
import sys
import tarfile
import tempfile
from configparser import ConfigParser
from pathlib import Path
from typing import Final

from deploy.bundle import PYTHON, UNITS, bundle
from deploy.dist import BuildError, commit_time_s, run
from deploy.lock_files import ROOT, LockError
from deploy.reporting.report import Report
from store.version import VERSION

SCRIPTS: Final = ROOT / "deploy" / "debian"
"""Scripts that run when the package is installed and removed, and its configuration file."""
MAINTAINER_SCRIPTS: Final = ("postinst", "prerm", "postrm")
LIBRARIES: Final = Path("usr", "lib", "keelmq")
CONFFILES: Final = ("etc/keelmq/single.toml",)
PROGRAMS_OF_UNITS: Final = "/opt/keelmq/current/bin/"
COMMANDS: Final = ("keelmqd", "keelmq")
LEFT_OUT: Final = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
"""Notes of pip about this machine."""
KIB: Final = 1024
CONTROL: Final = """\
Package: keelmq
Version: {version}
Architecture: {architecture}
Maintainer: The KeelMQ project <keelmq@localhost>
Installed-Size: {size_kib}
Depends: python{python}, adduser
Suggests: systemd
Section: net
Priority: optional
Description: replicated message broker with transactional publishing
 KeelMQ stores messages in a Raft log that is synced to disk on a majority of its
 nodes before a send is acknowledged. This package has the broker (keelmqd), the
 keelmq command and all libraries that they need.
"""
COMMAND: Final = """\
#!/usr/bin/python{python} -I
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lib" / "keelmq"))
from {module} import {function}

sys.exit({function}())
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make deb", description=__doc__)
    parser.add_argument("--directory", type=Path, default=ROOT / "dist", help="Directory of the package.")
    parser.add_argument("--bundle", type=Path, help="Bundle of which the package is made (default: a new one).")
    options = parser.parse_args()
    report = Report()
    try:
        with report.live(), tempfile.TemporaryDirectory() as temporary:
            work = Path(temporary)
            source = options.bundle or bundle(work / "bundle", work, report)
            report.step("making the package")
            path = package(source, work, options.directory)
    except (BuildError, LockError, OSError, tarfile.TarError) as error:
        print(f"deb: {error}", file=sys.stderr)
        return 1
    content = path.read_bytes()
    report.result({"name": path.name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()})
    return 0


def package(source: Path, work: Path, directory: Path) -> Path:
    """Make a package of the bundle in `directory`, and return its path. Raises BuildError."""
    unpacked, root = work / "unpacked", work / "root"
    with tarfile.open(source) as archive:
        archive.extractall(unpacked, filter="data")
    (content,) = unpacked.iterdir()
    root.mkdir()
    _install_libraries(content / "wheels", root / LIBRARIES)
    _install_commands(root)
    for unit in UNITS:
        _put(root / "lib" / "systemd" / "system" / unit, _unit(content / unit))
    for name in CONFFILES:
        _put(root / name, (SCRIPTS / Path(name).name).read_text())
    _put(root / "usr" / "share" / "doc" / "keelmq" / "copyright", (ROOT / "LICENSE").read_text())
    architecture = run(["dpkg", "--print-architecture"], cwd=ROOT).strip()
    _write_control(root, architecture)
    return _build(root, directory / f"keelmq_{debian_version(VERSION)}_{architecture}.deb", commit_time_s())


def debian_version(version: str) -> str:
    """Return the version such that dpkg puts pre-releases before their release."""
    return re.sub(r"\.?(dev|a|b|rc)(\d+)", r"~\1\2", version)


def _install_libraries(wheels: Path, target: Path) -> None:
    names = ["==".join(wheel.name.split("-")[:2]) for wheel in sorted(wheels.glob("*.whl"))]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    run([*pip, "--no-index", "--no-deps", "--find-links", str(wheels), "--target", str(target), *names], cwd=ROOT)
    for name in LEFT_OUT:
        for path in target.glob(f"*.dist-info/{name}"):
            path.unlink()


def _install_commands(root: Path) -> None:
    """Replace the scripts that pip made, which name this machine's Python."""
    found: dict[str, str] = {}
    for path in (root / LIBRARIES).glob("*.dist-info/entry_points.txt"):
        parser = ConfigParser(delimiters="=")
        parser.read_string(path.read_text())
        found |= dict(parser["console_scripts"]) if parser.has_section("console_scripts") else {}
    shutil.rmtree(root / LIBRARIES / "bin", ignore_errors=True)
    for name in COMMANDS:
        module, _, function = found[name].partition(":")
        path = root / "usr" / "bin" / name
        _put(path, COMMAND.format(python=PYTHON, module=module, function=function))
        path.chmod(0o755)


def _unit(path: Path) -> str:
    text = path.read_text()
    if PROGRAMS_OF_UNITS not in text and path.suffix == ".service":
        raise BuildError(f"{path.name} starts nothing in {PROGRAMS_OF_UNITS}")
    return text.replace(PROGRAMS_OF_UNITS, "/usr/bin/")


def _write_control(root: Path, architecture: str) -> None:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    size_kib = sum(-(-path.stat().st_size // KIB) for path in files)
    sums = "".join(
        f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}  {path.relative_to(root)}\n"
        for path in files
    )
    control = root / "DEBIAN"
    version = debian_version(VERSION)
    _put(
        control / "control",
        CONTROL.format(version=version, architecture=architecture, size_kib=size_kib, python=PYTHON),
    )
    _put(control / "md5sums", sums)
    _put(control / "conffiles", "".join(f"/{name}\n" for name in CONFFILES))
    for name in MAINTAINER_SCRIPTS:
        _put(control / name, (SCRIPTS / name).read_text().replace("@PYTHON@", PYTHON))
        (control / name).chmod(0o755)


def _build(root: Path, path: Path, time_s: int) -> Path:
    for each in (root, *root.rglob("*")):
        is_run = each.is_dir() or os.access(each, os.X_OK)
        each.chmod(0o755 if is_run else 0o644)
        os.utime(each, (time_s, time_s))
    path.parent.mkdir(parents=True, exist_ok=True)
    # gzip: xz gains 10 MB, takes half a minute, and gives other bytes with other numbers of threads. Level 9 gains 1 %
    # and takes four times as long.
    command = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z6", "--build", str(root), str(path)]
    run(command, cwd=ROOT, environment={**os.environ, "SOURCE_DATE_EPOCH": str(time_s)})
    return path


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
