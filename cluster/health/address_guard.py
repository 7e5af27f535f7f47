"""Guards the nodes' addresses: writes overridden ones, and those of a lone node, into the log, and alarms when this
node's address differs.
"""

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from typing import Final

from cluster.core.core import Core
from cluster.health.alarms import Condition
from cluster.process.addresses import Address, is_unspecified
from raft.config import AddressOverride, PeerAddress
from raft.errors import MembershipRefused, RaftError
from raft.membership import Configuration
from store.log.errors import DiskFull
from store.log.record import Entry

logger = logging.getLogger(__name__)

IN_PROGRESS: Final = "change_in_progress"


class AddressGuard:
    """Acts after each applied entry, as by then a new leader may lead and a change of members be done.

    Use on the event loop only.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._refusal = ""
        core.raft.on_applied(self._on_applied)

    def _on_applied(self) -> None:
        raft = self._core.raft
        if (raft.membership.is_overridden or self._has_moved_alone()) and raft.is_leader:
            asyncio.get_running_loop().call_soon(self._write)

    def _has_moved_alone(self) -> bool:
        """Return whether this node is the only one and was started with other addresses than the log has: nobody else
        has to learn them, so its options are the truth.
        """
        raft, own = self._core.raft, self._core.raft.config.advertised
        if len(raft.configuration.members) != 1 or own is None or not raft.configuration_index:
            return False
        member = raft.membership.find(raft.node_id)
        if member is None:
            return False
        return member.address != own or member.url != self._core.config.advertised_url()

    def _write(self) -> None:
        """Propose the addresses as one configuration record, like any other change of the members."""
        raft, override = self._core.raft, self._core.raft.config.override
        if not raft.is_leader:
            return
        if override is not None and raft.membership.is_overridden:
            change, text = (
                partial(_overridden, override),
                f"the given addresses into the log, as override {override.number}",
            )
        elif self._has_moved_alone():
            change = partial(_moved, raft.node_id, raft.config.advertised, self._core.config.advertised_url())
            text = "this node's addresses into the log, of which it is the only node"
        else:
            return
        try:
            written = raft.propose_configuration(change)
        except DiskFull:  # an alarm tells of it; the next applied entry, once there is room, tries again
            return
        except RaftError as error:  # before the next try the hindering entry is applied, or another node leads
            refusal = "" if isinstance(error, MembershipRefused) and error.code == IN_PROGRESS else str(error)
            if refusal and refusal != self._refusal:
                logger.error("the given addresses cannot be written into the log: %s", refusal)
            self._refusal = refusal
            return
        written.add_done_callback(_look_at)
        logger.warning("writing %s", text)

    def conditions(self) -> Iterator[Condition]:
        """Yield alarms for a refused override, and for an address of this node that differs from the log's."""
        core, raft = self._core, self._core.raft
        if self._refusal:
            yield Condition(
                "address_override_refused",
                "warning",
                f"the given addresses cannot be written into the log: {self._refusal}. Correct --peer of all nodes, "
                "and start them again with the same --override-addresses",
            )
        member = raft.membership.find(raft.node_id)
        own = raft.config.advertised
        if member is None or own is None or not raft.configuration_index or is_unspecified(own.host):
            return
        if member.address != own:
            node_id, url = raft.node_id, core.config.advertised_url()
            yield Condition(
                "address_differs",
                "warning",
                f"this node was started at {Address(own.host, own.port)}, but its address in the log is "
                f"{Address(member.host, member.port)}: if it has moved, keelmq cluster set-address {node_id} --peer "
                f"{Address(own.host, own.port)} --url {url}; else start it with the right --peer or --peer-listen",
            )


def _overridden(override: AddressOverride, configuration: Configuration) -> Configuration:
    return configuration.overridden(override)


def _moved(node_id: int, address: PeerAddress | None, url: str, configuration: Configuration) -> Configuration:
    return configuration.with_address(node_id, address, url)


def _look_at(future: "asyncio.Future[Entry]") -> None:
    """Retrieve the error of a proposal and ignore it: if the record is not committed, the next leader proposes it
    again.
    """
    if not future.cancelled():
        future.exception()
