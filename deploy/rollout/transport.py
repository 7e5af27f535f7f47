"""The way to a host: the agent (host_agent.py) run by Python there, on this machine or over ssh.

ssh is the system's, so its configuration, agent and known hosts apply. It asks nothing (BatchMode): a question would
stand in the way of a tool that may run without a terminal.
"""

import base64
import contextlib
import hashlib
import json
import secrets
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from deploy.rollout.agent_calls import AGENT_CALLS, call_alone
from deploy.rollout.awaited import AWAITED
from deploy.rollout.inventory import Inventory, Node
from deploy.rollout.side_by_side import AT_ONCE, side_by_side

H = TypeVar("H")
T = TypeVar("T")

AGENT: Final = ("host_root", "host_data", "host_releases", "host_agent")
"""The modules that run on a host, each after those that it imports."""
PRELUDE: Final = """import json, sys
if sys.version_info < (3, 11, 4):
    version = ".".join(map(str, sys.version_info[:3]))
    print(json.dumps({"error": "Python " + version + " is older than 3.11.4; name another one (cluster.python)"}))
    sys.exit()
"""
"""Lines that any Python can read. 3.11.4 is the first that unpacks bundles safely."""
LOADER: Final = """import os
for name, source in {modules!r}:
    sys.modules[name] = module = type(sys)(name)
    exec(source, module.__dict__)
module.main()
sys.stdout.flush()
os._exit(0)
"""
"""The last line: to take the interpreter down costs more than most calls."""
CALL_TIMEOUT_S: Final = 900.0
"""Longest call: an installation on a slow host."""
CONNECT_TIMEOUT_S: Final = 10
ALIVE_INTERVAL_S: Final = 15
"""Seconds of silence after which ssh asks the host for a sign of life."""
ALIVE_COUNT: Final = 3
"""Number of unanswered requests for a sign of life after which ssh gives up."""
BLOCK_BYTES: Final = 1 << 20
READS: Final = ("facts", "logs", "version", "disk_defect", "reach", "listen", "hold", "digest")
"""Actions that change no node, for which a run needs no hold."""
NAME_BYTES: Final = 8


class HostError(Exception):
    """Something failed on a host; the text says what, and `node` on which."""

    def __init__(self, node: Node, message: str) -> None:
        super().__init__(f"node {node.id} ({node.host}): {message}")
        self.node = node


def answers_of(ask: Callable[[H], T], hosts: Sequence[H], at_once: int = AT_ONCE) -> list[T | HostError]:
    """Return what `ask` returns for each of the hosts, in their order, or the HostError of one that is not reached or
    says no.

    At most `at_once` hosts are asked at a time, so that dead ones take no longer than one.
    """

    def answer(host: H) -> T | HostError:
        try:
            return ask(host)
        except HostError as error:
            return error

    return side_by_side(answer, hosts, at_once)


class Run:
    """The run of the tool in this process, as the hosts know it. One that has lost a host changes none any more:
    another run may have begun, and each would stop a node while the others are healthy.
    """

    def __init__(self) -> None:
        self._name = ""
        self._held: list[tuple[Node, subprocess.Popen[bytes]]] = []

    @contextlib.contextmanager
    def named(self) -> Iterator[str]:
        """Have calls that change hosts carry a new name within the block."""
        before = self._name, self._held
        self._name, self._held = secrets.token_hex(NAME_BYTES), []
        try:
            yield self._name
        finally:
            self._name, self._held = before

    def holds(self, node: Node, process: subprocess.Popen[bytes]) -> None:
        """Note that the host of the node is held for as long as the process runs."""
        self._held.append((node, process))

    def told(self, node: Node) -> dict[str, Any] | None:
        """Return what a call that changes the host of the node tells of the run; None outside of any. Raises HostError
        when a hold has ended, on whichever host.
        """
        for held, process in self._held:
            if process.poll() is not None:
                raise HostError(held, "this run no longer holds the host, another one may have begun; run it again")
        if not self._name:
            return None
        return {"name": self._name, "root": node.root, "is_held": any(held.id == node.id for held, _ in self._held)}


RUN: Final = Run()
"""The run of this process."""


def agent_source() -> str:
    """Return the program that runs on a host: it reads one request and writes the answer."""
    modules = [(f"{__package__}.{name}", Path(__file__).with_name(f"{name}.py").read_text()) for name in AGENT]
    return PRELUDE + LOADER.format(modules=modules)


class Host:
    """One node's place. Every method may be repeated, and raises HostError."""

    def __init__(self, inventory: Inventory, node: Node) -> None:
        self.node = node
        self._program = inventory.cluster.program
        self._supervised = inventory.cluster.supervised
        self._owner = f"node {node.id} of the cluster {inventory.cluster.id}\n"
        source = agent_source()
        if node.ssh:
            options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}"]
            # The end of calls without a longest time.
            options += ["-o", f"ServerAliveInterval={ALIVE_INTERVAL_S}", "-o", f"ServerAliveCountMax={ALIVE_COUNT}"]
            remote = shlex.join([inventory.cluster.python, "-IS", "-c", source])
            self._command = ["ssh", *options, *inventory.cluster.ssh_options, "--", node.ssh, remote]
        else:
            self._command = [sys.executable, "-IS", "-c", source]

    def facts(self) -> dict[str, Any]:
        return self._call("facts", root=self.node.root, program=self._program, owner=self._owner)

    def claim(self) -> None:
        """Mark the node's root as one of this tool. Raises HostError when something else is in it."""
        self._call("claim", root=self.node.root, owner=self._owner)

    def prepare(self, files: dict[str, bytes], program: str, config: str) -> None:
        """Claim the node's root, store the files below it, and have keelmqd check the configuration among them."""
        encoded = {name: base64.b64encode(content).decode() for name, content in files.items()}
        given: dict[str, Any] = {"root": self.node.root, "owner": self._owner, "files": encoded}
        self._call("prepare", **given, program=program, config=config, supervised=self._supervised)

    def put(self, name: str, content: bytes, mode: int = 0o600) -> str:
        """Store the file below the node's root and return its path."""
        path = f"{self.node.root}/{name}"
        self._call("put", content, path=path, sha256=hashlib.sha256(content).hexdigest(), mode=mode)
        return path

    def put_file(self, name: str, source: Path, sha256: str, sent: Callable[[int], None]) -> None:
        """Store a file of any size, whose SHA-256 is given, below the node's root unless it is there. `sent` is told of
        each block's bytes. There is no longest time.
        """
        if self.digest(name) == sha256:
            return
        request = self._request("put", path=f"{self.node.root}/{name}", sha256=sha256, mode=0o600)
        pipe = subprocess.PIPE
        with (
            source.open("rb") as stream,
            subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=pipe) as process,  # noqa: S603
        ):
            if process.stdin is None:
                raise HostError(self.node, "put: no pipes")
            with contextlib.suppress(BrokenPipeError):  # its answer says why it has ended
                process.stdin.write(request)
                while block := stream.read(BLOCK_BYTES):
                    process.stdin.write(block)
                    sent(len(block))
            output, errors = process.communicate()
        self._answer("put", process.returncode, output, errors)

    def put_if_other(self, name: str, content: bytes, mode: int) -> bool:
        """Store the file unless it is there with this content, and return whether it was stored."""
        if self.digest(name) == hashlib.sha256(content).hexdigest():
            return False
        self.put(name, content, mode)
        return True

    def start(self, program: str, config: str) -> None:
        given: dict[str, Any] = {"root": self.node.root, "owner": self._owner, "supervised": self._supervised}
        self._call("start", **given, program=program, config=config)

    def stop(self, timeout_s: float) -> None:
        self._call("stop", root=self.node.root, timeout_s=timeout_s, owner=self._owner)

    def logs(self, lines: int) -> list[str]:
        found: list[str] = self._call("logs", root=self.node.root, lines=lines)["lines"]
        return found

    def install(self, bundle: bytes, name: str) -> dict[str, Any]:
        """Make the bundle the current release under this name, and return the facts then."""
        given: dict[str, Any] = {"root": self.node.root, "owner": self._owner, "program": self._program}
        return self._call("install_sent", bundle, **given, name=name, sha256=hashlib.sha256(bundle).hexdigest())

    def rollback(self) -> None:
        self._call("rollback", root=self.node.root, owner=self._owner)

    def stay(self) -> None:
        """Forget the release from before the current one."""
        self._call("stay", root=self.node.root, owner=self._owner)

    def version(self, program: str) -> str:
        return str(self._call("version", program=program)["version"])

    def disk_defect(self) -> str:
        """Return why files of the node's root cannot be made durable, empty when they can."""
        return str(self._call("disk_defect", root=self.node.root)["reason"])

    def reach(self, targets: list[list[Any]]) -> list[list[Any]]:
        """Return the hosts and ports that cannot be reached from here, each with the reason."""
        refused: list[list[Any]] = self._call("reach", targets=targets)["refused"]
        return refused

    def begin_hold(
        self, who: str, silence_s: float, *, claims: bool = False, name: str = ""
    ) -> subprocess.Popen[bytes]:
        """Begin to keep other runs than `name` out of the host, until standard input of the process ends, or nothing
        comes there for `silence_s`. Its first line says whether that worked. With `claims` the node's root is made for
        it.
        """
        how: dict[str, Any] = {"who": who, "silence_s": silence_s, "claims": claims, "name": name}
        request = self._request("hold", root=self.node.root, owner=self._owner, **how)
        pipe = subprocess.PIPE
        process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)  # noqa: S603
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has ended: its output says why
                process.stdin.write(request)
                process.stdin.flush()
        return process

    @contextlib.contextmanager
    def listening(self, ports: list[int]) -> Iterator[None]:
        """Have the host accept connections within the block. Raises HostError when a port is in use."""
        request = self._request("listen", ports=ports)
        pipe = subprocess.PIPE
        with subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:  # noqa: S603
            if process.stdin is None or process.stdout is None:
                raise HostError(self.node, "listen: no pipes")
            process.stdin.write(request)
            process.stdin.flush()
            with self.awaited("listen", None):
                answer = json.loads(process.stdout.readline() or b'{"error": "no answer"}')
            if "error" in answer:
                raise HostError(self.node, answer["error"])
            yield
            process.stdin.close()

    def drain(self, *, drained: bool) -> None:
        self._call("drain", root=self.node.root, owner=self._owner, drained=drained)

    def hang_up(self) -> None:
        self._call("hang_up", root=self.node.root, owner=self._owner)

    def digest(self, name: str) -> str:
        """Return the SHA-256 of the file below the node's root, empty without one."""
        return str(self._call("digest", path=f"{self.node.root}/{name}")["sha256"])

    def note_restore(self, note: dict[str, Any]) -> None:
        """Note a restore on the host; with `finished` in it, remove the backup that was brought."""
        self._call("note_restore", root=self.node.root, owner=self._owner, note=note)

    def restore(self, program: str, arguments: list[str]) -> str:
        """Run `keelmqd restore` on the host and return what it said, empty when that was done before."""
        return self._offline("restore", program, arguments)

    def recover(self, program: str, arguments: list[str]) -> str:
        """Run `keelmqd recover` on the host and return what it said."""
        return self._offline("recover", program, arguments)

    def set_aside(self) -> None:
        """Rename the data of the stopped node, beside what was set aside before."""
        self._call("set_aside", root=self.node.root, owner=self._owner)

    def destroy(self) -> None:
        self._call("destroy", root=self.node.root, owner=self._owner)

    def awaited(self, action: str, longest_s: float | None) -> contextlib.AbstractContextManager[None]:
        """Note within the block that the host is waited for, for `longest_s` if there is a longest time."""
        is_remote = bool(self.node.ssh)

        def limit(waited_s: float) -> str:
            if is_remote and waited_s < CONNECT_TIMEOUT_S:
                return f"ssh waits at most {CONNECT_TIMEOUT_S} s for a connection"
            if longest_s is not None:
                return f"at most {longest_s:.0f} s"
            if is_remote:
                return f"until its end, or {ALIVE_COUNT * ALIVE_INTERVAL_S} s after its last sign of life"
            return "until its end"

        return AWAITED.call(self.node, action, limit)

    def _offline(self, action: str, program: str, arguments: list[str]) -> str:
        given = {"root": self.node.root, "owner": self._owner, "program": program, "arguments": arguments}
        return str(self._call(action, longest_s=None, **given)["said"])

    def _request(self, action: str, **arguments: Any) -> bytes:
        """Return the line that asks an agent for it. Raises HostError when this run may change no host any more."""
        run = None if action in READS else RUN.told(self.node)
        return json.dumps({"action": action, "arguments": arguments, "run": run}).encode() + b"\n"

    def _call(
        self, action: str, content: bytes = b"", /, *, longest_s: float | None = CALL_TIMEOUT_S, **arguments: Any
    ) -> dict[str, Any]:
        request = self._request(action, **arguments)
        try:
            with self.awaited(action, longest_s):
                if content:
                    answer = call_alone(self._command, request + content, longest_s)
                else:
                    answer = AGENT_CALLS.call(self._command, request, longest_s)
        except TimeoutError:
            raise HostError(self.node, f"{action}: no answer in time") from None
        except OSError as error:
            raise HostError(self.node, f"{action}: {error}") from None
        return self._answer(action, *answer)

    def _answer(self, action: str, code: int, output: bytes, errors: bytes) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = json.loads(output)
        except ValueError:
            said = errors.decode(errors="replace").strip()[-1000:]
            raise HostError(self.node, f"{action}: exit code {code}: {said or 'no answer'}") from None
        if "error" in answer:
            raise HostError(self.node, f"{action}: {answer['error']}")
        return answer
