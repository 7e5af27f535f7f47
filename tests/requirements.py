"""Requirements of the tests beside Python: whether the machine has them, whether tests may use them, and why not.

    NAMESPACES.require()    # in a fixture or a test: skips it, with the reason, where that does not work
    NAMESPACES.reason       # elsewhere: None when it works

Programs and their packages are listed in tests/debian_packages.txt, which `make test` installs where it may.
"""

import functools
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from raft.syncing.kernel_sync import KernelSync
from store.log.disk import PosixFile
from store.log.errors import DiskError

REPOSITORY: Final = Path(__file__).parents[1]
NO_SKIP_VARIABLE: Final = "TESTS_MAY_NOT_SKIP"
"""Set by .ci/run where everything can be had: what is missing then fails the tests that need it."""
UNSHARE: Final = ("unshare", "--mount", "--net", "--propagation", "private")
UNSHARE_UNPRIVILEGED: Final = ("unshare", "--user", "--map-root-user", *UNSHARE[1:])
_PACKAGES: Final = REPOSITORY / "tests" / "debian_packages.txt"
_PTRACE_SCOPE: Final = Path("/proc/sys/kernel/yama/ptrace_scope")
_PROBE_TIMEOUT_S: Final = 120
_SYNC_UNTIL_THAT_FAILS: Final = """
import os, sys, time
file = os.open(sys.argv[1], os.O_RDWR)
while True:
    os.fdatasync(file)
    time.sleep(0.01)
"""


class Program(NamedTuple):
    """A program that tests need. `directories` is a pattern; the last version that it finds comes before the PATH."""

    name: str
    package: str
    directories: str | None = None

    def path(self) -> str | None:
        """Return the path of the program; None when it is missing."""
        found = Path("/").glob(f"{self.directories.lstrip('/')}/{self.name}") if self.directories else ()
        versions = sorted(found, key=lambda path: [int(part) for part in path.parts if part.isdigit()])
        return str(versions[-1]) if versions else shutil.which(self.name)


@functools.cache
def programs() -> dict[str, Program]:
    """Return all listed programs by name."""
    lines = (line.split() for line in _PACKAGES.read_text().splitlines() if not line.startswith("#"))
    return {words[0]: Program(*words) for words in lines if words}


def path_of(name: str) -> str:
    """Return the path of a program whose requirement holds."""
    found = programs()[name].path()
    assert found is not None, f"{name} is missing"
    return found


class Requirement:
    """Programs that have to be there, and an attempt to use them, which is made once per process at most."""

    def __init__(self, *names: str, root: bool = False, attempt: Callable[[], str | None] | None = None) -> None:
        """Make the requirement. `attempt` is called when all programs are there, and returns why they cannot be used
        here.
        """
        self.programs: Final = [programs()[name] for name in names]
        self._root = root
        self._attempt = attempt

    @functools.cached_property
    def reason(self) -> str | None:
        """The reason why this machine does not meet the requirement; None when it does. Missing programs are named with
        their packages.
        """
        missing = [program for program in self.programs if program.path() is None]
        if missing:
            packages = sorted({program.package for program in missing})
            return f"{', '.join(each.name for each in missing)} not found (Debian: {' '.join(packages)})"
        if self._root and os.geteuid() != 0:
            return "only root may do this"
        return None if self._attempt is None else self._attempt()

    def require(self) -> None:
        """Return when the machine meets the requirement. Otherwise skip or fail as `skip` does."""
        if self.reason is not None:
            skip(self.reason)


def may_skip() -> bool:
    """Return whether a test that the machine cannot run is skipped instead of failed."""
    return not os.environ.get(NO_SKIP_VARIABLE)


def skip(reason: str) -> NoReturn:
    """Skip the test that calls this, because the machine cannot run it. Where nothing may be skipped, the test
    fails.
    """
    import pytest  # not for the programs that only ask for reasons

    if may_skip():
        pytest.skip(reason)
    pytest.fail(f"{reason}, and {NO_SKIP_VARIABLE} is set", pytrace=False)


def refusal(command: Sequence[str]) -> str | None:
    """Return why `command` does not work, in its own words; None when it does."""
    try:
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"{command[0]} failed"])[0]


def database_user() -> str | None:
    """Return the user that PostgreSQL has to run as, for it refuses root; None when this process may run it itself."""
    if os.geteuid() != 0:
        return None
    known = {each.pw_name for each in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in known), "root")


def _no_database_user() -> str | None:
    return "PostgreSQL refuses root, and neither user postgres nor nobody exists" if database_user() == "root" else None


@functools.cache
def unshare_command() -> tuple[str, ...] | None:
    """Return the command prefix that moves a program into namespaces where a network for nodes can be made; None when
    no such command works.
    """
    return next((each for each in (UNSHARE, UNSHARE_UNPRIVILEGED) if _network_refusal(each) is None), None)


@functools.cache
def _network_refusal(unshare: tuple[str, ...]) -> str | None:
    """Return why no network for nodes can be made; None when it can. It tries a small one with some faults: different
    kernels and containers lack different parts of it.
    """
    return refusal([*unshare, sys.executable, "-m", "tests.chaos.network"])


def _no_namespaces() -> str | None:
    if unshare_command() is not None:
        return None
    return f"no network of its own: {_network_refusal(UNSHARE if os.geteuid() == 0 else UNSHARE_UNPRIVILEGED)}"


def _no_private_mounts() -> str | None:
    reason = refusal([*UNSHARE, "true"])
    return None if reason is None else f"no namespaces: {reason}"


def _no_overlay() -> str | None:
    """Return why this machine's root cannot be laid below another one; None when it can."""
    with tempfile.TemporaryDirectory() as place:
        over = f"overlay overlay -o lowerdir=/,upperdir={place}/up,workdir={place}/work {place}/root"
        script = f"mount -t tmpfs tmpfs {place} && cd {place} && mkdir up work root && mount -t {over}"
        return refusal([*(unshare_command() or UNSHARE), "/bin/sh", "-c", script])


def _no_small_disk() -> str | None:
    with tempfile.TemporaryDirectory() as directory:
        reason = refusal(["mount", "-t", "tmpfs", "tmpfs", directory])
        if reason is None:
            subprocess.run(["umount", directory], check=True)
    return reason


def _no_tracing() -> str | None:
    if os.geteuid() != 0 and _PTRACE_SCOPE.exists() and _PTRACE_SCOPE.read_text().strip() != "0":
        return "this user may not trace processes that run (kernel.yama.ptrace_scope)"
    with tempfile.NamedTemporaryFile() as file:
        command = [sys.executable, "-c", _SYNC_UNTIL_THAT_FAILS, file.name]
        try:
            victim = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        except OSError as error:
            return str(error)
        try:
            # It ends with its victim, which ends when a system call fails.
            inject = ("-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO")
            return refusal(["strace", "-f", "-qq", "-o", "/dev/null", *inject, "-p", str(victim.pid)])
        finally:
            victim.kill()
            victim.wait()


def _no_kernel_sync() -> str | None:
    with tempfile.NamedTemporaryFile() as file:
        try:
            KernelSync.proven_on(PosixFile(file.fileno(), file.name)).close()
        except (OSError, DiskError) as error:
            return str(error)
    return None


def _no_build_backend() -> str | None:
    """Return why `make dist` cannot install the locked build backend anew, from the package index or pip's cache; None
    when it can.
    """
    lock = REPOSITORY / "deploy" / "locks" / "build.txt"
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--require-hashes"]
    reason = refusal([*pip, "--requirement", str(lock)])
    return None if reason is None else f"no build backend: {reason}"


MAKE: Final = Requirement("make")
BASH: Final = Requirement("bash")
GIT: Final = Requirement("git")
OPENSSL: Final = Requirement("bash", "openssl")
ANSIBLE: Final = Requirement("ansible-playbook")
ANSIBLE_LINT: Final = Requirement("ansible-lint")
OVERLAY: Final = Requirement("unshare", "mount", attempt=_no_overlay)
"""Roots of their own for programs, made of this machine's."""
KERNEL_SYNC: Final = Requirement(attempt=_no_kernel_sync)
"""Linux AIO, on the file system of temporary files."""
BUILDING: Final = Requirement("git", attempt=_no_build_backend)
DYING_WITH_PARENT: Final = Requirement("setpriv")
CHROMIUM: Final = Requirement("chromium", "chromedriver")
POSTGRESQL: Final = Requirement("initdb", "pg_ctl", "setpriv", attempt=_no_database_user)
SMALL_DISK: Final = Requirement("mount", "umount", root=True, attempt=_no_small_disk)
TRACING: Final = Requirement("strace", attempt=_no_tracing)
NAMESPACES: Final = Requirement(
    "unshare", "nsenter", "setpriv", "mount", "umount", "ip", "tc", "nft", attempt=_no_namespaces
)
"""All or nothing: in namespaces of which a part cannot be had, nodes would not even find their loopback."""
DEBIAN_ROOT: Final = Requirement("dpkg-deb", "adduser", "unshare", "mount", "runuser", root=True, attempt=_no_overlay)
"""Tools that install packages of Debian as root, in a copy of the machine."""
POWER_LOSS: Final = Requirement("unshare", "mount", "umount", root=True, attempt=_no_private_mounts)
TYPESCRIPT: Final = Requirement("tsc")
NODE: Final = Requirement("node")
PROMETHEUS: Final = Requirement("prometheus", "promtool")
MAKING_EXT4: Final = Requirement("mkfs.ext4")
MAKING_XFS: Final = Requirement("mkfs.xfs")
