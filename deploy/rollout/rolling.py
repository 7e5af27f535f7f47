"""Restarts nodes one at a time, followers first, each only while the others are a healthy majority.

Which nodes are done is told by the running processes, so a repetition goes on where a killed tool stopped: a node is
done when it runs the wanted program with the wanted configuration (`upgrade`), or, for `restart`, when its process is
none of those that ran at the beginning. These are noted beside the inventory until all are done, for an hour at most.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from deploy.rollout.health import Probe, Unhealthy, View, leader_of, why_not_whole, why_not_without
from deploy.rollout.inventory import Inventory, Node
from deploy.rollout.transport import Host, HostError

STOP_TIMEOUT_S: Final = 60.0
NOTE_END: Final = ".restart"
NOTE_AGE_S_MAX: Final = 3600.0
"""Age of the note of a restart that was not finished up to which the next one goes on with it."""
HOST_SECRET: Final = "etc/peer_secret"  # noqa: S105
"""File below a node's root with the secret that the tool has brought."""


class Unsafe(Exception):
    """Going on could cost the quorum; nothing was stopped. The text says why."""


def config_name(config: str) -> str:
    """Return the name of a configuration file: by its content, so that a command line says what runs."""
    return f"etc/keelmqd-{hashlib.sha256(config.encode()).hexdigest()[:12]}.toml"


class Deployed:
    """One node: the program and configuration that run there, and the wanted ones."""

    def __init__(self, inventory: Inventory, node: Node) -> None:
        """Ask the host. Raises HostError."""
        self.node = node
        self.host = Host(inventory, node)
        self._supervised = inventory.cluster.supervised
        self.facts = self.host.facts()

    @property
    def pid(self) -> int:
        return int(self.facts["pid"])

    @property
    def has_disk(self) -> bool:
        return bool(self.facts["has_data"])

    @property
    def is_drained(self) -> bool:
        return bool(self.facts["is_drained"])

    @property
    def is_being_restored(self) -> bool:
        """Return whether a restore was begun on the host and is not finished on all nodes."""
        return self.facts["restore"].get("finished") is False

    def config_path(self, config: str) -> str:
        return f"{self.node.root}/{config_name(config)}"

    @property
    def is_wanted(self) -> bool:
        """Return whether the running process is of the wanted program and configuration, that for joining included, and
        has a supervisor if it is to have one.
        """
        command = self.facts["command"]
        if ("supervise" in command) != self._supervised:
            return False
        wanted = [self.config_path(each) for each in (self.node.config, *self.node.joining_configs)]
        return bool(command) and command[-1] in wanted and self.program in command[:-2]

    @property
    def program(self) -> str:
        """Path of the wanted keelmqd. Raises HostError when there is none."""
        found = str(self.facts["program"])
        if not found:
            raise HostError(self.node, "there is no keelmqd; next: keelmq-deploy install --bundle FILE")
        return found

    def prepare(self, secret: bytes | None, config: str | None = None) -> None:
        """Bring the configuration, and have keelmqd check it. The running node does not change."""
        content = config or self.node.config
        files = {} if secret is None else {HOST_SECRET: secret}
        files[config_name(content)] = content.encode()
        self.host.prepare(files, self.program, config_name(content))

    def start(self, config: str | None = None) -> None:
        self.host.start(self.program, self.config_path(config or self.node.config))

    def stop(self) -> None:
        self.host.stop(STOP_TIMEOUT_S)


def in_order(nodes: list[Deployed], views: list[View]) -> list[Deployed]:
    """Return the nodes, the leader last: each change of leader costs the clients a moment."""
    leader_id = leader_of(views)
    return sorted(nodes, key=lambda each: (each.node.id == leader_id, each.node.id))


def refuse_unless_safe(probe: Probe, node: Node, timeout_s: float) -> None:
    """Return once the cluster can do without this node. Raises Unsafe when it cannot within `timeout_s`."""
    try:
        probe.wait(lambda views: why_not_without(views, node.id), timeout_s)
    except Unhealthy as error:
        raise Unsafe(f"node {node.id} is not stopped: {error}") from None


def wait_whole(probe: Probe, timeout_s: float, look: Callable[[Sequence[View]], None] = lambda _: None) -> None:
    """Return once all nodes are healthy. `look` is shown the answers meanwhile. Raises Unhealthy with the reason and
    the next step.
    """

    def why_not(views: Sequence[View]) -> str | None:
        reason = why_not_whole(views)
        if reason is not None:
            look(views)
        return reason

    try:
        probe.wait(why_not, timeout_s)
    except Unhealthy as error:
        raise Unhealthy(f"{error}; next: keelmq-deploy logs") from None


def begin_restart(inventory: Inventory, nodes: list[Deployed]) -> tuple[set[str], bool]:
    """Return the processes that have to be replaced, and whether a restart that was not finished has noted them within
    NOTE_AGE_S_MAX: an older one was for another reason, and what it has replaced has to be replaced again.
    """
    path = inventory.beside(NOTE_END)
    if path.exists():
        made_s, before = _noted(path)
        if 0 <= time.time() - made_s <= NOTE_AGE_S_MAX:
            return before, True
    present = {process_of(each) for each in nodes}
    new = inventory.beside(NOTE_END + ".new")
    new.write_text(json.dumps({"made_s": time.time(), "processes": sorted(present)}))
    new.replace(path)
    return present, False


def forget_done_restart(inventory: Inventory, nodes: Callable[[], list[Deployed]]) -> None:
    """Forget a restart that was not finished, if none of the processes that it has noted runs any more: something else
    has replaced them, and the next restart is another one.
    """
    path = inventory.beside(NOTE_END)
    if path.exists() and _noted(path)[1].isdisjoint(map(process_of, nodes())):
        path.unlink()


def _noted(path: Path) -> tuple[float, set[str]]:
    """Return when the note was made, and its processes. A former version has noted these alone."""
    found = json.loads(path.read_text())
    return (0.0, set(found)) if isinstance(found, list) else (found["made_s"], set(found["processes"]))


def process_of(node: Deployed) -> str:
    return f"{node.node.id}:{node.pid}"
