"""An acknowledged, or committed, entry is on the fsynced log of a majority, read from the disks themselves."""

from collections.abc import Collection, Mapping

from store.command import Command, decode_entry

from .durable_log import DurableLog
from .violation import Violation


def check_on_majority(index: int, term: int, disks: Mapping[int, DurableLog], occasion: str) -> None:
    """Invariant 1. `disks` are those of all nodes, the ones that are down included, and wiped ones as they were."""
    holders = [node_id for node_id, durable in disks.items() if durable.counts_for(index, term)]
    if len(holders) <= len(disks) // 2:
        raise Violation(
            "majority_durable",
            f"{occasion}: entry {index} of term {term} survives a power loss only on nodes {holders} of {len(disks)}",
        )


def check_receipt(index: int, term: int, durable_on: Collection[int], disks: Mapping[int, DurableLog]) -> None:
    """The receipt names nodes whose synced log has the entry, and a majority of them."""
    liars = [node_id for node_id in durable_on if not disks[node_id].counts_for(index, term)]
    if liars:
        raise Violation("receipt", f"entry {index} of term {term} is said to be durable on nodes {liars}; it is not")
    if len(durable_on) <= len(disks) // 2:
        raise Violation("receipt", f"entry {index} of term {term} was acknowledged with a receipt of {durable_on} only")


def check_entry_holds(command: Command, index: int, payload: bytes) -> None:
    """What a client is told about its command is about its command: the entry that the receipt names holds it."""
    if command not in decode_entry(payload).commands:
        raise Violation("receipt", f"the receipt of {command} names entry {index}, which does not hold it")
