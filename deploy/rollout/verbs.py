"""The verbs of keelmq-deploy. Each verb looks at the hosts, prints the steps that it will take, and takes the missing
ones: run again after an interruption at any point, it ends alike.
"""

import argparse
import contextlib
import fcntl
import functools
import hashlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from deploy.reporting.report import Report
from deploy.rollout.certificates import CertificateError
from deploy.rollout.health import Probe, ServedElsewhere, Unhealthy, View, leader_of, memberships, why_not_whole
from deploy.rollout.holding import held
from deploy.rollout.inventory import SECRET_END, Inventory, Node
from deploy.rollout.preflight import defects_of
from deploy.rollout.reachability import Obstacle, named, obstacles
from deploy.rollout.rolling import (
    HOST_SECRET,
    NOTE_END,
    Deployed,
    Unsafe,
    begin_restart,
    forget_done_restart,
    in_order,
    process_of,
    refuse_unless_safe,
    wait_whole,
)
from deploy.rollout.side_by_side import Failed, side_by_side
from deploy.rollout.steps import Step, carry_out, show
from deploy.rollout.transport import Host, HostError, answers_of

BUNDLE_NAME_CHARACTERS: Final = 12
READING: Final = ("preflight", "status", "logs", "bundle", "backup", "wait", "spare", "leads")
"""Verbs that change nothing on the hosts: any number at a time, beside one of the others."""

MAKES_ROOTS: Final = ("bootstrap", "restore")
"""Verbs that begin a cluster on bare hosts. Two of them at a time would each bring a secret of its own."""
DRAINED: Final = ", drained: others lead while one can"
CONFIGURE: Final = "configure and check"
LOOK_EVERY_S: Final = 3.0
"""Time between two looks at the process of a node that does not answer."""
LOOKS_ITSELF: Final = ("preflight", "render")
"""Verbs that look themselves whether nodes are reached, or touch none."""
WAITS_FOR_ALL: Final = ("bootstrap", "restart", "upgrade", "rollback", "undrain", "add", "replace", "restore", "wait")
"""Verbs that end once all nodes are healthy."""
ASKS_LEADER: Final = ("transfer", "drain", "remove", "recover", "spare", "leads")
"""Other verbs that need to know who leads."""
ADMINISTERS: Final = ("transfer", "add", "remove")
"""Verbs that administer the cluster at its leader."""


class Verbs:
    """Carries out one verb on one inventory. Raises Failed, HostError, ServedElsewhere, Unhealthy or Unsafe."""

    def __init__(self, inventory: Inventory, options: argparse.Namespace, report: Report) -> None:
        self._inventory = inventory
        self._options = options
        self._report = report
        self._probe = Probe(inventory, report.event)
        self._patience_s: float = 0.0 if options.dry_run else options.timeout_s
        self.steps = self.steps_done = 0
        self.skipped: list[int] = []
        """Nodes that a restart leaves as they are: the one with which it goes on has restarted them."""
        self.file: Path | str | None = None
        """File that the verb has made."""

    def run(self) -> None:
        verb: str = self._options.verb
        act: Callable[[], None] = getattr(self, verb)
        if verb not in LOOKS_ITSELF:
            self._refuse_strangers()
            self._name_obstacles()
        if verb in READING or self._options.dry_run:
            act()
            return
        at_once: int = self._options.parallel
        with self._alone(), held(self._held_hosts(), self._who(), claims=verb in MAKES_ROOTS, at_once=at_once):
            act()

    def _held_hosts(self) -> list[Host]:
        """Return the hosts that this run keeps others out of. `add` takes no node away, and enters no other host."""
        verb, nodes = self._options.verb, self._inventory.nodes
        if verb in LOOKS_ITSELF:
            return []
        return [Host(self._inventory, node) for node in nodes if verb != "add" or node.id == self._options.node]

    def _who(self) -> str:
        """Return how other runs name this one."""
        user = os.environ.get("USER") or os.getuid()
        return f"{self._options.verb}, by {user} at {socket.gethostname()}, process {os.getpid()}"

    def _refuse_strangers(self) -> None:
        """Raise Failed if the verb goes by what nodes say, and others than those of the inventory answer."""
        if self._options.verb in (*WAITS_FOR_ALL, *ASKS_LEADER, "backup") and (found := self._strangers()):
            raise Failed("\n".join(found))

    def _strangers(self) -> list[str]:
        views = self._probe.views()
        return [f"{named(view.node)}: {view.reason}" for view in views if view.is_stranger]

    def _name_obstacles(self) -> None:
        """Name the nodes of which this machine reaches one listener and not the other. Raises Failed when the verb
        would wait for that in vain.
        """
        found = obstacles(self._inventory, self._probe)
        leader_id = leader_of(self._probe.views()) if found else None
        blocking = [each for each in found if self._is_blocked(each, leader_id, len(found))]
        for each in found:
            if each not in blocking:
                self._report.event(each.text, "problem")
        if blocking:
            raise Failed("\n".join(each.text for each in blocking))

    def _is_blocked(self, obstacle: Obstacle, leader_id: int | None, count: int) -> bool:
        verb, node_id = self._options.verb, obstacle.node.id
        if obstacle.hides_health:
            return verb in WAITS_FOR_ALL or (verb in ASKS_LEADER and leader_id is None)
        if verb == "backup":
            is_needed = self._options.node == node_id or (
                self._options.node is None and count == len(self._inventory.nodes)
            )
        else:
            is_needed = verb in ADMINISTERS and leader_id in (None, node_id)
        return is_needed and obstacle.is_in_force

    def preflight(self) -> None:
        """Look at every host, change nothing, and name all defects."""
        defects = [*defects_of(self._inventory, self._options.parallel), *self._strangers()]
        for node in self._inventory.nodes:
            self._report.event(f"node {node.id} ({node.host}): looked at")
        for defect in defects:
            self._report.event(defect, "problem")
        if defects:
            raise Failed(f"{len(defects)} defects; mend them and run preflight again")

    def install(self) -> None:
        """Bring the bundle to every host and make it the current release. Running nodes go on as they are."""
        self._do(self._install_steps(self._all()))

    def bootstrap(self) -> None:
        """Configure every node, start those that do not run, and wait until all are healthy."""
        nodes = self._all_in_service()
        self._refuse_second_secret(nodes)
        secret = self._secret(create=not self._options.dry_run)
        steps = self._install_steps(nodes)
        steps += self._beside(nodes, CONFIGURE, lambda each: each.prepare(secret))
        steps += self._beside([each for each in nodes if each.pid == 0], "start", Deployed.start)
        self._do([*steps, self._wait_step()])

    def restart(self) -> None:
        """Restart every node, one at a time, with the present configuration and release."""
        nodes = self._all_in_service()
        if self._options.dry_run:
            self._roll(nodes, nodes)
            return
        before, is_repetition = begin_restart(self._inventory, nodes)
        if is_repetition:
            self._report.event("going on with a restart that was not finished")
        chosen = [each for each in nodes if process_of(each) in before or not each.is_wanted]
        self.skipped = [each.node.id for each in nodes if each not in chosen]
        for each in nodes:
            if each not in chosen:
                self._report.event(f"{named(each.node)}: skipped, as it was restarted then", "problem")
        self._roll(nodes, chosen)
        self._inventory.beside(NOTE_END).unlink()

    def upgrade(self) -> None:
        """Install the bundle if one is given, then restart what runs another program or configuration."""
        nodes = self._all_in_service()
        self._do(self._install_steps(nodes))
        if self._options.dry_run and self._options.bundle is not None:  # the current release is still the old one
            lacking = self._lacking(nodes, _release_of(self._options.bundle.read_bytes()))
            self._roll(nodes, [each for each in nodes if each in lacking or not each.is_wanted])
            return
        self._roll_wanted()

    def status(self) -> None:
        views = self._probe.views()
        states = side_by_side(self._state, views, self._options.parallel)
        rows = []
        for view, state in zip(views, states, strict=True):
            status = view.status or {}
            shown = [str(status.get(name) or "-") for name in ("role", "term", "applied_index", "version", "commit")]
            rows.append([str(view.node.id), view.node.host, view.node.zone or "-", *shown, state])
        headings = ("node", "host", "zone", "role", "term", "applied", "version", "commit", "state")
        self._report.table("nodes", headings, rows)
        if (differing := _differing_builds(views)) is not None:
            self._report.event(differing, "problem")
        reason = why_not_whole(views)
        if reason is not None:
            raise Failed(f"{reason}; next: keelmq-deploy logs")

    def _state(self, view: View) -> str:
        """Return how the node is, which its host tells of one that does not answer."""
        if view.status is not None:
            drained = [each["node_id"] for each in view.status["nodes"] if each.get("drained")]
            return (view.reason or "ready") + (DRAINED if view.node.id in drained else "")
        with contextlib.suppress(HostError):
            each = Deployed(self._inventory, view.node)
            if each.is_drained:
                return f"drained: out of service until keelmq-deploy undrain {view.node.id}"
            if not each.pid:
                return f"does not run: {view.reason}"
        return str(view.reason)

    def logs(self) -> None:
        def last_lines(node: Node) -> list[str]:
            return Host(self._inventory, node).logs(self._options.lines)

        missing = []
        nodes = self._inventory.nodes
        for node, answer in zip(nodes, answers_of(last_lines, nodes, self._options.parallel), strict=True):
            if isinstance(answer, HostError):
                missing.append(str(answer))
                continue
            for line in answer:
                self._report.text(f"node {node.id}  {line}")
        if missing:  # after what there is: a dead host is when logs are wanted
            raise Failed("\n".join(missing))

    def destroy(self) -> None:
        """Stop all nodes and remove everything of them, data included."""
        nodes = self._all()
        if not (self._options.dry_run or self._options.yes == self._inventory.cluster.id):
            raise Unsafe(f"this removes all data of {len(nodes)} nodes; add --yes {self._inventory.cluster.id}")
        steps = [self._step(each, "stop", each.stop) for each in nodes if each.pid]
        steps += [self._step(each, f"remove {each.node.root}", each.host.destroy) for each in nodes]
        self._do(steps)
        if not self._options.dry_run:
            for end in (NOTE_END, SECRET_END):
                self._inventory.beside(end).unlink(missing_ok=True)

    def _roll(self, nodes: list[Deployed], chosen: list[Deployed], *, skips_wanted: bool = False) -> None:
        secret = self._secret(create=False)
        chosen = [each for each in chosen if not (skips_wanted and each.is_wanted)]
        steps = [self._step(each, CONFIGURE, lambda e=each: e.prepare(secret)) for each in chosen]  # type: ignore[misc]
        down = [each for each in nodes if each.pid == 0]
        steps += [self._step(each, "start, as it does not run", each.start) for each in down]
        if down:
            steps.append(self._wait_step())
        views = self._probe.views()
        rest, leader_id = in_order([each for each in chosen if each.pid], views), leader_of(views)
        for each in rest:
            note = " (leader: it hands over when it is stopped)" if each.node.id == leader_id else ""
            steps.append(self._step(each, f"restart{note}", lambda e=each: self._restart_one(e)))  # type: ignore[misc]
        self._do([*steps, self._wait_step()])

    def _roll_wanted(self) -> None:
        """Restart what runs another program or configuration than wanted."""
        self._roll(*(2 * [self._all()]), skips_wanted=True)
        if not self._options.dry_run:
            forget_done_restart(self._inventory, self._all)

    def _restart_one(self, each: Deployed) -> None:
        if not self._options.accept_downtime:
            refuse_unless_safe(self._probe, each.node, self._options.timeout_s)
        each.stop()
        each.start()
        self._wait_whole()

    def _all(self) -> list[Deployed]:
        nodes = self._inventory.nodes
        return side_by_side(lambda node: Deployed(self._inventory, node), nodes, self._options.parallel)

    def _asked(self, nodes: Sequence[Node]) -> tuple[list[Deployed], list[HostError]]:
        """Return the nodes whose hosts are reached, and why the others are not."""
        answers = answers_of(lambda node: Deployed(self._inventory, node), nodes, self._options.parallel)
        reached = [answer for answer in answers if isinstance(answer, Deployed)]
        return reached, [answer for answer in answers if isinstance(answer, HostError)]

    def _all_in_service(self) -> list[Deployed]:
        """Return all nodes. Raises Unsafe while one must not be started, nor another one stopped therefore: it is
        drained, half restored, or no member of the cluster that runs.
        """
        nodes = self._all()
        members = memberships(self._probe.views())
        for each in nodes:
            self._require_in_service(each)
            if members is not None and each.node.id not in members:
                raise Unsafe(f"node {each.node.id} is no member; next: keelmq-deploy add {each.node.id}")
        return nodes

    def _require_in_service(self, each: Deployed) -> None:
        if each.is_drained:
            raise Unsafe(f"node {each.node.id} is drained; next: keelmq-deploy undrain {each.node.id}")
        self._refuse_half_restored(each)

    def _refuse_half_restored(self, each: Deployed) -> None:
        if each.is_being_restored:
            raise Unsafe(f"node {each.node.id} is half restored; next: keelmq-deploy restore, with the same backup")

    def _step(self, each: Deployed, text: str, act: Callable[[], None], *, beside: bool = False) -> Step:
        """Return a step on one host. With `beside`, hosts without a running node take it side by side; of those whose
        nodes serve, no two are to be slow at a time.
        """
        stage = text if beside and each.pid == 0 else ""
        return Step(f"node {each.node.id} ({each.node.host}): {text}", act, stage)

    def _beside(self, nodes: Sequence[Deployed], text: str, act: Callable[[Deployed], None]) -> list[Step]:
        """Return a step for each node; those that do not run come first, so that what is side by side is in a row."""
        ordered = sorted(nodes, key=lambda each: each.pid != 0)
        return [self._step(each, text, functools.partial(act, each), beside=True) for each in ordered]

    def _wait_step(self) -> Step:
        return Step("wait until all nodes are healthy", self._wait_whole)

    def _wait_whole(self) -> None:
        """Wait for nodes that the tool runs. Raises Failed at once for one whose process has ended: none comes back by
        itself, and its last line says why.
        """
        looked_s = dict.fromkeys((node.id for node in self._inventory.nodes), time.monotonic())

        def look(views: Sequence[View]) -> None:
            for view in views:
                if view.status is not None or time.monotonic() - looked_s[view.node.id] < LOOK_EVERY_S:
                    continue
                looked_s[view.node.id] = time.monotonic()
                with contextlib.suppress(HostError):
                    each = Deployed(self._inventory, view.node)
                    if not each.pid:
                        said = (each.host.logs(1) or ["nothing"])[0]
                        raise Failed(f"{named(view.node)} has ended; it said: {said}; next: keelmq-deploy logs")

        wait_whole(self._probe, self._options.timeout_s, look)

    def _plan(self, steps: list[Step]) -> None:
        show(steps, self._report, self._options.parallel)
        self.steps += len(steps)

    def _do(self, steps: list[Step]) -> None:
        """Print the plan and, unless it is a dry run, carry it out."""

        def count() -> None:
            self.steps_done += 1

        self._plan(steps)
        if not self._options.dry_run:
            carry_out(steps, self._report, self._options.parallel, count)

    def _install_steps(self, nodes: list[Deployed]) -> list[Step]:
        bundle: Path | None = self._options.bundle
        if bundle is None:
            return []
        content = bundle.read_bytes()
        name = _release_of(content)

        def bring(each: Deployed) -> None:
            each.facts = each.host.install(content, name)

        return self._beside(self._lacking(nodes, name), f"install {bundle.name}", bring)

    def _lacking(self, nodes: list[Deployed], release: str) -> list[Deployed]:
        """Return the nodes on whose hosts the release is not the current one."""
        program = f"releases/{release}/bin/keelmqd"
        return [each for each in nodes if each.facts["program"] != f"{each.node.root}/{program}"]

    def _secret(self, *, create: bool) -> bytes | None:
        """Return the peer secret that the tool keeps beside the inventory, or None if it has none."""
        if not self._inventory.makes_secret:
            return None
        path = self._inventory.beside(SECRET_END)
        if create and not path.exists():
            new = self._inventory.beside(f"{SECRET_END}.new")
            new.unlink(missing_ok=True)
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
                stream.write(secrets.token_hex() + "\n")
            new.rename(path)
        return path.read_bytes() if path.exists() else None

    def _refuse_second_secret(self, nodes: list[Deployed]) -> None:
        """Raise Unsafe if this machine lacks the peer secret that hosts have: nodes that run go on with that, and would
        refuse those that start with a new one.
        """
        path = self._inventory.beside(SECRET_END)
        if not self._inventory.makes_secret or path.exists():
            return
        digests = side_by_side(lambda each: each.host.digest(HOST_SECRET), nodes, self._options.parallel)
        for each, digest in zip(nodes, digests, strict=True):
            if digest:
                raise Unsafe(
                    f"node {each.node.id} ({each.node.host}) has a peer secret, and there is no {path.name} here; "
                    f"next: bring it from where the tool was used, or copy {each.node.root}/{HOST_SECRET} to {path}"
                )

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other runs with the same inventory out. The kernel frees the lock of a killed one."""
        with self._inventory.beside(".lock").open("w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Failed(f"another keelmq-deploy works on {self._inventory.path.name}; wait for its end") from None
            yield


def _release_of(bundle: bytes) -> str:
    """Return the name of the release that a bundle becomes on hosts."""
    return hashlib.sha256(bundle).hexdigest()[:BUNDLE_NAME_CHARACTERS]


def _differing_builds(views: Sequence[View]) -> str | None:
    """Return which builds run where, None unless they differ."""
    found: dict[str, list[str]] = {}
    for view in views:
        if view.status is not None:
            build = " ".join(filter(None, (view.status.get("version"), view.status.get("commit"))))
            found.setdefault(build or "unknown", []).append(named(view.node))
    if len(found) < 2:
        return None
    shown = "; ".join(f"{build} at {', '.join(nodes)}" for build, nodes in sorted(found.items()))
    # With the bundle: without it, each node is compared with the release of its own host, and these may differ.
    return f"the builds differ: {shown}. Next: keelmq-deploy upgrade --bundle FILE"


ERRORS: Final = (Failed, CertificateError, HostError, ServedElsewhere, Unhealthy, OSError)
