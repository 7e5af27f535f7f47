"""Compares promises with disks, and with what consumers see. Each checker returns the violations in words."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tests.chaos.ledger import Place
from tests.powerloss.ledger import Ledger, Promise
from tests.powerloss.log_on_disk import EntryKey, LogOnDisk
from tests.powerloss.queue_reader import QueueReader
from tests.powerloss.violation import Violation

MAJORITY = 2


def promises_name_a_majority(promises: Iterable[Promise]) -> list[Violation]:
    return [
        Violation("lost", f"entry {promise.index} was acknowledged as durable on {promise.durable_on} only")
        for promise in promises
        if len(set(promise.durable_on)) < MAJORITY
    ]


def promised_is_on_disk(node_id: int, log: LogOnDisk, ledger: Ledger, promises: int) -> list[Violation]:
    """Check one node's disk after its power loss: each of the first `promises` writes that was acknowledged as durable
    on this node is there, unless it was removed after its time.
    """
    found = []
    for promise in ledger.promises[:promises]:
        if node_id in promise.durable_on:
            missing = _missing(log, promise, ledger)
            if missing:
                found.append(Violation("lost", f"node {node_id}, durable_on {promise.durable_on}: {missing}"))
    return found


def majority_holds(logs: Mapping[int, LogOnDisk], ledger: Ledger, promises: int, decisions: int) -> list[Violation]:
    """Check the disks of all nodes: the first `promises` writes and `decisions` are on a majority of them."""
    found = []
    for promise in ledger.promises[:promises]:
        holders = [node_id for node_id, log in logs.items() if not _missing(log, promise, ledger)]
        if len(holders) < MAJORITY:
            found.append(Violation("lost", f"entry {promise.index} of term {promise.term} is on {holders} only"))
    recorded: Counter[tuple[str, str]] = Counter()
    for log in logs.values():
        keys = (EntryKey(header.index, header.term) for header in log.records.values())
        recorded.update({decision for key in keys for decision in log.contents[key].decisions})
    for transaction_id, decision in ledger.decisions[:decisions]:
        if recorded[transaction_id, decision] < MAJORITY:
            detail = f"{decision} of transaction {transaction_id} is on {recorded[transaction_id, decision]} disks"
            found.append(Violation("lost", detail))
    return found


def disk_is_sound(node_id: int, log: LogOnDisk, ledger: Ledger, terms_seen: Mapping[int, int]) -> list[Violation]:
    """Check for damage, entries that differ between two nodes, messages nobody sent, and forgotten terms."""
    found = [
        Violation("damage", f"node {node_id}: {finding.segment}, position {finding.position}: {finding.detail}")
        for finding in log.damage
    ]
    found += [
        Violation("replicas", f"node {node_id}: entry {key.index} of term {key.term} differs from another node's")
        for key in log.differing
    ]
    if log.term < terms_seen.get(node_id, 0):
        found.append(Violation("term", f"node {node_id} was in term {terms_seen[node_id]}, its disk says {log.term}"))
    for header in log.records.values():
        contents = log.contents[EntryKey(header.index, header.term)]
        unsent = [number for number in contents.numbers if not ledger.was_sent(number)]
        if unsent or contents.foreign_bodies:
            detail = f"node {node_id}: entry {header.index} holds {unsent} and {contents.foreign_bodies} foreign bodies"
            found.append(Violation("phantom", detail))
    return found


def visible_where_promised(reader: QueueReader, promised: Sequence[tuple[int, Place]]) -> list[Violation]:
    return [
        Violation("lost", f"message {number} was acknowledged at {place}, read at {reader.seen.get(number)}")
        for number, place in promised
        if not reader.accounts_for(number, place)
    ]


def all_settled(reader: QueueReader, ledger: Ledger) -> list[Violation]:
    """Check the queues at rest, after every decision: exactly the messages that must be visible are."""
    seen = reader.seen
    gone = {number for number, place in ledger.places if reader.accounts_for(number, place)}
    lost = ledger.must_be_visible() - seen.keys() - gone
    phantom = [number for number in seen if not ledger.may_be_visible(number)]
    found = [Violation("lost", f"message {number} is not in any queue") for number in sorted(lost)]
    return found + [Violation("phantom", f"message {number} is at {seen[number]}") for number in phantom]


def _missing(log: LogOnDisk, promise: Promise, ledger: Ledger) -> str:
    """Return in words which part of the promise is missing from the log; empty if nothing is."""
    if promise.index <= log.base.index:
        early = [number for number in promise.numbers if not ledger.is_over(number)]
        return f"entry {promise.index} was removed, and with it messages {early} before their time" if early else ""
    header = log.records.get(promise.index)
    if header is None or header.term != promise.term:
        there = "nothing" if header is None else f"term {header.term}"
        return f"entry {promise.index} of term {promise.term} is not on disk, {there} is there"
    absent = set(promise.numbers) - log.contents[EntryKey(promise.index, promise.term)].numbers
    return f"entry {promise.index} does not hold messages {sorted(absent)}" if absent else ""
