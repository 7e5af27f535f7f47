"""An acknowledged, or committed, entry is on the fsynced log of a majority, read from the disks themselves."""

from collections.abc import Collection, Mapping

from store.command import Command, decode_entry

from .durable_log import DurableLog
from .membership import Members
from .violation import Violation


def check_on_majority(
    index: int, term: int, disks: Mapping[int, DurableLog], occasion: str, members: Members | None = None
) -> None:
    """Invariant 1. `disks` are those of all nodes, the ones that are down included, and wiped ones as they were.
    Without `members` all of them count.
    """
    voters = disks.keys() if members is None else members.voters
    holders = [node_id for node_id in sorted(voters) if disks[node_id].counts_for(index, term)]
    if len(holders) <= len(voters) // 2:
        raise Violation(
            "majority_durable",
            f"{occasion}: entry {index} of term {term} survives a power loss only on nodes {holders} of {len(voters)}",
        )


def check_receipt(
    index: int, term: int, durable_on: Collection[int], disks: Mapping[int, DurableLog], voters: int | None = None
) -> None:
    """The receipt names nodes whose synced log has the entry, and a majority of so many voters, of all nodes if None;
    0: they have changed since.
    """
    voters = len(disks) if voters is None else voters
    liars = [node_id for node_id in durable_on if not disks[node_id].counts_for(index, term)]
    if liars:
        raise Violation("receipt", f"entry {index} of term {term} is said to be durable on nodes {liars}; it is not")
    if voters and len(durable_on) <= voters // 2:
        raise Violation("receipt", f"entry {index} of term {term} was acknowledged with a receipt of {durable_on} only")


def check_entry_holds(command: Command, index: int, payload: bytes) -> None:
    """What a client is told about its command is about its command: the entry that the receipt names holds it."""
    if command not in decode_entry(payload).commands:
        raise Violation("receipt", f"the receipt of {command} names entry {index}, which does not hold it")
