"""The final account: what a node of a healed cluster holds, against what was promised and what the log says."""

from .checkers import Violation
from .checkers.delivered_once import check_delivered_once, places_of
from .checkers.group_offsets import check_offsets_kept
from .checkers.history import History
from .checkers.queues import check_same_for_all, read_queue
from .checkers.transactions import check_delivered_whole, check_transaction
from .ledger import Ledger
from .replica import Replica
from .workload import GROUP, TOPICS


def check_account(replica: Replica, ledger: Ledger, history: History) -> None:
    """Raise Violation unless the node, which has applied everything, holds exactly what it should."""
    machine = replica.machine
    payload_at = replica.observer.archive.reader(replica.log)
    contents = {}
    for name in TOPICS:
        topic = machine.topic(name)
        if topic is not None:
            for queue in range(topic.queues):
                first = machine.min_offset(name, queue)
                rows = read_queue(replica.node_id, machine, payload_at, name, queue, first)
                check_same_for_all(replica.node_id, name, queue, rows, ledger)
                contents[name, queue] = [*history.retention.gone.get((name, queue), ()), *rows]
    places = places_of(contents)
    check_delivered_once(places, {key: (batch.topic, batch.placed) for key, batch in ledger.batches.items()})
    for key, batch in ledger.batches.items():
        if batch.deliver_at_ms is not None and len(places.get(key, ())) != 1:
            raise Violation("acknowledged_lost", f"batch {key}, accepted for later, is at {places.get(key)}")
    by_id = {batch_id: found for (_, batch_id), found in places.items()}
    transactions = history.transactions
    for transaction_id, transaction in ledger.transactions.items():
        if transaction_id in transactions.reborn:
            check_delivered_whole(transaction.batch_ids, by_id, committed=transactions.was_committed(transaction_id))
            continue
        check_transaction(
            machine,
            transaction_id,
            transaction.batch_ids,
            prepared=transaction.prepared,
            asked=transaction.asked,
            outcomes=transaction.final,
            places=by_id,
            forgotten=transactions.forgotten.get(transaction_id),
        )
    check_offsets_kept(machine, GROUP, ledger.offsets)
    history.check_replica(replica.node_id, machine)
    floor = machine.log_floor
    log = replica.log
    position = log.end_position
    if floor <= log.last_index:
        position = log.position_of(floor) if floor >= log.first_index else 0
    history.retention.check_replica(replica.node_id, machine, replica.index, position)
