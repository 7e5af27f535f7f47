"""The verbs that go back, and those that are about one node, in addition to those of `verbs`."""

import functools
import hashlib
import re
import time
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from deploy.rollout.certificates import Certificates
from deploy.rollout.health import POLL_S, Unhealthy, View, leader_of, why_not_whole, why_voters_not_whole
from deploy.rollout.inventory import Node
from deploy.rollout.reachability import named
from deploy.rollout.rolling import Deployed, Unsafe, refuse_unless_safe, wait_whole
from deploy.rollout.side_by_side import Failed
from deploy.rollout.steps import Step
from deploy.rollout.support_bundle import support_bundle
from deploy.rollout.transport import HostError
from deploy.rollout.verbs import CONFIGURE, Verbs

MEMBERS: Final = "/v1/cluster/members"
UNSAFE_CODES: Final = ("quorum_at_risk", "last_voter")
PASSING_CODES: Final = ("not_caught_up", "change_in_progress", "no_leader", "unknown_outcome", "overloaded")
"""Codes of answers that another attempt may change."""


class NodeVerbs(Verbs):
    """Carries out one verb. Raises as Verbs does."""

    # --- back ------------------------------------------------------------------------------------------------------

    def rollback(self) -> None:
        """Make the release from before the last installation current, and restart what does not run it."""
        nodes = self._all_in_service()
        back, stays = self._installed_last([each for each in nodes if each.facts["release_before"]])
        self._refuse_unknown_level(back)
        if not back:
            self._report.event("no host has a release from before")
        # Those that stay first: once all others are back, nothing tells any more that they have to.
        steps = [self._step(each, "stay, as the last installation did not reach it", each.host.stay) for each in stays]
        self._do([*steps, *(self._step(each, "take the release from before", each.host.rollback) for each in back)])
        if self._options.dry_run:
            for each in back:
                self._report.text(f"then: node {each.node.id} ({each.node.host}): restart")
            return
        self._roll_wanted()

    def _installed_last(self, nodes: Sequence[Deployed]) -> tuple[list[Deployed], list[Deployed]]:
        """Return the nodes with a release from before that the last installation has reached, and those that it has
        not, as it failed or was killed: their current release is the one from before of others. Raises Failed when the
        hosts do not tell.
        """
        before = {each.node.id: each.facts["release_before"] for each in nodes}

        def stays(each: Deployed) -> bool:
            others = (release for node_id, release in before.items() if node_id != each.node.id)
            return each.facts["release"] in others

        back = [each for each in nodes if not stays(each)]
        if nodes and not back:
            shown = "; ".join(f"node {each.node.id}: {each.facts['release']}, {before[each.node.id]}" for each in nodes)
            raise Failed(
                "the hosts do not tell which of two releases was installed last (the current one, that from before: "
                f"{shown}); next: keelmq-deploy upgrade --bundle FILE, with the one that is wanted"
            )
        return back, [each for each in nodes if stays(each)]

    def _refuse_unknown_level(self, nodes: Sequence[Deployed]) -> None:
        """Raise Unsafe if a release from before does not know the feature level of the cluster."""
        levels = [view.status.get("feature_level") or 0 for view in self._probe.views() if view.status is not None]
        for each in nodes:
            said = each.host.version(f"{each.node.root}/previous/bin/keelmqd")
            known = re.search(r"\(feature level .*?(\d+)\)", said)
            if levels and (known is None or int(known[1]) < max(levels)):
                raise Unsafe(
                    f"node {each.node.id}: the release from before ({said or 'of unknown version'}) does not know "
                    f"feature level {max(levels)} of the cluster: there is no way back"
                )

    # --- leadership and service ------------------------------------------------------------------------------------

    def transfer(self) -> None:
        """Have the named node lead."""
        each = self._named()
        leads = self._leader().node.id == each.node.id
        self._do([] if leads else [self._step(each, "take the leadership over", lambda: self._lead(each.node))])

    def drain(self) -> None:
        """Take the named node out of service until `undrain`: it hands leadership over, and is stopped."""
        each = self._named()
        steps = []
        if not each.is_drained:
            steps.append(self._step(each, "note that it is drained", lambda: self._note_drained(each)))
        if each.pid:
            steps.append(self._step(each, "hand over what it leads, and stop", lambda: self._stop_one(each)))
        self._do(steps)

    def undrain(self) -> None:
        """Put the named node back into service, and wait until all nodes are healthy."""
        each = self._named()
        steps = []
        self._refuse_half_restored(each)
        if each.pid == 0:
            secret = self._secret(create=False)
            steps.append(self._step(each, CONFIGURE, lambda: each.prepare(secret)))
            steps.append(self._step(each, "start", each.start))
        if steps or each.is_drained:
            steps.append(self._wait_step())
            steps.append(self._step(each, "note that it is in service", lambda: each.host.drain(drained=False)))
        self._do(steps)

    # --- for other tools that restart nodes --------------------------------------------------------------------------

    def wait(self) -> None:
        """Return once all nodes are healthy."""
        wait_whole(self._probe, self._patience_s)

    def spare(self) -> None:
        """Return once the others can do without the named node. Raises Unsafe when they cannot."""
        self._refuse_unless_safe(self._named_node())

    def leads(self) -> None:
        """Raise Failed unless the named node leads."""
        node = self._named_node()
        if leader_of(self._probe.views()) != node.id:
            raise Failed(f"node {node.id} does not lead")

    def _note_drained(self, each: Deployed) -> None:
        self._refuse_unless_safe(each.node)
        each.host.drain(drained=True)

    def _stop_one(self, each: Deployed) -> None:
        self._refuse_unless_safe(each.node)
        each.stop()

    def _refuse_unless_safe(self, node: Node) -> None:
        if not self._options.accept_downtime:
            refuse_unless_safe(self._probe, node, self._patience_s)

    def _lead(self, node: Node) -> None:
        def attempt() -> str | None:
            return self._ask_leader("POST", f"{MEMBERS}/{node.id}/lead")

        self._until_done(attempt)
        self._probe.wait(lambda views: None if leader_of(views) == node.id else f"node {node.id} does not lead", 10.0)

    # --- members ---------------------------------------------------------------------------------------------------

    def add(self) -> None:
        """Install and start a node that is no member yet, and make it a voter."""
        each = self._named()
        if self._membership(each.node) == "voter" and each.pid:
            self._do([])
            return
        address = {"node_id": each.node.id, "peer_address": each.node.peer, "http_address": each.node.url}
        set_aside = self._set_aside_steps(each)
        steps = [
            *self._install_steps([each]),
            *set_aside,
            *self._join_steps(each, is_empty=bool(set_aside) or not each.has_disk),
            self._step(each, "become a learner", lambda: self._until_done(self._asking("POST", MEMBERS, address))),
            self._step(
                each,
                "become a voter once it has the log",
                lambda: self._until_done(self._asking("POST", f"{MEMBERS}/{each.node.id}/promote")),
            ),
            Step("wait until all voters are healthy", self._wait_voters),
        ]
        self._do(steps)

    def _set_aside_steps(self, each: Deployed) -> list[Step]:
        """Return the step that sets aside what the host of a node that is no member has. Raises Unsafe unless the
        operator said so: it may be all that is left of a cluster.
        """
        if each.pid or not each.has_disk or self._membership(each.node) is not None:
            return []
        if self._options.yes != self._inventory.cluster.id:
            raise Unsafe(
                f"node {each.node.id} is no member, and {each.node.root} has data of an earlier time; to set "
                f"that aside, add --yes {self._inventory.cluster.id}"
            )
        return [self._step(each, "set its data aside (data.old)", each.host.set_aside)]

    def _wait_voters(self) -> None:
        self._probe.wait(why_voters_not_whole, self._options.timeout_s)

    def remove(self) -> None:
        """Make the named node no member any more, and stop it if its host is there. Its data stays until its host is
        cleared.
        """
        node = self._named_node()
        is_member = self._membership(node) is not None
        each = self._unless_dead(node)
        steps = []
        if is_member:
            steps.append(Step(f"{named(node)}: leave the cluster", lambda: self._leave(node)))
        if each is not None and each.pid:
            steps.append(self._step(each, "stop", each.stop))
        self._do(steps)
        if each is None:
            self._report.event(self._left_on(node), "problem")
        self._report.event(f"next: take node {node.id} out of {self._inventory.path.name}; its id is not used again")

    def _unless_dead(self, node: Node) -> Deployed | None:
        """Return the node on its host, None if neither the host nor the node answers. Raises HostError when the node
        does: it would go on, and nothing stop it.
        """
        try:
            return Deployed(self._inventory, node)
        except HostError as error:
            if self._probe.view(node).status is not None:
                raise HostError(
                    node,
                    f"the node answers at {node.url}, and its host cannot be entered to stop it: {error}; next: "
                    f"mend the way to the host, or keelmq cluster remove-node {node.id}, and stop the node by hand",
                ) from None
            self._report.event(f"not reached, and taken as dead: {error}", "problem")
            return None

    def _left_on(self, node: Node) -> str:
        """Return a sentence about the data that a dead host still has, with the next step."""
        keys = "the peer secret" if self._inventory.makes_secret else "its options"
        keys += ", the key of its certificate" if self._inventory.cluster.tls else ""
        return (
            f"{named(node)}: left on the dead host, if its disk is not lost: {node.root} with the data (all messages "
            f"until it died), {keys}, and the programs. A node that is started there again is refused by the others "
            f"and idles. Next, if the host comes back: keelmq-deploy remove {node.id} stops it; then delete {node.root}"
        )

    def replace(self) -> None:
        """Bring a node whose host was wiped back: a new disk under its old id, which the others fill."""
        each = self._named()
        if self._membership(each.node) is None:
            raise Failed(f"node {each.node.id} is no member; next: keelmq-deploy add {each.node.id}")
        if each.pid and why_not_whole(self._probe.views()) is None:
            self._do([])
            return
        self._do([*self._install_steps([each]), *self._join_steps(each, is_empty=not each.has_disk), self._wait_step()])

    def _join_steps(self, each: Deployed, *, is_empty: bool) -> list[Step]:
        """Return the steps that start the node, with an empty disk at the present leader."""
        if each.pid:
            return []
        self._require_in_service(each)
        leader_id = self._leader().node.id
        others = [node.id for node in self._inventory.nodes if node.id != each.node.id]
        joins = is_empty and leader_id != each.node.id
        config = each.node.joining_configs[others.index(leader_id)] if joins else each.node.config
        secret, text = (
            self._secret(create=False),
            f"start, joining node {leader_id}" if joins else "start with its data",
        )

        def prepare() -> None:
            self._refuse_unless_safe(each.node)
            each.host.claim()
            self._bring_certificates(each)
            each.prepare(secret, config)

        return [
            self._step(each, CONFIGURE, prepare),
            self._step(each, text, lambda: each.start(config)),
        ]

    def _leave(self, node: Node) -> None:
        self._refuse_unless_safe(node)
        self._until_done(self._asking("DELETE", f"{MEMBERS}/{node.id}"))

    def _membership(self, node: Node) -> str | None:
        """Return the role of the node as the leader reports it. Raises Unsafe without a leader, which alone can change
        it."""
        status = self._leader().status or {"nodes": []}
        return next((str(each["membership"]) for each in status["nodes"] if each["node_id"] == node.id), None)

    def _leader(self) -> View:
        """Return the answer of the leader, for which an election is waited; a dry run looks once. Raises Unsafe when
        there is none.
        """
        try:
            views = self._probe.wait(self._why_no_leader, self._patience_s, says_at_once=True)
        except Unhealthy as error:
            raise Unsafe(str(error)) from None
        return next(view for view in views if view.node.id == leader_of(views))

    def _why_no_leader(self, views: Sequence[View]) -> str | None:
        if leader_of(views) is not None:
            return None
        reasons = "; ".join(f"node {view.node.id}: {view.reason}" for view in views if view.reason is not None)
        return f"the nodes have no leader ({reasons})"

    def _leader_view(self, views: Sequence[View]) -> View | None:
        return next((view for view in views if view.node.id == leader_of(views)), None)

    # --- calls of the leader ---------------------------------------------------------------------------------------

    def _asking(self, method: str, path: str, body: Any = None) -> Any:
        return lambda: self._ask_leader(method, path, body)

    def _ask_leader(self, method: str, path: str, body: Any = None) -> str | None:
        """Return None when the leader has done it, else why not yet. Raises Unsafe or Failed for other refusals."""
        leader = self._leader_view(self._probe.views())
        if leader is None:
            return "the nodes have no leader"
        try:
            code, answer = self._probe.call(leader.node, method, path, body)
        except Unhealthy as error:
            return str(error)
        if code == HTTPStatus.OK or (answer.get("code") == "node_not_found" and method == "DELETE"):
            return None
        if code == HTTPStatus.TEMPORARY_REDIRECT:
            return "the leader has just changed"
        reason = f"{answer.get('code')}: {answer.get('detail')}"
        if answer.get("code") in UNSAFE_CODES:
            raise Unsafe(reason)
        if answer.get("code") in PASSING_CODES:
            return reason
        raise Failed(reason)

    def _until_done(self, attempt: Any) -> None:
        """Attempt until it is done, saying each new reason why it is not. Raises Unhealthy after the longest wait."""
        deadline, said = time.monotonic() + self._options.timeout_s, ""
        while (reason := attempt()) is not None:
            if reason != said:
                self._report.event(f"waiting: {reason}")
                said = reason
            if time.monotonic() > deadline:
                raise Unhealthy(f"after {self._options.timeout_s:.0f} s still {reason}")
            time.sleep(POLL_S)

    # --- certificates and support ----------------------------------------------------------------------------------

    def certs(self) -> None:
        """Make what is missing of authority and certificates, or renew these, and bring them to the hosts that are
        reached: a dead one is no reason for the others to expire.
        """
        certificates = Certificates(self._inventory)
        steps = []
        if not certificates.has_authority:
            steps.append(Step(f"make an authority in {certificates.directory}", certificates.make_authority))
        bring = []
        reached, missing = self._asked(self._inventory.nodes)
        for each in reached:
            is_there = certificates.has(each.node)
            makes = self._options.renew or not is_there
            if makes:
                act = functools.partial(certificates.make, each.node)
                steps.append(self._step(each, f"{'renew' if is_there else 'make'} its certificate", act))
            files = certificates.files(each.node)
            if makes or any(each.host.digest(f"etc/{name}") != _digest(path) for name, path, _ in files):
                act = functools.partial(self._bring_and_reload, each)
                bring.append(self._step(each, "bring what differs, and have it read", act))
        steps += bring
        self._do(steps)
        if missing:
            raise Failed("\n".join(map(str, missing)))

    def _bring_and_reload(self, each: Deployed) -> None:
        each.host.claim()
        if self._bring_certificates(each):
            each.host.hang_up()

    def _bring_certificates(self, each: Deployed) -> bool:
        """Bring authority, certificate and key where they differ, and return whether any did."""
        if not self._inventory.cluster.tls:
            return False
        changed = False
        for name, path, mode in Certificates(self._inventory).files(each.node):
            changed |= each.host.put_if_other(f"etc/{name}", path.read_bytes(), mode)
        return changed

    def bundle(self) -> None:
        """Write one file with logs, state and configuration of all nodes, without secrets, to be passed on."""
        path = Path(self._options.output or self._inventory.beside(".support.tar.gz"))

        def write() -> None:
            support_bundle(self._inventory, self._probe, self._options.lines, path, self._options.parallel)
            self.file = path

        self._do([Step(f"write logs, state and configuration, without secrets, to {path}", write)])

    def _named(self) -> Deployed:
        return Deployed(self._inventory, self._named_node())

    def _named_node(self) -> Node:
        return next(node for node in self._inventory.nodes if node.id == self._options.node)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
