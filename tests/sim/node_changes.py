"""Operators who change the nodes of the cluster while it runs: add empty ones, promote them, remove any of them."""

from collections.abc import Callable, Mapping

from .addresses import PLACES_MAX, peer_address, url
from .checkers.membership import Members
from .clients import Answer, Clients, json_request
from .fault import impaired, minority
from .observer import Observer
from .replica import Replica
from .world import World

FIRST_US = 1_200_000
PAUSE_US_MAX = 700_000
FORCE_PROBABILITY = 0.3
LATE_US = 5_000_000
"""Time for which an answered change may still come to something: an earlier try of it may wait at a node."""
CODES = {"change_in_progress", "not_caught_up", "last_voter", "quorum_at_risk", "node_exists", "node_not_found"}


class NodeChanges:
    """Operators who add, remove and move nodes. They look at whoever leads, and never cause a majority to lose its
    disk.
    """

    def __init__(self, world: World, clients: Clients, replicas: Mapping[int, Replica], observer: Observer) -> None:
        self._world, self._clients, self._replicas, self._observer = world, clients, replicas, observer
        self._random = world.random_of("operators of nodes")
        self._model = observer.membership
        self.running = True

    def start(self) -> None:
        self._world.after(FIRST_US, self._act)

    def stop(self) -> None:
        self.running = False

    def _act(self) -> None:
        if not self.running:
            return
        members = self._seen()
        if members is not None:
            self._change(members)
        for _ in range(self._random.choice((0, 0, 1))):  # two at once
            if members is not None:
                self._change(members)
        self._world.after(self._random.randint(1, 2 * PAUSE_US_MAX), self._act)

    def _seen(self) -> Members | None:
        leaders = [replica for replica in self._replicas.values() if replica.is_leader]
        return self._observer.members_of(self._random.choice(leaders)) if leaders else None

    def _change(self, members: Members) -> None:
        outside = sorted(self._replicas.keys() - members.voters - members.learners)
        kinds = ["remove", "move"] + ["add"] * bool(outside) * 2 + ["promote"] * bool(members.learners) * 3
        kind = self._random.choice(kinds)
        path = "/v1/cluster/members"
        if kind == "add":
            node_id = self._random.choice(outside)
            body = {"node_id": node_id, "peer_address": f"simulated:{node_id}", "http_address": url(node_id)}
            self._call("POST", path, body, kind)
        elif kind == "move":
            node_id, place = self._random.choice(sorted(self._replicas)), self._random.randint(0, PLACES_MAX)
            at = peer_address(node_id, place)
            body = {"peer_address": f"{at.host}:{at.port}", "http_address": url(node_id, place)}
            self._call("PUT", f"{path}/{node_id}/address", body, kind)
        elif kind == "promote":
            node_id = self._random.choice(sorted(members.learners))
            self._call_safely(self._model.promotions, node_id, "POST", f"{path}/{node_id}/promote", kind)
        else:
            node_id = self._random.choice(sorted(members.voters | members.learners))
            if node_id in [replica.node_id for replica in self._replicas.values() if replica.is_leader]:
                self._observer.met["nodes: the leader is to be removed"] += 1
            force = "?force=true" if self._random.random() < FORCE_PROBABILITY else ""
            self._call_safely(self._model.removals, node_id, "DELETE", f"{path}/{node_id}{force}", kind)

    def _call_safely(self, pending: list[int], node_id: int, method: str, target: str, kind: str) -> None:
        """Send the request unless it could leave a majority that does not hold all that it ever acknowledged."""
        pending.append(node_id)
        if minority(self._replicas, impaired(self._replicas)):
            self._call(method, target, None, kind, lambda: self._world.after(LATE_US, lambda: pending.remove(node_id)))
        else:
            pending.remove(node_id)

    def _call(
        self, method: str, target: str, body: object, kind: str, on_known: Callable[[], None] = lambda: None
    ) -> None:
        def on_answer(answer: Answer | None) -> None:
            if answer is not None:
                on_known()
            code = "nothing" if answer is None else "done" if answer.ok else answer.code
            self._observer.met[f"nodes: {kind}: {code}"] += 1
            assert answer is None or answer.ok or answer.code in CODES, answer

        self._clients.call(json_request(method, target, body), on_answer)
