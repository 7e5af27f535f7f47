"""The verbs that recover lost data, hosts and majorities: a backup of the cluster, a new cluster of it, and a cluster
of the survivor of a lost majority. docs/backup.md says when which one is right.
"""

import hashlib
import json
import os
import re
import secrets
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from deploy.rollout.health import Unhealthy, View, authority_of, leader_of, leads_majority
from deploy.rollout.inventory import STORE, Node
from deploy.rollout.node_verbs import NodeVerbs
from deploy.rollout.rolling import Deployed, Unsafe
from deploy.rollout.side_by_side import Failed
from deploy.rollout.steps import Step
from deploy.rollout.verbs import CONFIGURE

BACKUPS_END: Final = ".backups"
"""End of the name of the directory beside the inventory into which backups are written by default."""
BACKUP_ON_HOST: Final = "restore.backup"
RESTORE_ID_BYTES: Final = 8
FREE_SHARE: Final = 2
"""Multiple of the size of a backup that a host needs: the file itself, and the data that is made of it."""
ACCEPT: Final = "--i-accept-the-loss-of-what-only-others-had"
_LOG_END: Final = re.compile(r"log: entries \d+ to (\d+), the last one of term (\d+)")


class Backup(NamedTuple):
    path: Path
    bytes: int
    sha256: str


class LogEnd(NamedTuple):
    """End of a survivor's log; the greater one has more of what was acknowledged."""

    term: int
    entry: int


class WaysBack(NodeVerbs):
    """Carries out one verb. Raises as Verbs does."""

    # --- backup ----------------------------------------------------------------------------------------------------

    def backup(self) -> None:
        """Back the running cluster up into a file of this machine, and read the file again."""
        target = self._options.output or self._backups
        node = next((node for node in self._inventory.nodes if node.id == self._options.node), None)
        read = "the follower that has most" if node is None else f"node {node.id} ({node.host})"
        self._do(
            [
                Step(f"read {read} into {target}", lambda: self._create(target, node)),
                Step("read the file again and compare all its checksums", self._verify_created),
            ]
        )

    def _create(self, target: str, node: Node | None) -> None:
        # The listeners for administration are named, too: the command shows the token where it was told to.
        urls = ",".join(dict.fromkeys(url for each in self._inventory.nodes for url in each.administered_at))
        chosen = [] if node is None else ["--node", node.url]
        created = ("backup", "create", target, "--servers", urls, *chosen, *self._endpoint(), "--json")
        with self._report.live(lambda: _written(target)):
            made = json.loads(self._keelmq(*created))
        self.file = made["file"]
        self._report.event(
            f"{self.file}: {made['bytes']} bytes, the state after entry {made['index']}, state hash "
            f"{made['state_hash']}"
        )

    def _verify_created(self) -> None:
        self._verify(str(self.file))

    def _verify(self, file: str) -> dict[str, Any]:
        """Return the description in the backup. Raises Failed unless it is whole."""
        return self._read("verify", file)

    def _read(self, verb: str, file: str, *more: str) -> dict[str, Any]:
        """Verify or fetch a backup."""
        endpoint = self._endpoint() if file.startswith(STORE) else []
        with self._report.live():
            said = self._keelmq("backup", verb, file, *more, *endpoint, "--json", codes=(0, 1))
        found: dict[str, Any] = json.loads(said)
        if not found["whole"]:
            raise Failed(f"{file} is damaged: {'; '.join(found['damage'])}; use another backup")
        return found

    @property
    def _backups(self) -> str:
        """The directory for backups beside the inventory."""
        return f"{self._inventory.beside(BACKUPS_END)}/"

    def _endpoint(self) -> list[str]:
        url = self._options.endpoint_url
        return [] if url is None else ["--endpoint-url", url]

    def _keelmq(self, *arguments: str, codes: Sequence[int] = (0,)) -> str:
        """Return the output of the `keelmq` command. Raises Failed with its message for other exit codes."""
        flags = ["--token-file", self._inventory.cluster.token_file] if self._inventory.cluster.token_file else []
        authority = authority_of(self._inventory)
        flags += ["--ca-file", authority] if authority else []
        command = [str(Path(sys.executable).parent / "keelmq"), *flags, *arguments]
        own = {name: value for name, value in os.environ.items() if not name.startswith("KEELMQ_")}
        done = subprocess.run(command, capture_output=True, text=True, env=own)  # noqa: S603
        said = done.stderr.strip().splitlines()
        if done.returncode not in codes or not done.stdout:
            raise Failed(f"keelmq {' '.join(arguments[:2])}: {_error_of(said[-1] if said else 'no answer')}")
        for line in said:
            self._report.event(line, "problem")
        return done.stdout

    # --- restore ---------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Make a new cluster of all nodes of the inventory out of a backup, on hosts without data."""
        backup = _described(self._here(self._options.backup))
        nodes = self._all()
        for each in nodes:
            if each.is_drained:
                raise Unsafe(f"node {each.node.id} is drained; next: keelmq-deploy undrain {each.node.id}")
        if all(_is_of(each, backup) and each.facts["restore"]["finished"] and each.has_disk for each in nodes):
            self._report.event(f"all nodes were restored from {backup.path.name} before")
            self._do([])
            return
        restore_id = self._restore_id(nodes, backup)
        others = [each for each in nodes if each.facts["restore"].get("restore_id") != restore_id]
        self._refuse_loss([each for each in others if each.has_disk or each.pid])
        self._require_space(nodes, backup)
        self._do(self._restore_steps(nodes, others, backup, restore_id))

    def _here(self, file: str) -> Path:
        """Return the backup as a file of this machine; one in an object store is brought, unless it is there.
        Raises Failed.
        """
        if not file.startswith(STORE):
            return Path(file)
        path = Path(self._backups) / file.rpartition("/")[2]
        if self._options.dry_run:
            if not path.exists():
                raise Failed(f"the plan needs the backup here; next: keelmq backup fetch {file} {self._backups}")
            return path
        self._report.event(f"bringing {file} into {self._backups}, unless it is there")
        return Path(self._read("fetch", file, self._backups)["file"])

    def _restore_steps(
        self, nodes: list[Deployed], others: list[Deployed], backup: Backup, restore_id: str
    ) -> list[Step]:
        """Return the missing steps. `others` are no part of this restore yet."""
        note = {"restore_id": restore_id, "backup": backup.sha256, "finished": False}
        found: dict[str, Any] = {}
        missing = [each for each in nodes if each in others or not each.facts["is_restored"]]
        self._refuse_second_secret([each for each in nodes if each not in others])
        secret = self._secret(create=not self._options.dry_run)
        steps = [
            Step(
                f"read {backup.path} and compare all its checksums",
                lambda: found.update(self._verify(str(backup.path))),
            )
        ]
        steps += self._install_steps(nodes)
        steps += self._beside(nodes, CONFIGURE, lambda each: self._prepare_new(each, secret))
        steps += [self._step(each, "stop", each.stop) for each in others if each.pid]
        steps += [
            self._step(each, "set its data aside (data.old)", each.host.set_aside) for each in others if each.has_disk
        ]
        steps += [self._step(each, "note the restore", _call(each.host.note_restore, note)) for each in others]
        for each in missing:
            steps.append(self._step(each, f"bring {backup.path.name}", _call(self._bring, each, backup)))
            steps.append(self._step(each, "restore", _call(self._restore_one, each, restore_id, found)))
        steps += self._beside([each for each in nodes if each in others or not each.pid], "start", Deployed.start)
        done = {**note, "finished": True}
        return [
            *steps,
            self._wait_step(),
            *(self._step(each, "note that the restore is done", _call(each.host.note_restore, done)) for each in nodes),
        ]

    def _restore_id(self, nodes: list[Deployed], backup: Backup) -> str:
        """Return the id of the restore that was begun on a host, or a new one. Raises Unsafe if it was another one."""
        begun = {
            each.facts["restore"]["restore_id"]: each
            for each in nodes
            if each.facts["restore"] and not each.facts["restore"]["finished"]
        }
        if not begun or not all(_is_of(each, backup) for each in begun.values()):
            if begun and not self._is_confirmed:
                each = next(iter(begun.values()))
                raise Unsafe(
                    f"node {each.node.id} ({each.node.host}): a restore from another backup was begun here; finish it "
                    f"with that file, or begin anew with this one: --yes {self._inventory.cluster.id}"
                )
            return secrets.token_hex(RESTORE_ID_BYTES)
        if len(begun) > 1:
            raise Unsafe(
                "two restores from this backup were begun at the same time; end both, remove the data with "
                "keelmq-deploy destroy, and begin anew"
            )
        self._report.event("going on with a restore that was not finished")
        return str(next(iter(begun)))

    @property
    def _is_confirmed(self) -> bool:
        return bool(self._options.yes == self._inventory.cluster.id)

    def _refuse_loss(self, used: list[Deployed]) -> None:
        """Raise Unsafe if nodes that run or have data are not part of this restore, and nobody said to discard that."""
        if used and not self._is_confirmed:
            named = ", ".join(f"node {each.node.id} ({each.node.host})" for each in used)
            raise Unsafe(
                f"{named} has data. A restore makes a new cluster with the state of the backup: to stop these nodes "
                f"and set their data aside, add --yes {self._inventory.cluster.id}"
            )

    def _require_space(self, nodes: list[Deployed], backup: Backup) -> None:
        for each in nodes:
            if not each.facts["is_restored"] and each.facts["free_bytes"] < FREE_SHARE * backup.bytes:
                raise Failed(
                    f"node {each.node.id} ({each.node.host}): {each.facts['free_bytes'] >> 20} MiB are free at "
                    f"{each.node.root}; the backup and its data need {FREE_SHARE * backup.bytes >> 20} MiB"
                )

    def _prepare_new(self, each: Deployed, secret: bytes | None) -> None:
        each.host.claim()
        self._bring_certificates(each)
        each.prepare(secret)

    def _bring(self, each: Deployed, backup: Backup) -> None:
        sent = 0

        def count(number: int) -> None:
            nonlocal sent
            sent += number

        with self._report.live(share=lambda: sent / max(1, backup.bytes)):
            each.host.put_file(BACKUP_ON_HOST, backup.path, backup.sha256, count)

    def _restore_one(self, each: Deployed, restore_id: str, found: dict[str, Any]) -> None:
        peers = [part for node in self._inventory.nodes for part in ("--peer", _peer(node))]
        arguments = ["--node-id", str(each.node.id), "--cluster-id", self._inventory.cluster.id, *peers]
        with self._report.live():
            said = each.host.restore(each.program, [*arguments, "--restore-id", restore_id, *_segment_bytes(each.node)])
        if said and found["state_hash"] not in said:
            raise Failed(f"node {each.node.id}: not the state hash {found['state_hash']} of the backup: {said}")
        for line in said.splitlines()[:1]:
            self._report.event(line)

    # --- recovery --------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Make the named survivor of a lost majority a cluster of its own, and set aside what other hosts have."""
        leader_id = self._leader_for_certain()
        if leader_id is not None:
            self._report.event(f"node {leader_id} leads: there is nothing to recover")
            self._do([])
            return
        survivor, others = self._named(), self._reachable_others()
        self._refuse_needless([survivor, *others])
        others = [each for each in others if each.has_disk]
        if not survivor.has_disk:
            raise Failed(f"node {survivor.node.id} ({survivor.node.host}) has no data; name a survivor that has")
        accepted: bool = self._options.accepted
        for each in (survivor, *others):
            if not each.pid:
                self._look(each)
        ends: dict[int, LogEnd] = {}
        compared = [survivor, *others]
        steps = [self._step(each, "stop", each.stop) for each in compared if each.pid]
        steps += [self._step(each, "see how far its log goes", _call(self._note_end, each, ends)) for each in compared]
        steps += [
            self._step(survivor, "make it the only voter of a new cluster", _call(self._recover_one, survivor, ends)),
            *(self._step(each, "set its data aside (data.old)", each.host.set_aside) for each in others),
            self._step(survivor, "configure, check and start", _call(self._start_recovered, survivor)),
            self._step(survivor, "wait until it leads", _call(self._wait_leads, survivor.node)),
        ]
        if not accepted and not self._options.dry_run:
            self._plan(steps)
            raise Unsafe(f"what was acknowledged without node {survivor.node.id} is lost for good; do it with {ACCEPT}")
        self._do(steps)
        missing = [node for node in self._inventory.nodes if node.id != survivor.node.id]
        for node in missing:
            self._report.event(f"next: keelmq-deploy add {node.id}, with an empty or wiped host ({node.host})")

    def _leader_for_certain(self) -> int | None:
        """Return the node that leads a majority, None when there is none. A leader that has just lost its majority
        goes on as one for a moment. Raises Unsafe if one goes on with voters that do not answer here.
        """

        def why_unclear(views: Sequence[View]) -> str | None:
            leads = leader_of(views) is None or leads_majority(views)
            return None if leads else f"node {leader_of(views)} leads, and no majority answers here"

        try:
            return leader_of(self._probe.wait(why_unclear, self._options.timeout_s))
        except Unhealthy as error:
            raise Unsafe(str(error)) from None

    def _reachable_others(self) -> list[Deployed]:
        found, lost = self._asked([node for node in self._inventory.nodes if node.id != self._options.node])
        for error in lost:
            self._report.event(f"not reached, and taken as lost: {error}", "problem")
        return found

    def _refuse_needless(self, reached: list[Deployed]) -> None:
        """Raise Unsafe if enough nodes have their disks: then starting them is the way, and loses nothing."""
        there = [each.node.id for each in reached if each.has_disk]
        if len(there) >= self._inventory.majority and len(self._inventory.nodes) > 1:
            raise Unsafe(
                f"nodes {', '.join(map(str, there))} have their data, which is a majority: next: keelmq-deploy "
                "bootstrap. If a disk is damaged for good, empty its data directory first"
            )

    def _look(self, each: Deployed, *more: str) -> str:
        with self._report.live():
            said = each.host.recover(each.program, [*more, *_segment_bytes(each.node)])
        for line in said.splitlines():
            self._report.event(f"node {each.node.id} says {line}")
        return said

    def _note_end(self, each: Deployed, ends: dict[int, LogEnd]) -> None:
        said = each.host.recover(each.program, _segment_bytes(each.node))
        found = _LOG_END.search(said)
        if found is None:
            raise Failed(f"node {each.node.id}: keelmqd recover did not say where its log ends: {said}")
        ends[each.node.id] = LogEnd(int(found[2]), int(found[1]))

    def _recover_one(self, each: Deployed, ends: dict[int, LogEnd]) -> None:
        """Recover it. Raises Unsafe when another survivor has more, unless this one is recovered already."""
        best = max(ends, key=lambda node_id: (ends[node_id], node_id == each.node.id))
        if best != each.node.id:
            raise Unsafe(
                f"the log of node {best} ends with entry {ends[best].entry} of term {ends[best].term}, that of node "
                f"{each.node.id} with entry {ends[each.node.id].entry} of term {ends[each.node.id].term}; next: "
                f"keelmq-deploy recover {best}"
            )
        self._look(each, ACCEPT, "--peer", _peer(each.node))

    def _start_recovered(self, each: Deployed) -> None:
        each.prepare(self._secret(create=True))
        each.start()

    def _wait_leads(self, node: Node) -> None:
        def why_not(views: Sequence[View]) -> str | None:
            view = next(view for view in views if view.node.id == node.id)
            leads = view.reason is None and leader_of(views) == node.id
            return None if leads else f"node {node.id} does not lead: {view.reason}"

        self._probe.wait(why_not, self._options.timeout_s)


def _call(act: Callable[..., object], *arguments: Any) -> Callable[[], None]:
    def call() -> None:
        act(*arguments)

    return call


def _described(path: Path) -> Backup:
    with path.open("rb") as stream:
        return Backup(path, os.fstat(stream.fileno()).st_size, hashlib.file_digest(stream, "sha256").hexdigest())


def _is_of(each: Deployed, backup: Backup) -> bool:
    return bool(each.facts["restore"].get("backup") == backup.sha256)


def _peer(node: Node) -> str:
    return f"{node.id}={node.peer}={node.url}"


def _segment_bytes(node: Node) -> list[str]:
    """Return the options of the node that the offline commands need."""
    found = tomllib.loads(node.config).get("segment_bytes")
    return [] if found is None else ["--segment-bytes", str(found)]


def _written(target: str) -> str:
    if target.startswith(STORE):
        return ""
    directory = Path(target) if target.endswith("/") else Path(target).parent
    size = sum(path.stat().st_size for path in directory.glob("*.partial"))
    return f"{size >> 20} MiB"


def _error_of(line: str) -> str:
    """Return the message of an error that `keelmq --json` printed."""
    try:
        found = json.loads(line)["error"]
    except (ValueError, KeyError, TypeError):
        return line
    hint = "; next: keelmq-deploy backup N reads node N all the same" if found["code"] == "no_leader" else ""
    return f"{found['code']}: {found['detail']}{hint}"
