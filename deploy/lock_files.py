"""The locks in deploy/locks: every version that `make` and the images install, with the hashes of all its files.

The ranges in the pyproject files are the truth for users; a lock is one choice within them, for any CPython >= 3.11 on
Linux. `make lock` writes the locks anew, and `make lint` fails when a lock does not follow from the pyproject files.
This module reads, writes and checks locks without a network.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[1]
DIRECTORY: Final = Path("deploy", "locks")
FOLDERS: Final = {"keelmq-broker": ".", "keelmq": "client", "keelmq-spark": "spark"}
"""Folder of each package of the project, by the name of the package."""
SDK_EXTRAS: Final = ("cli", "sql")
"""Extras of the SDK that every target installs."""
DIRECT: Final = "pyproject.toml"
"""Name that stands in a lock for the project itself, which requires a package directly."""
_TITLE: Final = "# Written by `make lock` from the pyproject files, which ask for:"
_ASKED: Final = "#   "
_VIA: Final = "# via "


class LockError(Exception):
    """A lock file cannot be read; the text names the file and the line."""


class Pin(NamedTuple):
    """One version of a package. `via` names the packages that require it, or DIRECT."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    via: tuple[str, ...]


class Lock(NamedTuple):
    """The requirements that a lock answers, in the words of the pyproject files, and the pins that answer them."""

    asked: tuple[str, ...]
    pins: tuple[Pin, ...]


def projects(root: Path) -> dict[str, dict[str, Any]]:
    """Return the content of the pyproject file of each package, by the name of the package."""
    return {name: tomllib.loads((root / folder / "pyproject.toml").read_text()) for name, folder in FOLDERS.items()}


def asked(files: Mapping[str, dict[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return the requirements that each lock has to answer, by the name of the lock."""
    broker, sdk, spark = (files[name]["project"] for name in FOLDERS)
    groups = files["keelmq-broker"]["dependency-groups"]
    lists: dict[str, Iterable[str]] = {
        "build": (each for file in files.values() for each in file["build-system"]["requires"]),
        "broker": broker["dependencies"],
        "sdk": wanted_of(sdk, SDK_EXTRAS),
        "sdk_otel": sdk["optional-dependencies"]["otel"],
        "sdk_s3": sdk["optional-dependencies"]["s3"],
        "spark": (each for line in spark["dependencies"] for each in expanded(line, sdk)),
        "dev": broker["optional-dependencies"]["dev"],
        **groups,
    }
    return {name: tuple(sorted(set(each), key=str.lower)) for name, each in lists.items()}


def wanted_of(project: Mapping[str, Any], extras: Iterable[str]) -> list[str]:
    """Return the requirements of a package with some of its extras."""
    return [*project["dependencies"], *(each for extra in extras for each in project["optional-dependencies"][extra])]


def expanded(requirement: str, sdk: Mapping[str, Any]) -> list[str]:
    """Return the requirements that the SDK has in place of the SDK, whose name means another program on an index."""
    parsed = Requirement(requirement)
    return wanted_of(sdk, sorted(parsed.extras)) if parsed.name == sdk["name"] else [requirement]


def path_of(name: str, root: Path) -> Path:
    return root / DIRECTORY / f"{name}.txt"


def read(path: Path) -> Lock:
    """Read a lock. Raises LockError when a line is none that `written` writes, such as an option of pip."""
    requirements: list[str] = []
    pins: list[Pin] = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if line.startswith(_ASKED):
            requirements.append(line.removeprefix(_ASKED))
        elif match := re.fullmatch(r"([a-z0-9-]+)==([\w.!+]+)(?: ; (.+?))? \\", line):
            pins.append(Pin(match[1], match[2], match[3] or "", (), ()))
        elif pins and (match := re.fullmatch(r"    --hash=(sha256:[0-9a-f]{64})(?: \\)?", line)):
            pins[-1] = pins[-1]._replace(hashes=(*pins[-1].hashes, match[1]))
        elif pins and line.strip().startswith(_VIA):
            pins[-1] = pins[-1]._replace(via=tuple(line.strip().removeprefix(_VIA).split(", ")))
        elif line != _TITLE:
            raise LockError(f"{path.name}, line {number}: a lock does not contain {line!r}")
    return Lock(tuple(requirements), tuple(pins))


def head_of(pin: Pin) -> str:
    """Return the requirement that a pin is, without its hashes."""
    return f"{pin.name}=={pin.version}{pin.marker and f' ; {pin.marker}'}"


def written(lock: Lock) -> str:
    """Return the text of a lock file, which pip reads as a requirements file."""
    lines = [_TITLE, *(_ASKED + each for each in lock.asked)]
    for pin in lock.pins:
        lines.append(f"{head_of(pin)} \\")
        lines += [f"    --hash={each} \\" for each in pin.hashes]
        lines[-1] = lines[-1].removesuffix(" \\")
        lines.append(f"    {_VIA}{', '.join(pin.via)}")
    return "\n".join(lines) + "\n"


def check(root: Path) -> list[str]:
    """Return one sentence per fault of the locks of a tree: none when they follow from its pyproject files."""
    faults: list[str] = []
    wanted = asked(projects(root))
    versions: dict[str, tuple[set[str], str]] = {}
    stray = {path.stem for path in (root / DIRECTORY).glob("*.txt")} - set(wanted)
    faults += [f"{name}.txt is no lock of the project" for name in sorted(stray)]
    for name, requirements in wanted.items():
        try:
            lock = read(path_of(name, root))
        except (LockError, OSError) as error:
            faults.append(str(error))
            continue
        faults += [f"{name}.txt {fault}" for fault in faults_of(lock, requirements)]
        for pin in lock.pins:
            own = {each.version for each in lock.pins if each.name == pin.name}
            known, other = versions.setdefault(pin.name, (own, name))
            if known != own:
                faults.append(f"{name}.txt pins {pin.name} {pin.version}, but {other}.txt pins {', '.join(known)}")
    return faults


def faults_of(lock: Lock, requirements: Sequence[str]) -> list[str]:
    """Return what is wrong with one lock, each as the end of a sentence that begins with its name."""
    faults: list[str] = []
    if lock.asked != tuple(requirements):
        changed = ", ".join(sorted(set(lock.asked) ^ set(requirements)))
        faults.append(f"was made for other requirements: {changed}")
    names = {pin.name for pin in lock.pins}
    if len({(pin.name, pin.marker) for pin in lock.pins}) != len(lock.pins):
        faults.append("pins a package twice")
    for requirement in map(Requirement, requirements):
        name = canonicalize_name(requirement.name)
        if name not in names:
            faults.append(f"does not pin {name}")
        versions = [pin.version for pin in lock.pins if pin.name == name]
        wrong = [each for each in versions if not requirement.specifier.contains(each, prereleases=True)]
        faults += [f"pins {name} {version}, but the project asks for {requirement}" for version in wrong]
    for pin in lock.pins:
        if not pin.hashes:
            faults.append(f"has no hash of {pin.name}")
        if pin.name in FOLDERS:
            faults.append(f"pins {pin.name}, which is of this project")
        if unknown := set(pin.via) - {DIRECT, *names}:
            faults.append(f"pins {pin.name} for {', '.join(sorted(unknown))}, which it lacks")
    return faults


def main() -> int:
    faults = check(ROOT)
    for fault in faults:
        print(f"locks: {fault}", file=sys.stderr)
    if faults:
        print("locks: run `make lock LOCK_ARGS=--keep` and commit deploy/locks", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
