"""`make lock`: write the locks in deploy/locks anew, with the newest versions that the pyproject files allow.

uv resolves all requirements of the project together, for every CPython >= 3.11, and then those of each lock within that
result: a package has one version in all locks. The versions come from the package index that uv is configured for (or
its default); its address is never written. The last line is `RESULT {json}`.
"""

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.lock_files import (
    DIRECT,
    DIRECTORY,
    ROOT,
    Lock,
    LockError,
    Pin,
    asked,
    head_of,
    path_of,
    projects,
    read,
    written,
)
from deploy.reporting.report import Report

PYTHON_MIN: Final = "3.11"
ENVIRONMENTS: Final = [
    {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }
    for python in (PYTHON_MIN, "3.12", "3.13", "3.14", "3.15")
]
"""Values of the markers on the systems that the locks are for; the machine's own processor stands for all."""
CONSTRAINTS: Final = "constraints.txt"


class ResolveError(Exception):
    """The package index does not answer, or no versions satisfy all requirements; the text is uv's."""


def main() -> int:
    options = parse_arguments()
    report = Report()
    wanted = asked(projects(ROOT))
    before = pins_in(wanted, ROOT)
    try:
        with report.live():
            locks = refreshed(wanted, before if options.keep else [], report)
    except (ResolveError, LockError, OSError) as error:
        print(f"lock: {error}", file=sys.stderr)
        return 1
    (ROOT / DIRECTORY).mkdir(exist_ok=True)
    for name, lock in locks.items():
        path_of(name, ROOT).write_text(written(lock))
    old, new = versions_of(before), versions_of(pins_in(wanted, ROOT))
    changed = {name: [old.get(name, ""), new.get(name, "")] for name in sorted(old.keys() | new.keys())}
    changed = {name: [before, after] for name, (before, after) in changed.items() if before != after}
    for name, (former, present) in changed.items():
        report.event(f"{name} {former or '(new)'} -> {present or '(gone)'}")
    report.result({"locks": {name: len(lock.pins) for name, lock in locks.items()}, "changed": changed})
    return 0


def pins_in(names: Iterable[str], root: Path) -> list[Pin]:
    """Return the pins of the locks that exist and can be read."""
    pins: list[Pin] = []
    for name in names:
        with contextlib.suppress(OSError, LockError):
            pins += read(path_of(name, root)).pins
    return pins


def versions_of(pins: Iterable[Pin]) -> dict[str, str]:
    """Return the version of each package; a package that depends on the Python has several, joined by a comma."""
    versions: dict[str, set[str]] = {}
    for pin in pins:
        versions.setdefault(pin.name, set()).add(pin.version)
    return {name: ", ".join(sorted(each)) for name, each in versions.items()}


def refreshed(wanted: dict[str, tuple[str, ...]], kept: Sequence[Pin], report: Report) -> dict[str, Lock]:
    """Resolve every lock. Versions of `kept` stay where the requirements allow it. Raises ResolveError."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        report.step("resolving all requirements together")
        (work / CONSTRAINTS).write_text("")
        (work / "all.txt").write_text("".join(sorted({f"{head_of(pin)}\n" for pin in kept})))
        together = sorted({each for requirements in wanted.values() for each in requirements})
        resolve(work, together, work / "all.txt")
        shutil.copyfile(work / "all.txt", work / CONSTRAINTS)
        locks: dict[str, Lock] = {}
        for name, requirements in wanted.items():
            report.step(f"the lock {name}")
            resolve(work, requirements, work / f"{name}.txt", "--generate-hashes")
            pins = installable(pins_of((work / f"{name}.txt").read_text(), requirements))
            locks[name] = Lock(requirements, pins)
        return locks


def resolve(work: Path, requirements: Sequence[str], out: Path, *options: str) -> None:
    """Write the versions that answer the requirements to `out`, within the constraints. Raises ResolveError."""
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", "compile", "-", "--quiet", "--universal", "--python-version", PYTHON_MIN, "--no-header"]
    # An index inside an organization often has a certificate that only the system knows.
    command += ["--system-certs", "--no-emit-index-url"]
    command += ["--constraints", CONSTRAINTS, "--output-file", out.name, *options]
    lines = "\n".join(requirements)
    done = subprocess.run(command, cwd=work, input=lines, capture_output=True, text=True)  # noqa: S603
    if done.returncode != 0:
        raise ResolveError(f"uv cannot resolve {out.stem}:\n{done.stderr.strip()}")


def pins_of(text: str, requirements: Sequence[str]) -> tuple[Pin, ...]:
    """Parse what uv has written; a package that the project requires itself gets DIRECT as one of its `via`."""
    direct = {canonicalize_name(Requirement(each).name) for each in requirements}
    pins: list[Pin] = []
    for line in text.replace(" \\\n", "\n").splitlines():
        words = line.strip()
        if words.startswith("--hash="):
            pins[-1] = pins[-1]._replace(hashes=(*pins[-1].hashes, words.removeprefix("--hash=")))
        elif words.startswith("#"):
            # uv also names the files of constraints here.
            name = words.removeprefix("#").strip().removeprefix("via").strip()
            if name and not name.startswith("-"):
                pins[-1] = pins[-1]._replace(via=(*pins[-1].via, name))
        else:
            pin, _, marker = words.partition(" ; ")
            name, _, version = pin.partition("==")
            pins.append(Pin(name, version, marker, (), (DIRECT,) if name in direct else ()))
    return tuple(pins)


def installable(pins: Sequence[Pin]) -> tuple[Pin, ...]:
    """Leave out the pins that no CPython on Linux installs, and the traces of these in `via`."""
    kept = [pin for pin in pins if not pin.marker or any(Marker(pin.marker).evaluate(each) for each in ENVIRONMENTS)]
    names = {DIRECT, *(pin.name for pin in kept)}
    return tuple(pin._replace(via=tuple(name for name in pin.via if name in names)) for pin in kept)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make lock", description="Write the locks anew.")
    parser.add_argument("--keep", action="store_true", help="Keep the locked versions that the requirements allow.")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
