"""Folds events into nodes and edges.

Messages that are simply published are processed as whole columns. Everything that depends on earlier events is folded
row by row, in the order of the log, with the state of fold_state.py. The same events in the same order give the same
rows, wherever the batches end: a job that was killed and started again writes the same rows as without the kill.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from keelmq_spark.folding.deliveries import Deliveries
from keelmq_spark.folding.fold_state import OPEN_MAX, Delivery, FoldState, NodeRow, OpenTransaction, key_of
from keelmq_spark.folding.log_order import in_log_order, made_again, of_groups, of_topics, offsets_by_queue
from keelmq_spark.folding.open_messages import comes_from, free_key, half_key, make_way
from keelmq_spark.folding.places import READ_AHEAD_MESSAGES, Places, node_ids
from keelmq_spark.folding.processed import forget_processed, is_news, newly_processed
from keelmq_spark.folding.rows import Edges, Row, constant, joined, message_row, nodes_table, plain, single_rows
from keelmq_spark.tables import schema
from keelmq_spark.tables.schema import message_node, node
from keelmq_spark.views import event_types as events

_DECIDED: Final = {events.COMMIT: schema.COMMITTED, events.ROLLBACK: schema.ROLLED_BACK}


class Folded(NamedTuple):
    """New rows of one batch: nodes that changed for the last time, and all edges."""

    nodes: Any
    edges: Any
    open_nodes: Any
    """All nodes that may still change; they replace the open nodes of the batch before."""


class Fold:
    """Owns `state`, and folds batches of events into rows; `places` finds the message at an offset."""

    def __init__(self, state: FoldState, places: Places) -> None:
        self.state = state
        self._places = places
        self._delivered = Deliveries(state.group_places)
        self._edges = Edges()
        self._settled: list[NodeRow] = []
        self._committed: list[str] = []

    def fold(self, batch: Any) -> Folded:
        """Fold a table of events (events.py). Events up to `state.raft_index` are left out."""
        batch = in_log_order(batch.filter(pc.greater(batch["raft_index"], self.state.raft_index)))
        self._edges, self._settled, self._committed = Edges(), [], []
        columns = []
        while batch.num_rows:
            first_entry = batch["raft_index"][0].as_py()
            again = made_again(batch.filter(of_topics(batch)), self.state.ends, first_entry)
            part = batch if again is None else batch.filter(pc.less(batch["raft_index"], again))
            batch = batch.slice(part.num_rows)
            columns.append(self._fold_part(part))
            self.state.raft_index = part["raft_index"][-1].as_py()
        self._let_go()
        state = self.state
        nodes = pa.concat_tables([*columns, nodes_table(self._settled)])
        transactions = (transaction.row for transaction in state.transactions.values())
        open_nodes = nodes_table([*state.hubs.values(), *transactions, *state.messages.values()])
        return Folded(nodes, self._edges.table(), open_nodes)

    def _fold_part(self, part: Any) -> Any:
        """Fold events of which none is of a topic before and after it was deleted and made again. Return the nodes of
        messages that were simply published.
        """
        simple = self._simple_rows(part)
        self._register(part)
        nodes = self._publish_columns(part.filter(simple))
        self._note_hubs(part)
        for row in single_rows(part.filter(pc.invert(simple))):
            self._apply(row)
        return nodes

    # Whole columns

    def _simple_rows(self, batch: Any) -> Any:
        """Return a mask of the rows that publish a message without earlier events."""
        simple = pc.and_(pc.equal(batch["type"], events.PUBLISH), pc.is_null(batch["transaction_id"]))
        simple = pc.and_(simple, pc.invert(of_groups(batch["topic"])))
        opened = pc.is_in(batch["type"], value_set=pa.array([events.SCHEDULE, events.HALF]))
        if self.state.messages or pc.any(opened).as_py():
            ids = node_ids(batch["topic"], batch["message_id"])
            known = pa.concat_arrays(
                [pa.array(list(self.state.messages), pa.string()), plain(pa.chunked_array([ids]).filter(opened))]
            )
            simple = pc.and_(simple, pc.invert(pc.is_in(ids, value_set=known)))
        return pc.fill_null(simple, False)

    def _register(self, batch: Any) -> None:
        published = batch.filter(of_topics(batch))
        if not published.num_rows:
            return
        ends = self.state.ends
        for topic, queue, first, last in offsets_by_queue(published):
            if first < ends.get(key_of(topic, queue), 0):
                self._begin_anew(topic, queue)
            ends[key_of(topic, queue)] = last + 1
        self._places.add(published, node_ids(published["topic"], published["message_id"]))

    def _begin_anew(self, topic: str, queue: int) -> None:
        """Forget what was about the offsets of a queue, because its topic was deleted and made again."""
        self._places.forget((topic, queue))
        suffix = "\n" + key_of(topic, queue)
        tables: tuple[dict[str, Any], ...] = (self.state.consumed, self.state.selected, self.state.given_back)
        for table in tables:
            for key in [key for key in table if key.endswith(suffix)]:
                del table[key]
        for delivery in self._deliveries():
            if (delivery.topic, delivery.queue) == (topic, queue):
                delivery.topic = ""

    def _deliveries(self) -> Iterator[Delivery]:
        for waiting in self.state.waiting.values():
            yield from waiting
        for places in self.state.group_places.values():
            yield from places.values()

    def _publish_columns(self, rows: Any) -> Any:
        ids = node_ids(rows["topic"], rows["message_id"])
        ts, event_ids, count = rows["ts"], rows["event_id"], rows.num_rows
        self._edges.add_columns(ids, joined("topic:", rows["topic"]), schema.IN_TOPIC, ts, event_ids)
        has_group = pc.is_valid(rows["group"])
        if pc.any(has_group).as_py():
            part = rows.filter(has_group)
            producers = joined("producer_group:", part["group"])
            kept = pa.chunked_array([ids]).filter(has_group)
            self._edges.add_columns(producers, kept, schema.PRODUCED, part["ts"], part["event_id"])
        has_cause = pc.is_valid(rows["causation_id"])
        if pc.any(has_cause).as_py():
            kept = pa.chunked_array([ids])
            causes = rows["causation_id"]
            plainly = pc.fill_null(pc.match_substring_regex(causes, schema.ONE_CAUSE), False)
            one, several = rows.filter(plainly), rows.filter(pc.and_not(has_cause, plainly))
            named = joined("message:", one["causation_id"])
            self._edges.add_columns(kept.filter(plainly), named, schema.CAUSED_BY, one["ts"], one["event_id"])
            srcs = kept.filter(pc.and_not(has_cause, plainly)).to_pylist()
            us = pc.cast(several["ts"], pa.int64()).to_pylist()
            columns = srcs, several["causation_id"].to_pylist(), us, several["event_id"].to_pylist()
            for src, named_causes, at, event_id in zip(*columns, strict=True):
                self._add_causes(src, named_causes, at, event_id)
        attributes = {name: rows[name] for name in schema.ATTRIBUTES.names}
        values = [plain(attributes[field.name]) for field in schema.ATTRIBUTES]
        return pa.table(
            [
                ids,
                constant(schema.MESSAGE, count),
                ts,
                ts,
                constant(schema.PUBLISHED, count),
                pa.StructArray.from_arrays(values, fields=list(schema.ATTRIBUTES)),
            ],
            schema=schema.NODES,
        )

    def _note_hubs(self, batch: Any) -> None:
        """Record the first and last time of every topic and group."""
        consumers = pc.is_in(batch["type"], value_set=pa.array(events.OF_CONSUMERS))
        us = pc.cast(batch["ts"], pa.int64())
        for kind, name, mask in (
            (schema.TOPIC, "topic", None),
            (schema.CONSUMER_GROUP, "group", consumers),
            (schema.PRODUCER_GROUP, "group", pc.invert(consumers)),
        ):
            table = pa.table({"name": batch[name], "us": us, "raft_index": batch["raft_index"]})
            table = (table if mask is None else table.filter(mask)).filter(pc.is_valid(pc.field("name")))
            sums = table.group_by("name").aggregate([("us", "min"), ("us", "max"), ("raft_index", "max")])
            for row in sums.to_pylist():
                self._hub(kind, row["name"], row["us_min"], row["us_max"], row["raft_index_max"])

    def _hub(self, kind: str, name: str, first_us: int, last_us: int, raft_index: int) -> None:
        node_id = node(kind, name)
        known = self.state.hubs.get(node_id)
        if known is None:
            known = self.state.hubs[node_id] = NodeRow(node_id, kind, first_us, last_us, schema.ACTIVE)
            if kind == schema.TOPIC:
                known.topic = name
            else:
                known.group = name
        known.first_us = min(known.first_us, first_us)
        known.change(schema.ACTIVE, last_us, raft_index)

    # Row by row; types of later versions are passed over

    def _apply(self, row: Row) -> None:
        match row.type:
            case events.HALF:
                self._half(row)
            case events.PUBLISH if row.topic.startswith(schema.GROUP_TOPICS):
                self._deliver(row)
            case events.PUBLISH:
                self._publish(row)
            case events.SCHEDULE:
                self._schedule(row)
            case events.CANCEL | events.EXPIRE:
                state = schema.CANCELLED if row.type == events.CANCEL else schema.EXPIRED
                self._settle(comes_from(self.state.messages, message_node(row.topic, row.message_id), None), state, row)
            case events.ACK:
                self._acknowledge(row)
            case events.RESET:  # what was given back before it comes again
                self.state.given_back.pop(key_of(row.group, row.topic, row.queue), None)
            case events.PURGE:
                self._purge(row)
            case events.RETRY:
                self._retry(row)
            case events.DLQ:
                self._dead_letter(row)
            case events.COMMIT | events.ROLLBACK | events.CHECK | events.DISCARD | events.RESUME:
                self._transaction(row)

    def _purge(self, row: Row) -> None:
        topic = node(schema.TOPIC, row.topic)
        for begin in range(row.offset, row.offset_end, READ_AHEAD_MESSAGES):  # a block that is kept has no more
            end = min(begin + READ_AHEAD_MESSAGES, row.offset_end)
            _, purged = self._places.between((row.topic, row.queue), begin, end)
            self._edges.add_all(purged, topic, schema.PURGED_FROM, row.us, row.event_id)

    def _new_message(self, row: Row, node_id: str, state: str) -> NodeRow:
        """Return a node for the row's message, which has no earlier events, and connect it."""
        if row.group:
            producer = node(schema.PRODUCER_GROUP, row.group)
            self._edges.add(producer, node_id, schema.PRODUCED, row.us, row.event_id)
        if row.causation_id:
            self._add_causes(node_id, row.causation_id, row.us, row.event_id)
        return message_row(row, node_id, state)

    def _half(self, row: Row) -> None:
        node_id, messages = message_node(row.topic, row.message_id), self.state.messages
        if half_key(messages, node_id, row.transaction_id) is None:
            key = free_key(messages, node_id, row.transaction_id)
            messages[key] = self._new_message(row, node_id, schema.HALF)
        transaction = self._open_transaction(row)
        if node_id not in transaction.messages:
            transaction.messages.append(node_id)

    def _open_transaction(self, row: Row) -> OpenTransaction:
        known = self.state.transactions.get(row.transaction_id)
        if known is None:
            node_row = NodeRow(
                node(schema.TRANSACTION, row.transaction_id), schema.TRANSACTION, row.us, row.us, schema.PREPARED,
                transaction_id=row.transaction_id, group=row.group, client=row.client, raft_index=row.raft_index,
            )  # fmt: skip
            known = self.state.transactions[row.transaction_id] = OpenTransaction(node_row, [])
        return known

    def _transaction(self, row: Row) -> None:
        """Apply COMMIT, ROLLBACK, CHECK, DISCARD or RESUME."""
        transaction = self._open_transaction(row)
        decided = _DECIDED.get(row.type)
        if row.type == events.CHECK:
            transaction.row.attempt = row.attempt
            transaction.row.change(transaction.row.state, row.us, row.raft_index)
            return
        if decided is None:
            state, of_messages = (
                (schema.DISCARDED, schema.DISCARDED) if row.type == events.DISCARD else (schema.PREPARED, schema.HALF)
            )
            transaction.row.change(state, row.us, row.raft_index)
            for key in self._halves(transaction):
                self.state.messages[key].change(of_messages, row.us, row.raft_index)
            return
        del self.state.transactions[row.transaction_id]
        transaction.row.change(decided, row.us, row.raft_index)
        self._settled.append(transaction.row)
        self._edges.add_all(transaction.messages, transaction.row.node_id, schema.DECIDED_BY, row.us, row.event_id)
        for key in self._halves(transaction):
            if decided == schema.ROLLED_BACK:
                self._settle(key, schema.ROLLED_BACK, row)
            else:
                self.state.messages[key].change(schema.COMMITTED, row.us, row.raft_index)
                self._committed.append(key)

    def _halves(self, transaction: OpenTransaction) -> list[str]:
        """Return the keys of the open half messages of a transaction."""
        transaction_id = transaction.row.transaction_id or ""
        keys = (half_key(self.state.messages, node_id, transaction_id) for node_id in transaction.messages)
        return [key for key in keys if key is not None]

    def _visible_message(self, row: Row, state: str) -> NodeRow:
        """Return the node of a message that is published or scheduled now, which is open no longer."""
        node_id = message_node(row.topic, row.message_id)
        key = comes_from(self.state.messages, node_id, row.transaction_id)
        if key is not None:
            return self.state.messages.pop(key)
        if row.transaction_id and state == schema.PUBLISHED:  # the half message is older than the tables
            transaction = node(schema.TRANSACTION, row.transaction_id)
            self._edges.add(node_id, transaction, schema.DECIDED_BY, row.us, row.event_id)
        return self._new_message(row, node_id, state)

    def _publish(self, row: Row) -> None:
        message = self._visible_message(row, schema.PUBLISHED)
        message.queue, message.offset = row.queue, row.offset
        self._edges.add(message.node_id, node(schema.TOPIC, row.topic), schema.IN_TOPIC, row.us, row.event_id)
        message.change(schema.PUBLISHED, row.us, row.raft_index)
        self._settled.append(message)

    def _schedule(self, row: Row) -> None:
        message = self._visible_message(row, schema.SCHEDULED)
        message.change(schema.SCHEDULED, row.us, row.raft_index)
        make_way(self.state.messages, message.node_id)
        self.state.messages[message.node_id] = message

    def _settle(self, key: str | None, state: str, row: Row) -> None:
        message = self.state.messages.pop(key, None) if key is not None else None
        if message is not None:
            message.change(state, row.us, row.raft_index)
            self._settled.append(message)

    def _add_causes(self, src: str, causation_id: str, us: int, event_id: str) -> None:
        causes = schema.cause_nodes(causation_id)
        for cause in dict.fromkeys(causes) if len(causes) > 1 else causes:
            self._edges.add(src, cause, schema.CAUSED_BY, us, event_id)

    # Deliveries

    def _retry(self, row: Row) -> None:
        """Apply RETRY. The row has the original place of the message."""
        retry_topic = f"%RETRY%{row.group}"
        origin = self._origin(row)
        entry, number = row.event_id.split(":")[-2:]
        copy = f"{message_node(retry_topic, row.message_id)}@{entry}:{number}"
        delivery = self.state.messages[copy] = message_row(row, copy, schema.SCHEDULED)
        delivery.topic, delivery.queue, delivery.attempt = retry_topic, 0, row.attempt
        self._edges.add(copy, origin, schema.RETRY_OF, row.us, row.event_id)
        self._give_back(row, self._delivery(row, origin, copy))

    def _dead_letter(self, row: Row) -> None:
        origin = self._origin(row)
        group = node(schema.CONSUMER_GROUP, row.group)
        self._edges.add(origin, group, schema.DEAD_LETTERED, row.us, row.event_id)
        delivery = self._delivery(row, origin, "")
        forget_processed(self.state, row.group, delivery.topic, delivery.queue, delivery.offset)
        self._give_back(row, delivery)

    def _origin(self, row: Row) -> str:
        first = self._first_delivery(row)
        return first.origin if first is not None else message_node(row.topic, row.message_id)

    def _delivery(self, row: Row, origin: str, copy: str) -> Delivery:
        first = self._first_delivery(row)
        if first is not None:
            return Delivery(origin, copy, first.topic, first.queue, first.offset)
        return Delivery(origin, copy, row.topic, row.queue, row.offset)

    def _first_delivery(self, row: Row) -> Delivery | None:
        """Return the delivery that is given back by a group that reads another group's retries or dead letters."""
        if not row.topic.startswith(schema.GROUP_TOPICS):
            return None
        return self._delivered.of(row.topic).get(row.offset)

    def _give_back(self, row: Row, delivery: Delivery) -> None:
        """Record the coming delivery, and that this one was not processed although the group's offset will pass it."""
        kind = events.DLQ if row.type == events.DLQ else events.RETRY
        waiting = key_of(kind, row.group, row.message_id, row.attempt)
        self.state.waiting.setdefault(waiting, []).append(delivery)
        place = (row.topic, row.queue, row.offset)
        if (row.attempt or 0) > 1:
            retry_topic = f"%RETRY%{row.group}"
            offset = self._delivered.last(retry_topic, delivery.origin)
            if offset is not None:
                place = (retry_topic, 0, offset)
        elif row.attempt == 0:
            return  # an operator replays a dead letter
        self.state.given_back.setdefault(key_of(row.group, *place[:2]), []).append(place[2])

    def _deliver(self, row: Row) -> None:
        """Connect a redelivered message with the group's retry topic or dead-letter topic."""
        dead = row.topic.startswith("%DLQ%")
        group = row.topic.removeprefix("%DLQ%" if dead else "%RETRY%")
        key = key_of(events.DLQ if dead else events.RETRY, group, row.message_id, row.attempt)
        waiting = self.state.waiting.get(key)
        if not waiting:
            delivery = Delivery(message_node(row.topic, row.message_id), "")
        else:
            delivery = waiting.pop(0)
            if not waiting:
                del self.state.waiting[key]
        self._delivered.add(row.topic, row.offset, delivery)
        src = delivery.copy or delivery.origin
        self._edges.add(src, node(schema.TOPIC, row.topic), schema.IN_TOPIC, row.us, row.event_id)
        if delivery.copy and (copy := self.state.messages.get(delivery.copy)) is not None:
            copy.offset = row.offset
            self._settle(delivery.copy, schema.PUBLISHED, row)

    def _acknowledge(self, row: Row) -> None:
        key = key_of(row.group, row.topic, row.queue)
        back = self.state.given_back.get(key, [])
        unprocessed = {offset for offset in back if offset < row.offset_end}
        if row.topic.startswith(schema.GROUP_TOPICS):
            self._acknowledge_deliveries(row, unprocessed)
        else:
            passed = (row.topic, row.queue), row.offset, row.offset_end
            for nodes in newly_processed(self.state, self._places, key, *passed, row.filter, unprocessed):
                self._consumed_by(row, nodes)
        if unprocessed:
            kept = [offset for offset in back if offset >= row.offset_end]
            if kept:
                self.state.given_back[key] = kept
            else:
                del self.state.given_back[key]

    def _acknowledge_deliveries(self, row: Row, unprocessed: set[int]) -> None:
        """Apply ACK in a retry or dead-letter topic: the messages that were delivered there are processed."""
        places = self._delivered.of(row.topic)
        passed = [offset for offset in places if row.offset <= offset < row.offset_end]
        for offset in passed:
            delivery = places[offset]
            place = (delivery.topic, delivery.queue, delivery.offset) if delivery.topic else (row.topic, 0, offset)
            if offset not in unprocessed and is_news(self.state, self._places, row.group, *place):
                self._consumed_by(row, [delivery.origin])
        if row.topic == f"%RETRY%{row.group}":
            for offset in passed:
                self._delivered.forget(row.topic, offset)

    def _consumed_by(self, row: Row, nodes: Sequence[str]) -> None:
        group = node(schema.CONSUMER_GROUP, row.group)
        self._edges.add_all(nodes, group, schema.CONSUMED_BY, row.us, row.event_id)

    def _let_go(self) -> None:
        state = self.state
        for key in self._committed:
            message = state.messages.get(key)
            if message is not None and message.state == schema.COMMITTED:
                # The commit neither published nor scheduled it: another message with this id was first.
                self._settled.append(state.messages.pop(key))
        while len(state.messages) > OPEN_MAX:
            self._settled.append(state.messages.pop(next(iter(state.messages))))
        while len(state.transactions) > OPEN_MAX:
            self._settled.append(state.transactions.pop(next(iter(state.transactions))).row)
