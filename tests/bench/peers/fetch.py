"""Fetches the peers in pinned versions into a cache, with the package clients of this machine: go, apt-get and mvn.

Nothing is installed: Debian's packages are only unpacked. A version that is there is not asked for again. The load
generators are compiled anew when their sources change.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

NATS_SERVER: Final = "2.15.2"
RABBITMQ: Final = "3.10.8"
PERF_TEST: Final = "2.22.1"
KAFKA: Final = "4.4.0"
ROCKETMQ: Final = "5.5.0"
DEBIAN_PACKAGES: Final = (
    "rabbitmq-server",
    *(
        f"erlang-{part}"
        for part in (
            *("base", "asn1", "crypto", "eldap", "ftp", "inets", "mnesia", "os-mon", "parsetools", "public-key"),
            *("runtime-tools", "snmp", "ssl", "syntax-tools", "tftp", "tools", "xmerl"),
        )
    ),
)
CLIENTS: Final = Path(__file__).with_name("clients")
COMMAND_TIMEOUT_S: Final = 600.0
_ERL: Final = """#!/bin/sh
# Debian's erl knows only the folder it is installed to.
export ROOTDIR={root} BINDIR={root}/erts-{erts}/bin EMU=beam PROGNAME=erl
exec "$BINDIR/erlexec" "$@"
"""
_POM: Final = """<project><modelVersion>4.0.0</modelVersion>
<groupId>keelmq.bench</groupId><artifactId>peers</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies></project>
"""
_DEPENDENCY: Final = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


class FetchError(Exception):
    """A peer cannot be had on this machine; the text says why."""


class Cache:
    """The folder of fetched peers. `say` is told what is fetched."""

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        self.directory = directory.absolute()
        self._say = say

    def nats_server(self) -> Path:
        """Return the program nats-server. Raises FetchError, as all methods do."""
        return self._made(f"nats-server-{NATS_SERVER}", self._go_install) / "nats-server"

    def nats_load(self) -> Path:
        source = CLIENTS / "nats"
        return self._made(f"nats-load-{_digest(source)}", lambda into: self._go_build(source, into)) / "load"

    def rabbitmq(self) -> Path:
        """Return the folder with Debian's packages unpacked, and with `bin/erl`, which works there."""
        return self._made(f"rabbitmq-{RABBITMQ}", self._unpack_debian)

    def jars(self, name: str, artifacts: Sequence[tuple[str, str, str]]) -> Path:
        """Return the folder with these artifacts (group, name, version) and all they depend on."""
        return self._made(name, lambda into: self._copy_jars(artifacts, into))

    def java_load(self, name: str, jars: Path) -> Path:
        """Return the folder with the classes of the load generator `name`, compiled against the jars."""
        sources = [CLIENTS / "java" / "Load.java", CLIENTS / "java" / f"{name}.java"]
        made = f"{name}-{_digest(CLIENTS / 'java')}-{jars.name}"
        return self._made(made, lambda into: self._run(["javac", "-cp", f"{jars}/*", "-d", into, *sources]))

    def _made(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return the folder of that name; make it beside, so that a fetch that was cut short is not taken for whole."""
        made = self.directory / name
        if made.exists():
            return made
        self._say(f"fetching {name}")
        part = self.directory / f"{name}.part"
        shutil.rmtree(part, ignore_errors=True)
        try:
            part.mkdir(parents=True)
            make(part)
            part.rename(made)
        except OSError as error:
            raise FetchError(f"the cache cannot be written: {error}") from error
        return made

    def _run(
        self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None, directory: Path | None = None
    ) -> None:
        program = str(command[0])
        try:
            done = subprocess.run(
                [str(word) for word in command],
                env={**os.environ, **(environment or {})},
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=COMMAND_TIMEOUT_S,
            )
        except FileNotFoundError as error:
            raise FetchError(f"{program} is not installed") from error
        except subprocess.TimeoutExpired as error:
            raise FetchError(f"{program} took more than {COMMAND_TIMEOUT_S:.0f} s") from error
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() if line.strip()]
            said = next((line for line in lines if "rror" in line), lines[-1] if lines else "nothing")
            raise FetchError(f"{program} failed: {said[:300]}")

    def _go_install(self, into: Path) -> None:
        self._run(
            ["go", "install", f"github.com/nats-io/nats-server/v2@v{NATS_SERVER}"], {"GOBIN": str(into)}, self.directory
        )

    def _go_build(self, source: Path, into: Path) -> None:
        self._run(["go", "build", "-o", into / "load", "."], directory=source)

    def _unpack_debian(self, into: Path) -> None:
        packages = into / "packages"
        packages.mkdir()
        self._run(["apt-get", "download", *DEBIAN_PACKAGES], directory=packages)
        for package in sorted(packages.glob("*.deb")):
            self._run(["dpkg", "-x", package, into])
        shutil.rmtree(packages)
        if not (into / _RABBITMQ_HOME).exists():
            raise FetchError(f"Debian has another version of RabbitMQ than {RABBITMQ}")
        [runtime] = (into / "usr/lib/erlang").glob("erts-*")
        root = self.directory / f"rabbitmq-{RABBITMQ}" / "usr/lib/erlang"
        (into / "bin").mkdir()
        erl = into / "bin" / "erl"
        erl.write_text(_ERL.format(root=root, erts=runtime.name.removeprefix("erts-")))
        erl.chmod(0o755)
        (into / "bin" / "epmd").symlink_to(f"../usr/lib/erlang/{runtime.name}/bin/epmd")

    def _copy_jars(self, artifacts: Sequence[tuple[str, str, str]], into: Path) -> None:
        dependencies = "".join(_DEPENDENCY.format(*artifact) for artifact in artifacts)
        pom = into / "pom.xml"
        pom.write_text(_POM.format(dependencies=dependencies))
        what = ["dependency:copy-dependencies", f"-DoutputDirectory={into}", "-DincludeScope=runtime"]
        self._run(["mvn", "-q", "-B", "-f", pom, *what])


_RABBITMQ_HOME: Final = Path(f"usr/lib/rabbitmq/lib/rabbitmq_server-{RABBITMQ}")


def rabbitmq_home(unpacked: Path) -> Path:
    return unpacked / _RABBITMQ_HOME


def _digest(directory: Path) -> str:
    """Return a short hash of the files in the folder."""
    content = hashlib.sha256()
    for file in sorted(directory.iterdir()):
        content.update(file.name.encode() + b"\0" + file.read_bytes())
    return content.hexdigest()[:12]
