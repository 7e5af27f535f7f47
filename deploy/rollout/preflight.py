"""Finds what is wrong with the hosts before anything is installed. Looks at several at a time, and changes nothing."""

import contextlib
import time
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from deploy.rollout.inventory import Inventory, Node
from deploy.rollout.reachability import (
    Address,
    address_of,
    hidden,
    key_of,
    named,
    reached_for_administration,
    refused_of,
)
from deploy.rollout.rolling import Deployed
from deploy.rollout.transport import HostError, answers_of

FREE_BYTES_MIN: Final = 1 << 30
CLOCK_DIFFERENCE_MS_MAX: Final = 2_000
"""Largest difference of two hosts' clocks that is not called a defect; an answer over ssh takes a part of it."""


class _Found(NamedTuple):
    """A host that answered."""

    deployed: Deployed
    ahead_ms: int
    """Lead of its clock over this machine's."""
    defects: list[str]


def defects_of(inventory: Inventory, at_once: int) -> list[str]:
    """Return all defects of all hosts, each with its node and host, in the order of the inventory. At most `at_once`
    hosts are asked at a time.
    """
    looked = answers_of(lambda node: _look(inventory, node), inventory.nodes, at_once)
    found = [each for each in looked if isinstance(each, _Found)]
    defects = [text for each in looked for text in (each.defects if isinstance(each, _Found) else [str(each)])]
    defects += [text for node in inventory.nodes if (text := hidden(node)) is not None]
    return [*defects, *_of_clocks(found), *_of_network([each.deployed for each in found], at_once)]


def _look(inventory: Inventory, node: Node) -> _Found:
    each = Deployed(inventory, node)
    ahead_ms = each.facts["time_ms"] - time.time_ns() // 1_000_000
    return _Found(each, ahead_ms, [f"{named(node)}: {text}" for text in _of_host(each)])


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


def _of_clocks(found: Sequence[_Found]) -> list[str]:
    ahead_ms = [each.ahead_ms for each in found]
    if not ahead_ms or max(ahead_ms) - min(ahead_ms) <= CLOCK_DIFFERENCE_MS_MAX:
        return []
    shown = ", ".join(f"{named(each.deployed.node)} {each.ahead_ms:+} ms" for each in found)
    return [f"the clocks of the hosts differ; start NTP. Against this machine: {shown}"]


def _of_network(found: Sequence[Deployed], at_once: int) -> list[str]:
    """Listen where nodes do not run yet, and have every host connect to all others, and this machine to the URLs."""
    with contextlib.ExitStack() as listening:

        def listen(each: Deployed) -> Deployed:
            if each.pid == 0:
                listening.enter_context(each.host.listening(_listen_ports(each.node)))
            return each

        listened = answers_of(listen, found, at_once)
        there = [each for each in listened if isinstance(each, Deployed)]

        def reach(each: Deployed) -> list[str]:
            targets = [target for other in there if other is not each for target in _addresses(other.node)]
            return [f"{named(each.node)}: {text}" for text in _unreachable(each.host.reach(targets))]

        defects = [str(each) for each in listened if isinstance(each, HostError)]
        for reached in answers_of(reach, found, at_once):
            defects += [str(reached)] if isinstance(reached, HostError) else reached
        defects += _from_here(there)
    return defects


def _from_here(there: Sequence[Deployed]) -> Iterator[str]:
    """Connect from this machine to both listeners of each node. Yield the addresses that are not reached."""
    asked: dict[Address, str] = {}
    for each in there:
        for key, address in _asked_from_here(each):
            asked[address] = f"{key} of {named(each.node)}"
    for (host, port), reason in refused_of(list(asked)).items():
        yield (
            f"this machine: {host}:{port} cannot be reached ({reason}), the {asked[host, port]}; open the port, or "
            "correct the address"
        )


def _asked_from_here(each: Deployed) -> Iterator[tuple[str, Address]]:
    """Yield where this machine asks and administers the node. What something between serves is reached only while the
    node runs, and a listener that a running node does not have yet is not reached at all.
    """
    node, options = each.node, tomllib.loads(each.node.config)
    if each.pid or "http_listen" not in options:
        yield "url", address_of(node.url)
    is_there = each.is_wanted if each.pid else "admin_url" not in options
    for url in reached_for_administration(node):
        if is_there:
            yield key_of(node), address_of(url)


def _unreachable(refused: list[list[Any]]) -> Iterator[str]:
    for host, port, reason in refused:
        yield f"{host}:{port} cannot be reached ({reason}); open the port, or correct the address"


def _addresses(node: Node) -> list[list[Any]]:
    """Return where others reach the node, without what something between them serves (http_listen, peer_listen)."""
    options = tomllib.loads(node.config)
    host, _, port = node.peer.rpartition(":")
    addresses = [] if "peer_listen" in options else [[host.strip("[]"), int(port)]]
    return addresses if "http_listen" in options else [*addresses, [*address_of(node.url)]]


def _listen_ports(node: Node) -> list[int]:
    options = tomllib.loads(node.config)
    peer = str(options.get("peer_listen", node.peer)).rpartition(":")[2]
    http = str(options["http_listen"]).rpartition(":")[2] if "http_listen" in options else address_of(node.url)[1]
    admin = [int(str(options["admin_listen"]).rpartition(":")[2])] if "admin_listen" in options else []
    return [int(peer), int(http), *admin]
