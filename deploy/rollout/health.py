"""Health of the nodes as they tell it, and whether the cluster can do without one of them now."""

import http.client
import json
import ssl
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from deploy.rollout.awaited import AWAITED, at_most
from deploy.rollout.inventory import CERTIFICATES_END, Inventory, Node
from deploy.rollout.side_by_side import side_by_side

PROBE_TIMEOUT_S: Final = 3.0
PROBES: Final = 2
"""Number of requests that tell how a node is."""
CALL_TIMEOUT_S: Final = 10.0
"""Longest administrative call; a leader that hands over takes 3 s at most."""
POLL_S: Final = 0.1
SAY_EVERY_S: Final = 5.0
"""Seconds between two lines about the nodes that are waited for."""
BEHIND_ENTRIES_MAX: Final = 1_000
"""Number of entries that a follower may lack and still count as a copy of what is committed."""
ANSWER_BYTES_MAX: Final = 4 << 20
WRONG_LISTENER: Final = "wrong_listener"


class View(NamedTuple):
    """Answer of one node. `reason` tells why it is not ready, None when it is; `status` is its /v1/cluster."""

    node: Node
    reason: str | None
    status: dict[str, Any] | None
    is_stranger: bool = False
    """Tells whether another node, or one of another cluster, answers at its URL; `reason` says which."""


class _NotReached(OSError):
    """No connection was made, so nothing was asked."""


class Unhealthy(Exception):
    """The cluster did not become healthy in time; the text has the reasons."""


class ServedElsewhere(Exception):
    """A node serves an administrative call at a listener that this machine does not reach. No repetition helps."""


class Probe:
    """Asks nodes over HTTP, with the token and the authorities of the inventory."""

    def __init__(self, inventory: Inventory, say: Callable[[str], object] = lambda _: None) -> None:
        """Read token and authorities; `say` is called with the reason for waiting. Raises OSError when a file cannot be
        read."""
        self._inventory = inventory
        self._say = say
        cluster = inventory.cluster
        self._headers: dict[str, str] = {}
        if cluster.token_file:
            self._headers["Authorization"] = f"Bearer {Path(cluster.token_file).read_text().strip()}"
        authority, urls = authority_of(inventory), [url for node in inventory.nodes for url in _urls(node)]
        # Those of this machine are read for nobody else: that takes as long as all other beginnings of a verb.
        is_needed = authority is not None or any(url.startswith("https:") for url in urls)
        self._tls = ssl.create_default_context(cafile=authority) if is_needed else None

    def views(self) -> list[View]:
        """Ask all nodes side by side: those that do not answer take no longer than one."""
        return self._views(self.view)

    def _views(self, look: Callable[[Node], View]) -> list[View]:
        nodes = self._inventory.nodes
        return side_by_side(look, nodes, len(nodes))

    def view(self, node: Node) -> View:
        with AWAITED.call(node, "its health", at_most(PROBES * PROBE_TIMEOUT_S)):
            return self._view(node)

    def _view(self, node: Node) -> View:
        try:
            code, body = self._get(node, "/readyz")
            reason = None if code == HTTPStatus.OK else _detail(body) or f"status {code}"
            code, body = self._get(node, "/v1/cluster")
            if code != HTTPStatus.OK:
                return View(node, f"/v1/cluster: {_detail(body) or f'status {code}'}", None)
            status = json.loads(body)
            stranger = self._stranger(node, status)
            return View(node, reason, status) if stranger is None else View(node, stranger, None, is_stranger=True)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return View(node, str(error) or repr(error), None)

    def _stranger(self, node: Node, status: dict[str, Any]) -> str | None:
        """Return who answers in place of the node, None if it does. What it says must decide nothing here."""
        wanted = (self._inventory.cluster.id, node.id)
        found = (status.get("cluster_id", wanted[0]), status.get("node_id", wanted[1]))
        if found == wanted:
            return None
        return (
            f"node {found[1]} of the cluster {found[0]} answers at {node.url}, which is to be node {node.id} of "
            f"{wanted[0]}; correct its url, or the id of the cluster, in {self._inventory.path.name}"
        )

    def call(self, node: Node, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        """Return status and answer of an administrative call of this node, at the first of its URLs that is reached.

        Raises Unhealthy when it does not answer, and ServedElsewhere when it serves the call only where this machine
        does not reach it. No address that is answered is asked: the token is shown to the nodes of the inventory.
        """
        content = None if body is None else json.dumps(body).encode()
        called = f"node {node.id} ({node.host}): {method} {path}"
        not_reached: list[str] = []
        for url in node.administered_at:
            try:
                with AWAITED.call(node, path, at_most(CALL_TIMEOUT_S)):
                    code, answer = self._request(url, method, path, content, CALL_TIMEOUT_S)
                document = json.loads(answer) if answer else {}
            except _NotReached as error:
                not_reached.append(f"{url}: {error}")
                continue
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise Unhealthy(f"{called}: {str(error) or repr(error)}") from None
            if isinstance(document, dict) and document.get("code") == WRONG_LISTENER:
                reason = "; ".join(not_reached) or "this machine has no address of it"
                raise ServedElsewhere(
                    f"{called} is served at admin_listen only: {reason}; next: keelmq-deploy preflight"
                )
            return code, document
        raise Unhealthy(f"{called}: {'; '.join(not_reached)}")

    def _get(self, node: Node, path: str) -> tuple[int, bytes]:
        return self._request(node.url, "GET", path, None, PROBE_TIMEOUT_S)

    def _request(self, url: str, method: str, path: str, body: bytes | None, timeout_s: float) -> tuple[int, bytes]:
        parts = urlsplit(url)
        host = parts.hostname or ""
        connection = (
            http.client.HTTPSConnection(host, parts.port, timeout=PROBE_TIMEOUT_S, context=self._tls)
            if parts.scheme == "https"
            else http.client.HTTPConnection(host, parts.port, timeout=PROBE_TIMEOUT_S)
        )
        try:
            try:
                connection.connect()
            except OSError as error:
                raise _NotReached(str(error) or repr(error)) from None
            connection.sock.settimeout(timeout_s)
            # Calls that change something say what they send, also without a body.
            headers = self._headers if method == "GET" else {**self._headers, "Content-Type": "application/json"}
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read(ANSWER_BYTES_MAX)
        finally:
            connection.close()

    def wait(
        self, why_not: Callable[[Sequence[View]], str | None], timeout_s: float, *, says_at_once: bool = False
    ) -> list[View]:
        """Ask until `why_not` returns None, and return those answers. Raises Unhealthy with its last reason, after the
        first look when `timeout_s` is 0.
        """
        begun_s = time.monotonic()
        say_s = begun_s if says_at_once else begun_s + SAY_EVERY_S
        views = self.views()
        while (reason := why_not(views)) is not None:
            if timeout_s == 0:
                raise Unhealthy(reason)
            if time.monotonic() >= say_s:
                self._say(f"waiting: {reason}")
                say_s = time.monotonic() + SAY_EVERY_S
            if time.monotonic() > begun_s + timeout_s:
                raise Unhealthy(f"after {timeout_s:.0f} s still {reason}")
            time.sleep(POLL_S)
            views = self._views(self._view)  # the reason says who does not answer
        return views


def _urls(node: Node) -> list[str]:
    return [node.url, *node.administered_at]


def authority_of(inventory: Inventory) -> str | None:
    """Return the path of the authorities for https URLs: those of the inventory, else the one that `certs` made."""
    own = inventory.beside(CERTIFICATES_END) / "ca.crt"
    return inventory.cluster.ca_file or (str(own) if own.exists() else None)


def leader_of(views: Sequence[View]) -> int | None:
    """Return the node that claims to lead the highest term, or None."""
    claims = [(view.status["term"], view.node.id) for view in views if view.status and view.status["role"] == "leader"]
    return max(claims)[1] if claims else None


def memberships(views: Sequence[View]) -> dict[int, str] | None:
    """Return what the leader says that each node is, by id; None while nobody leads."""
    leader_id = leader_of(views)
    status = next((view.status for view in views if view.node.id == leader_id), None)
    return None if status is None else {each["node_id"]: each["membership"] for each in status["nodes"]}


def voters_of(views: Sequence[View]) -> list[View]:
    """Return the answers of the nodes that are voters; all of them while nobody leads."""
    found = memberships(views)
    return [view for view in views if found is None or found.get(view.node.id) == "voter"]


def leads_majority(views: Sequence[View]) -> bool:
    """Return whether somebody leads, and a majority of the voters that it names is ready and follows it."""
    leader_id, found = leader_of(views), memberships(views) or {}
    voters = {node_id for node_id, membership in found.items() if membership == "voter"}
    followers = {
        view.node.id
        for view in views
        if view.reason is None and view.status is not None and view.status["leader_id"] == leader_id
    }
    return len(voters & followers) > len(voters) // 2


def why_not_whole(views: Sequence[View]) -> str | None:
    """Return why not every node is a healthy member with the same state, or None."""
    return _why_not(views, views)


def why_voters_not_whole(views: Sequence[View]) -> str | None:
    """The same of the nodes that are voters: others of the inventory are still to be added."""
    return why_not_whole(voters_of(views))


def why_not_without(views: Sequence[View], node_id: int) -> str | None:
    """Return why the cluster could not go on without this node, or None.

    The other voters have to be a majority that is ready, is near the leader's log and has equal state. A node that is
    neither ready nor the given one is tolerated only as long as a majority is left.
    """
    views = voters_of(views)
    others = [view for view in views if view.node.id != node_id]
    ready = [view for view in others if view.reason is None]
    beside, beside_ready = _voters_beside(views)
    nodes, there = len(views) + beside, len(ready) + beside_ready
    majority = nodes // 2 + 1
    if there < majority:
        reasons = "; ".join(f"node {view.node.id}: {view.reason}" for view in others if view.reason is not None)
        return f"without node {node_id}, {there} of {nodes} nodes are ready, and {majority} are needed" + (
            f" ({reasons})" if reasons else ""
        )
    return _why_not(ready, views)


def _voters_beside(views: Sequence[View]) -> tuple[int, int]:
    """Return how many voters of the cluster are not in the inventory, and how many of these answer the leader."""
    status = next((view.status for view in views if view.status is not None and view.status["role"] == "leader"), None)
    if status is None:
        return 0, 0
    known = {view.node.id for view in views}
    beside = [each for each in status["nodes"] if each["membership"] == "voter" and each["node_id"] not in known]
    return len(beside), sum(each["connected"] for each in beside)


def _why_not(counted: Sequence[View], views: Sequence[View]) -> str | None:
    """Return why the `counted` nodes are no healthy copies, or None. `views` has the leader, which may be another."""
    for view in counted:
        if view.reason is not None or view.status is None:
            return f"node {view.node.id} ({view.node.host}) is not ready: {view.reason}"
        for alarm in view.status["alarms"]:
            if alarm["severity"] == "critical":
                return f"node {view.node.id} has the alarm {alarm['code']}: {alarm['detail']}"
    statuses = [view.status for view in counted if view.status is not None]
    leaders = {(status["leader_id"], status["term"]) for status in statuses}
    if len(leaders) != 1:
        return f"the nodes follow different leaders: {sorted(leaders, key=str)}"
    hashes: dict[int, str] = {}
    for status in statuses:
        if hashes.setdefault(status["hash_index"], status["state_hash"]) != status["state_hash"]:
            return f"replicas differ at entry {status['hash_index']}"
    return _why_behind([view.node.id for view in counted], leaders.pop()[0], views)


def _why_behind(node_ids: Sequence[int], leader_id: int, views: Sequence[View]) -> str | None:
    status = next((view.status for view in views if view.node.id == leader_id), None)
    if status is None:
        return f"node {leader_id}, which leads, does not answer"
    members = {member["node_id"]: member for member in status["nodes"]}
    for node_id in node_ids:
        member = members.get(node_id)
        if member is None or member["membership"] != "voter":
            return f"node {node_id} is no voter of the cluster"
        behind = status["commit_index"] - member["match_index"]
        if not member["connected"] or behind > BEHIND_ENTRIES_MAX:
            return f"node {node_id} is {max(behind, 0)} entries behind the leader"
    return None


def _detail(body: bytes) -> str:
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace").strip()
