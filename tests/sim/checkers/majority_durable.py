"""An acknowledged, or committed, entry is on the fsynced log of a majority, read from the disks themselves."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from store.command import Command, Prepare, Produce, decode_entry

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


def check_stored_before(command: Produce | Prepare, index: int, payloads: Iterable[bytes]) -> None:
    """What is called a duplicate, and was not replicated again, is in the entries up to that of its receipt."""
    missing = {_transaction(command)} if isinstance(command, Prepare) else set(_batches(command))
    for payload in payloads:
        for other in decode_entry(payload).commands:
            if isinstance(other, Prepare):
                missing.discard(_transaction(other))
            if isinstance(other, Produce | Prepare):
                missing.difference_update(_batches(other))
        if not missing:
            return
    raise Violation("receipt", f"{command} is called a duplicate, but {missing} is in no entry up to {index}")


def _transaction(command: Prepare) -> tuple[Any, ...]:
    return command.transaction_id, *((each.topic, each.count, each.crc32c, each.length) for each in command.batches)


def _batches(command: Produce | Prepare) -> list[tuple[Any, ...]]:
    return [(each.topic, each.batch_id, each.count, each.crc32c, each.length) for each in command.batches]
