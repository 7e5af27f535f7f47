"""An acknowledged, or committed, entry is on the fsynced log of a majority, read from the disks themselves."""

from collections.abc import Collection, Mapping
from typing import Any

from store.commands.entry import Command, decode_entry
from store.commands.messages import Produce
from store.commands.transactions import Prepare

from .durable_log import DurableLog
from .membership import Members
from .violation import Violation


def check_on_majority(
    index: int, term: int, disks: Mapping[int, DurableLog], occasion: str, members: Members | None = None
) -> None:
    """Check invariant 1. `disks` are those of all nodes, also of nodes that are down, and wiped ones as they were. All
    of them count if `members` is None.
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
    """Check that the synced logs of the nodes in the receipt have the entry, and that they are a majority of `voters`:
    of all nodes if None; 0 when the members have changed since.
    """
    voters = len(disks) if voters is None else voters
    liars = [node_id for node_id in durable_on if not disks[node_id].counts_for(index, term)]
    if liars:
        raise Violation("receipt", f"entry {index} of term {term} is said to be durable on nodes {liars}; it is not")
    if voters and len(durable_on) <= voters // 2:
        raise Violation("receipt", f"entry {index} of term {term} was acknowledged with a receipt of {durable_on} only")


def check_entry_holds(command: Command, index: int, payload: bytes) -> None:
    """Check that a receipt belongs to its command: the entry at `index`, which the receipt names, holds the command."""
    if command not in decode_entry(payload).commands:
        raise Violation("receipt", f"the receipt of {command} names entry {index}, which does not hold it")


def check_entry_holds_content(command: Produce | Prepare, index: int, payload: bytes) -> None:
    """Check the receipt of a duplicate: the entry holds the same content, which may have been sent to another queue, or
    by another client.
    """
    missing = {_transaction(command)} if isinstance(command, Prepare) else set(_batches(command))
    for other in decode_entry(payload).commands:
        if isinstance(other, Prepare):
            missing.discard(_transaction(other))
        elif isinstance(other, Produce):
            missing.difference_update(_batches(other))
    if missing:
        raise Violation("receipt", f"the receipt of {command} names entry {index}, which does not hold {missing}")


def _transaction(command: Prepare) -> tuple[Any, ...]:
    return command.transaction_id, *((each.topic, each.count, each.crc32c, each.length) for each in command.batches)


def _batches(command: Produce) -> list[tuple[Any, ...]]:
    return [(each.topic, each.batch_id, each.count, each.crc32c, each.length) for each in command.batches]
