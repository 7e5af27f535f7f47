"""Tells whether this machine reaches both listeners of each node: the one of its URL, and the one for administration.

The tool asks nodes for their health at the one and administers them at the other. A verb that reached only one of them
would wait until its time is over, for something that does not change by itself.
"""

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from deploy.rollout import host_agent
from deploy.rollout.health import Probe
from deploy.rollout.inventory import Inventory, Node

PORT_DEFAULT: Final = {"http": 80, "https": 443}

Address = tuple[str, int]


class Obstacle(NamedTuple):
    """Why one listener of a node is not reached from here, with the next step."""

    node: Node
    text: str
    hides_health: bool
    """Tells whether the one of the URL is not reached, so that nothing tells how the node is."""
    is_in_force: bool = True
    """Tells whether the node is known to run with the listener that is not reached."""


def obstacles(inventory: Inventory, probe: Probe) -> list[Obstacle]:
    """Connect to both listeners of every node that has two, and return those that are not reached while the other one
    is. A node of which neither is reached is down, for all that is known here. A node opens one listener after the
    other, so a second look has to find the same.
    """
    found = _obstacles([node for node in inventory.nodes if node.admin_url], probe)
    return _obstacles([each.node for each in found], probe)


def _obstacles(nodes: Sequence[Node], probe: Probe) -> list[Obstacle]:
    asked = {address_of(url) for node in nodes for url in (node.url, *reached_for_administration(node))}
    refused = refused_of(sorted(asked))
    found = (_obstacle(node, probe, refused) for node in nodes)
    return [each for each in found if each is not None]


def _obstacle(node: Node, probe: Probe, refused: Mapping[Address, str]) -> Obstacle | None:
    url, reason = address_of(node.url), refused.get(address_of(node.url))
    if (text := hidden(node)) is not None:
        return Obstacle(node, text, hides_health=False, is_in_force=reason is None and _runs_with_it(node, probe))
    administration = address_of(node.admin_url)
    admin_reason = refused.get(administration)
    if reason is not None and admin_reason is None:
        return Obstacle(node, _half(node, (url, "url"), reason, (administration, key_of(node))), hides_health=True)
    if reason is None and admin_reason is not None and _runs_with_it(node, probe):
        text = _half(node, (administration, key_of(node)), admin_reason, (url, "url"))
        return Obstacle(node, text, hides_health=False)
    return None


def hidden(node: Node) -> str | None:
    """Return why no other machine than the node's own reaches its listener for administration; None if others do."""
    if not node.admin_url or reached_for_administration(node):
        return None
    key, parts = key_of(node), urlsplit(node.url)
    better = _shown((parts.hostname or "", address_of(node.admin_url)[1]))
    if key == "admin_url":
        better = f"{parts.scheme}://{better}"
    return (
        f"{named(node)}: it is administered at {_shown(address_of(node.admin_url))} alone, a loopback address of that "
        f"host ({key}), which this machine does not reach: it comes there by ssh. Next: give {key} an address that "
        f"this machine reaches, such as {better}, and run keelmq-deploy upgrade"
    )


def reached_for_administration(node: Node) -> tuple[str, ...]:
    """Return the URL of the listener for administration, unless it has none or is one of another host's own."""
    return tuple(url for url in node.administered_at if url == node.admin_url)


def refused_of(addresses: list[Address]) -> dict[Address, str]:
    """Connect from this machine to all addresses at once. Return those that are not reached, each with the reason."""
    refused: list[list[Any]] = host_agent.reach([[*each] for each in addresses])["refused"] if addresses else []
    return {(host, port): reason for host, port, reason in refused}


def address_of(url: str) -> Address:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or PORT_DEFAULT[parts.scheme]


def key_of(node: Node) -> str:
    """Return the option that says where the listener for administration is reached."""
    return "admin_url" if "admin_url" in tomllib.loads(node.config) else "admin_listen"


def named(node: Node) -> str:
    return f"node {node.id} ({node.host})"


def _runs_with_it(node: Node, probe: Probe) -> bool:
    """Return whether the node says that it has a listener for administration: one that was started before the
    inventory named it has none, and is administered at its URL.
    """
    status = probe.view(node).status
    return status is not None and status.get("admin_url") is not None


def _half(node: Node, missed: tuple[Address, str], reason: str, reached: tuple[Address, str]) -> str:
    (address, key), (other, other_key) = missed, reached
    return (
        f"{named(node)}: {_shown(address)} ({key}) cannot be reached from this machine ({reason}), while "
        f"{_shown(other)} ({other_key}) can, and both are needed. Next: open the port {address[1]} for this machine, "
        f"or correct {key}"
    )


def _shown(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
