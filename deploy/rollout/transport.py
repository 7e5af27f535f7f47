"""The way to a host: the agent (host_agent.py) run by Python there, on this machine or over ssh.

ssh is the system's, so its configuration, agent and known hosts apply. It asks nothing (BatchMode): a question would
stand in the way of a tool that may run without a terminal.
"""

import hashlib
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from deploy.rollout.inventory import Inventory, Node

AGENT: Final = Path(__file__).with_name("host_agent.py")
CALL_TIMEOUT_S: Final = 900.0
"""Longest call: an installation on a slow host."""
CONNECT_TIMEOUT_S: Final = 10


class HostError(Exception):
    """Something failed on a host; the text says what, and `node` on which."""

    def __init__(self, node: Node, message: str) -> None:
        super().__init__(f"node {node.id} ({node.host}): {message}")
        self.node = node


class Host:
    """One node's place. Every method may be repeated, and raises HostError."""

    def __init__(self, inventory: Inventory, node: Node) -> None:
        self.node = node
        self._program = inventory.cluster.program
        self._owner = f"node {node.id} of the cluster {inventory.cluster.id}\n"
        source = AGENT.read_text()
        if node.ssh:
            options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}"]
            remote = shlex.join([inventory.cluster.python, "-I", "-c", source])
            self._command = ["ssh", *options, *inventory.cluster.ssh_options, "--", node.ssh, remote]
        else:
            self._command = [sys.executable, "-I", "-c", source]

    def facts(self) -> dict[str, Any]:
        return self._call("facts", root=self.node.root, program=self._program, owner=self._owner)

    def claim(self) -> None:
        """Mark the node's root as one of this tool. Raises HostError when something else is in it."""
        if not self.facts()["is_ours"]:
            raise HostError(self.node, f"{self.node.root} is in use by something else; choose another root or empty it")
        self.put(".keelmq-deploy", self._owner.encode())

    def put(self, name: str, content: bytes, mode: int = 0o600) -> str:
        """Store the file below the node's root and return its path."""
        path = f"{self.node.root}/{name}"
        self._call("put", content, path=path, sha256=hashlib.sha256(content).hexdigest(), mode=mode)
        return path

    def check(self, program: str, config: str) -> None:
        self._call("check", program=program, config=config)

    def start(self, program: str, config: str) -> None:
        self._call("start", root=self.node.root, program=program, config=config, owner=self._owner)

    def stop(self, timeout_s: float) -> None:
        self._call("stop", root=self.node.root, timeout_s=timeout_s, owner=self._owner)

    def logs(self, lines: int) -> list[str]:
        found: list[str] = self._call("logs", root=self.node.root, lines=lines)["lines"]
        return found

    def install(self, archive: str, name: str) -> None:
        self._call("install", root=self.node.root, archive=archive, name=name, owner=self._owner)

    def destroy(self) -> None:
        self._call("destroy", root=self.node.root, owner=self._owner)

    def _call(self, action: str, content: bytes = b"", /, **arguments: Any) -> dict[str, Any]:
        request = json.dumps({"action": action, "arguments": arguments}).encode() + b"\n" + content
        try:
            done = subprocess.run(self._command, input=request, capture_output=True, timeout=CALL_TIMEOUT_S)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired) as error:
            shown = "no answer in time" if isinstance(error, subprocess.TimeoutExpired) else str(error)
            raise HostError(self.node, f"{action}: {shown}") from None
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            said = done.stderr.decode(errors="replace").strip()[-1000:]
            raise HostError(self.node, f"{action}: exit code {done.returncode}: {said or 'no answer'}") from None
        if "error" in answer:
            raise HostError(self.node, f"{action}: {answer['error']}")
        return answer
