"""Finds what is wrong with the hosts before anything is installed. Looks, and changes nothing."""

import contextlib
import time
import tomllib
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from deploy.rollout import host_agent
from deploy.rollout.inventory import Inventory, Node, is_loopback
from deploy.rollout.rolling import Deployed
from deploy.rollout.transport import HostError

FREE_BYTES_MIN: Final = 1 << 30
CLOCK_DIFFERENCE_MS_MAX: Final = 2_000
"""Largest difference of two hosts' clocks that is not called a defect; an answer over ssh takes a part of it."""
PORT_DEFAULT: Final = {"http": 80, "https": 443}


def defects_of(inventory: Inventory) -> list[str]:
    """Return all defects of all hosts, each with its node and host."""
    defects: list[str] = []
    found: list[Deployed] = []
    ahead_ms: dict[int, int] = {}
    for node in inventory.nodes:
        try:
            each = Deployed(inventory, node)
            ahead_ms[node.id] = each.facts["time_ms"] - time.time_ns() // 1_000_000
            defects += [f"{_named(node)}: {text}" for text in _of_host(each)]
            found.append(each)
        except HostError as error:
            defects.append(str(error))
    return [*defects, *_of_clocks(inventory, ahead_ms), *_of_network(found)]


def _of_host(each: Deployed) -> list[str]:
    facts, root = each.facts, each.node.root
    defects = []
    if not facts["writable"]:
        defects.append(f"{root} cannot be written")
    if not facts["is_ours"]:
        defects.append(f"{root} is in use by something else; choose another root or empty it")
    if facts["free_bytes"] < FREE_BYTES_MIN:
        defects.append(f"{facts['free_bytes'] >> 20} MiB are free at {root}, 1 GiB is needed")
    if facts["writable"] and (reason := each.host.disk_defect()):
        defects.append(f"the file system of {root} cannot make writes durable: {reason}")
    return defects


def _of_clocks(inventory: Inventory, ahead_ms: dict[int, int]) -> list[str]:
    if not ahead_ms or max(ahead_ms.values()) - min(ahead_ms.values()) <= CLOCK_DIFFERENCE_MS_MAX:
        return []
    shown = ", ".join(f"{_named(node)} {ahead_ms[node.id]:+} ms" for node in inventory.nodes if node.id in ahead_ms)
    return [f"the clocks of the hosts differ; start NTP. Against this machine: {shown}"]


def _of_network(found: list[Deployed]) -> list[str]:
    """Listen where nodes do not run yet, and have every host connect to all others, and this machine to the URLs."""
    defects = []
    with contextlib.ExitStack() as listening:
        there = []
        for each in found:
            try:
                if each.pid == 0:
                    listening.enter_context(each.host.listening(_listen_ports(each.node)))
                there.append(each.node)
            except HostError as error:
                defects.append(str(error))
        for each in found:
            targets = [target for node in there if node != each.node for target in _addresses(node)]
            try:
                refused = each.host.reach(targets)
            except HostError as error:
                defects.append(str(error))
                continue
            defects += [f"{_named(each.node)}: {text}" for text in _unreachable(refused)]
        urls = [target for node in there for target in _addresses(node) if target == _url_address(node)]
        urls += [target for node in there for target in _administration(node)]
        defects += [f"this machine: {text}" for text in _unreachable(host_agent.reach(urls)["refused"])]
    return defects


def _unreachable(refused: list[list[Any]]) -> Iterator[str]:
    for host, port, reason in refused:
        yield f"{host}:{port} cannot be reached ({reason}); open the port, or correct the address"


def _addresses(node: Node) -> list[list[Any]]:
    """Return where others reach the node, without what something between them serves (http_listen, peer_listen)."""
    options = tomllib.loads(node.config)
    host, _, port = node.peer.rpartition(":")
    addresses = [] if "peer_listen" in options else [[host.strip("[]"), int(port)]]
    return addresses if "http_listen" in options else [*addresses, _url_address(node)]


def _administration(node: Node) -> list[list[Any]]:
    """Return where this machine reaches the listener for administration, unless something between serves it."""
    options = tomllib.loads(node.config)
    host, _, _ = str(options.get("admin_listen", "")).rpartition(":")
    if not host or "admin_url" in options or (is_loopback(host.strip("[]")) and node.ssh):
        return []
    return [_address_of(node.admin_url)]


def _url_address(node: Node) -> list[Any]:
    return _address_of(node.url)


def _address_of(url: str) -> list[Any]:
    parts = urlsplit(url)
    return [parts.hostname or "", parts.port or PORT_DEFAULT[parts.scheme]]


def _listen_ports(node: Node) -> list[int]:
    options = tomllib.loads(node.config)
    peer = str(options.get("peer_listen", node.peer)).rpartition(":")[2]
    http = str(options["http_listen"]).rpartition(":")[2] if "http_listen" in options else _url_address(node)[1]
    admin = [int(str(options["admin_listen"]).rpartition(":")[2])] if "admin_listen" in options else []
    return [int(peer), int(http), *admin]


def _named(node: Node) -> str:
    return f"node {node.id} ({node.host})"
