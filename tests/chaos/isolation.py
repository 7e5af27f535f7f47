"""Finds out what this machine allows: namespaces of our own, firewall rules, system call injection.

With the rights for it the run moves into a network and a mount namespace of its own. Everything it makes there
(network namespaces of the nodes, bridge, addresses, rules, mounts) goes away with its processes, even when it is
killed: there is nothing to clean up, and two runs cannot meet.

A run moves there when everything works there that a network of nodes and its faults need (tests/requirements.py).
Otherwise it stays on loopback, and says why.
"""

import os
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from tests.requirements import NAMESPACES, TRACING, unshare_command

ISOLATED_VARIABLE: Final = "CHAOS_ISOLATED"
"""Environment variable that is 1 in a run that has moved into namespaces; `no: <reason>` keeps a run where it is."""


class Machine(msgspec.Struct, frozen=True):
    """Abilities of this machine: each field is None when it works here, or the reason why not."""

    no_namespaces: str | None
    """Reason for which there are no namespaces, and so no network faults and no file systems of the nodes' own."""
    no_injection: str | None

    @property
    def isolated(self) -> bool:
        return self.no_namespaces is None


def enter_isolation(arguments: Sequence[str], module: str = "tests.chaos") -> str | None:
    """Start `module`, this program, again inside namespaces of its own (does not return), or return why that is
    impossible.
    """
    said = os.environ.get(ISOLATED_VARIABLE)
    if said:
        return said if said.startswith("no") else None
    unshare = None if NAMESPACES.reason else unshare_command()
    if unshare is None:
        return NAMESPACES.reason
    command = [*unshare, sys.executable, "-m", module, *arguments]
    os.execvpe(command[0], command, {**os.environ, ISOLATED_VARIABLE: "1"})


def look_around(not_isolated: str | None) -> Machine:
    """Return the machine's abilities; call it after `enter_isolation`, with its answer."""
    return Machine(not_isolated, TRACING.reason)
