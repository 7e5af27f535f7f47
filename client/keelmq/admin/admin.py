"""Administration calls for programs: the operations of the `keelmq` command. Answers are structs."""

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote

from keelmq.admin import requests
from keelmq.admin.backups import BackupBegun
from keelmq.admin.calls import AdminCalls, group_path, message_path, query_of, topic_path
from keelmq.admin.changes import ClusterMembers, ClusterSettings, FeatureLevel, JoinToken, RebuildStarted
from keelmq.admin.cluster import ClusterStatus
from keelmq.admin.group_calls import GroupCalls
from keelmq.admin.group_calls import ResetTo as ResetTo
from keelmq.admin.messages import (
    DeadLetterPage,
    FoundMessage,
    MessagePage,
    ReplayResult,
    ScheduledPage,
    StoredMessage,
)
from keelmq.admin.topics import PurgedTopic, TopicInfo
from keelmq.admin.traces import CausedPage, MessageTrace
from keelmq.admin.transactions import DecidedTransaction, ResumedTransaction, TransactionDetail, TransactionPage
from keelmq.admin.view import views_of
from keelmq.errors import NotFound, OffsetOutOfRange
from keelmq.limits import (
    INT64_MAX,
    LIST_MAX,
    NODE_ID_MAX,
    QUEUES_MAX,
    check_audit,
    check_range,
    check_transaction_id,
)
from keelmq.producing.scheduled import cancel_scheduled
from keelmq.transport.retry import Deadline
from keelmq.wire import NEXT_INDEX_HEADER

if TYPE_CHECKING:
    from keelmq.log.log_events import EventsPage

PAGE_MAX: Final = LIST_MAX
"""Maximum number of entries in one page of a list."""

LOG_BYTES: Final = 1024 * 1024
LOG_MARGIN_MS: Final = 5_000

OCTETS: Final = "application/octet-stream, application/json"


class Admin(GroupCalls):
    """Sends administration calls to one cluster over `connection`, which the caller owns and closes.

    Names are checked before anything is sent. Every method raises the errors of Connection.call, and Corrupt
    (`invalid_response`) when an answer does not follow the contract. Fields that only a newer broker knows are ignored;
    `document` of an answer has them.
    """

    async def put_topic(
        self,
        topic: str,
        *,
        queues: int | None = None,
        retention_ms: int | None = None,
        type: str | None = None,
        retention_bytes: int | None = None,
    ) -> TopicInfo:
        """Create the topic, or change the given settings of an existing topic; durable on return."""
        settings = requests.PutTopic(
            queues=queues, retention_ms=retention_ms, type=type, retention_bytes=retention_bytes
        )
        return await self._calls.view(TopicInfo, "PUT", topic_path(topic), settings)

    async def topics(self, *, system: bool = False) -> list[TopicInfo]:
        """Return all topics by name, fetched page by page; with `system` also the system topics."""
        return await self._calls.pages(TopicInfo, "/v1/topics", "topics", {"system": "true" if system else None})

    async def topic(self, topic: str) -> TopicInfo:
        return await self._calls.view(TopicInfo, "GET", topic_path(topic))

    async def delete_topic(self, topic: str) -> None:
        """Delete the topic with its messages; durable on return.

        Raises UnknownOutcome when the answer is lost: repeated, it would take a topic that was made anew meanwhile."""
        await self._connection.call("DELETE", topic_path(topic), leader_first=True, once=True)

    async def purge_topic(self, topic: str, *, queue: int | None = None) -> PurgedTopic:
        """Remove all messages that the topic, or one queue of it, has now; durable on return.

        Raises UnknownOutcome when the answer is lost: repeated, it would take what was sent meanwhile."""
        path, body = f"{topic_path(topic)}/purge", requests.PurgeTopic(queue)
        return await self._calls.view(PurgedTopic, "POST", path, body, leader_first=True, once=True)

    async def message(self, message_id: str, *, topic: str | None = None) -> list[FoundMessage]:
        """Return the messages with this id, at most 16, visible or not (`state` says which). Raises MessageNotFound
        when `topic`, or without `topic` the whole cluster, has no such message."""
        found = await self._calls.document("GET", message_path(message_id, topic))
        return views_of(FoundMessage, found, "messages")

    async def trace(self, message_id: str, *, topic: str | None = None) -> list[MessageTrace]:
        """Return the history of the messages with this id: per message `topic`, `queue`, `state` and the ordered
        `events`. Raises MessageNotFound when no message has the id."""
        found = await self._calls.document("GET", message_path(message_id, topic, "/trace"))
        return views_of(MessageTrace, found, "traces")

    async def caused(
        self, message_id: str, topic: str, *, limit: int = 100, after: str | None = None
    ) -> AsyncIterator[CausedPage]:
        """Search the log for the messages that a message of `topic` caused, and yield page after page, each with the
        messages found in a part of the log and how far it is. The log is read forward from the message on, to the end
        that each answering node knows; leave the loop to stop, and go on with `after`, the `next` of a page.

        Raises MessageNotFound when `topic` has no such message."""
        path = message_path(message_id, None, "/caused")
        while True:
            query = query_of({"topic": topic, "limit": limit, "after": after})
            page = await self._calls.view(CausedPage, "GET", f"{path}?{query}")
            yield page
            if page.next is None:
                return
            after = page.next

    async def messages(
        self,
        topic: str,
        *,
        key: str | None = None,
        from_ms: int = 0,
        to_ms: int | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> MessagePage:
        """Return one page of the messages stored from `from_ms` (inclusive) to `to_ms` (exclusive), in time order.

        The page covers all queues; with `key`, only messages that carry it. `next` is the cursor to pass as `after`."""
        query = {"key": key, "from_ms": from_ms, "to_ms": to_ms, "limit": limit, "after": after}
        return await self._calls.view(MessagePage, "GET", f"{topic_path(topic)}/messages?" + query_of(query))

    async def message_at(self, topic: str, queue: int, offset: int) -> StoredMessage:
        """Return the message at this offset. Raises OffsetOutOfRange when the queue has no message there."""
        check_range("queue", queue, 0, QUEUES_MAX - 1)
        check_range("offset", offset, 0, INT64_MAX)
        query = query_of({"offset": offset, "max_messages": 1})
        page = await self._calls.document("GET", f"{topic_path(topic)}/queues/{queue}/messages?{query}")
        found = views_of(StoredMessage, page, "messages")
        if not found or found[0].offset != offset:
            raise OffsetOutOfRange("offset_out_of_range", f"queue {queue} of {topic} has no message at {offset}")
        return found[0]

    async def scheduled(self, topic: str, *, limit: int = 100, after: str | None = None) -> ScheduledPage:
        """Return one page of the messages that wait for their time; `next` is the cursor of the following page."""
        return await self._calls.view(
            ScheduledPage, "GET", f"{topic_path(topic)}/scheduled?" + query_of({"limit": limit, "after": after})
        )

    async def cancel_scheduled(self, topic: str, message_id: str) -> None:
        """Cancel a message before its delivery time. Raises NotScheduled when it does not wait (any more)."""
        await cancel_scheduled(self._connection, topic, message_id, None)

    async def transactions(
        self, *, state: str | None = None, older_than_ms: int | None = None, limit: int = 100, after: str | None = None
    ) -> TransactionPage:
        """Return one page of transactions; `next` is the cursor of the following page."""
        query = {"state": state, "older_than_ms": older_than_ms, "limit": limit, "after": after}
        return await self._calls.view(TransactionPage, "GET", "/v1/transactions?" + query_of(query))

    async def transaction(self, transaction_id: str) -> TransactionDetail:
        """Return the transaction with its timeline. Raises TransactionNotFound when the id is not known."""
        check_transaction_id(transaction_id)
        return await self._calls.view(TransactionDetail, "GET", f"/v1/transactions/{transaction_id}")

    async def decide(
        self,
        transaction_id: str,
        decision: Literal["commit", "rollback"],
        *,
        force: bool = False,
        operator: str | None = None,
        reason: str | None = None,
    ) -> DecidedTransaction:
        """Decide a transaction as an operator; the timeline records the decision.

        `force` also decides a discarded transaction and requires `operator` and `reason`. Raises TransactionConflict
        when another decision is already recorded.
        """
        check_transaction_id(transaction_id)
        if force:
            check_audit(operator, reason)
        request = requests.OperatorDecision(source="operator", force=bool(force), operator=operator, reason=reason)
        return await self._calls.view(
            DecidedTransaction, "POST", f"/v1/transactions/{transaction_id}/{decision}", request
        )

    async def resume(self, transaction_id: str, *, operator: str, reason: str) -> ResumedTransaction:
        """Restart the checks of a discarded transaction, from the first check on.

        The timeline records `operator` and `reason`. Raises TransactionConflict when the transaction is not discarded.
        Repeating the call is harmless until the transaction is decided.
        """
        check_transaction_id(transaction_id)
        check_audit(operator, reason)
        request = requests.OperatorNote(operator, reason)
        return await self._calls.view(ResumedTransaction, "POST", f"/v1/transactions/{transaction_id}/resume", request)

    async def settings(self) -> ClusterSettings:
        """Return the settings of the whole cluster: `reject_transactions`, `log_retention_bytes`."""
        return await self._calls.view(ClusterSettings, "GET", "/v1/cluster/settings")

    async def put_settings(
        self, *, reject_transactions: bool | None = None, log_retention_bytes: int | None = None
    ) -> ClusterSettings:
        """Change the given settings of the whole cluster; durable on return.

        With `reject_transactions` new half transactions are refused (`transactions_rejected`), or accepted again;
        decisions and checks of prepared ones continue. `log_retention_bytes` is -1 for no limit.
        """
        settings = requests.PutSettings(
            reject_transactions=reject_transactions, log_retention_bytes=log_retention_bytes
        )
        return await self._calls.view(ClusterSettings, "PUT", "/v1/cluster/settings", settings)

    async def cluster(self, *, leader: bool = False) -> ClusterStatus:
        """Return the cluster as the answering node sees it; with `leader`, the leader answers.

        Only the leader knows the progress of the other nodes."""
        return await self._calls.view(ClusterStatus, "GET", "/v1/cluster", anywhere=not leader, leader_only=leader)

    async def dead_letters(self, group: str, *, offset: int = 0, limit: int = 100) -> DeadLetterPage:
        """Return dead letters from `offset` on, each with its history: `messages`, `next_offset` and `max_offset`."""
        return await self._calls.view(
            DeadLetterPage, "GET", f"{group_path(group)}/dead-letters?" + query_of({"offset": offset, "limit": limit})
        )

    async def replay_dead_letters(self, group: str, offsets: Sequence[int]) -> ReplayResult:
        """Deliver dead letters to the group once more, at most 256 per call. Each dead letter is replayed once, even
        when the call is repeated."""
        return await self._calls.view(
            ReplayResult, "POST", f"{group_path(group)}/dead-letters/replay", requests.ReplayDeadLetters(list(offsets))
        )

    async def log(self, from_index: int, *, wait_ms: int = 0, max_bytes: int = LOG_BYTES) -> tuple[bytes, int]:
        """Return committed records from `from_index` on, and the next index. keelmq.log.log_records decodes them."""
        response = await self._connection.call(
            "GET",
            "/v1/log?" + query_of({"from_index": from_index, "max_bytes": max_bytes, "wait_ms": wait_ms}),
            accept=OCTETS,
            deadline=Deadline(wait_ms + LOG_MARGIN_MS),
            follower_ok=True,
            waits_ms=wait_ms,
        )
        return response.body, int(response.headers.get(NEXT_INDEX_HEADER, from_index))

    async def log_events(
        self,
        from_index: int,
        *,
        from_event: int = 0,
        to_index: int | None = None,
        wait_ms: int = 0,
        max_bytes: int = LOG_BYTES,
        blocks: bool = True,
        anywhere: bool = False,
        topics: Sequence[str] = (),
        types: Sequence[str] = (),
        span_bytes: int | None = None,
        reader: str | None = None,
    ) -> "EventsPage":
        """Return a page of the message events of the log entries `from_index` <= index < `to_index`, or only events of
        some `topics` (also the beginning of names and a `*`) and `types`. `reader` names a query that has read what is
        before, `span_bytes` asks for the page's `span_index`. Nodes of 0.2.0 refuse these four.

        The page ends where the answering node has applied the log; continue with its `next_index` and `next_event`.
        With `anywhere`, any node may answer, including one that lags behind. Raises LogRangeRemoved when the node no
        longer has these entries.
        """
        from keelmq.log.log_events import page_of  # brings what decodes blocks

        query = {
            "from_index": from_index,
            "from_event": from_event,
            "to_index": to_index,
            "max_bytes": max_bytes,
            "wait_ms": wait_ms,
            "blocks": "true" if blocks else "false",
            "topics": ",".join(topics) or None,
            "types": ",".join(types) or None,
            "span_bytes": span_bytes,
            "reader": reader,
        }
        response = await self._connection.call(
            "GET",
            "/v1/log/events?" + query_of(query),
            accept=OCTETS,
            deadline=Deadline(wait_ms + LOG_MARGIN_MS),
            anywhere=anywhere,
            follower_ok=not anywhere,
            waits_ms=wait_ms,
        )
        return page_of(response.body, response.headers, from_index, from_event)

    async def add_node(self, node_id: int, peer_address: str, http_address: str) -> ClusterMembers:
        """Add a node as a learner and return the resulting `members`. Durable on return, and harmless to repeat."""
        body = requests.AddNode(node_id, peer_address, http_address)
        return await self._calls.view(ClusterMembers, "POST", "/v1/cluster/members", body)

    async def join_token(self, node_id: int, *, expires_in_ms: int | None = None) -> JoinToken:
        """Make a token with which that new node joins, once. Without `expires_in_ms` it is valid for an hour.

        An earlier token for the node ends.
        """
        body = requests.MakeJoinToken(node_id, expires_in_ms)
        return await self._calls.view(JoinToken, "POST", "/v1/cluster/join-tokens", body, tries=1)

    async def promote_node(self, node_id: int) -> ClusterMembers:
        """Promote a learner to voter. Raises Conflict (`not_caught_up`) while the learner is not up to date."""
        check_range("node_id", node_id, 0, NODE_ID_MAX)
        return await self._calls.view(ClusterMembers, "POST", f"/v1/cluster/members/{node_id}/promote")

    async def transfer_leadership(self, node_id: int) -> ClusterMembers:
        """Have that voter lead. Returns once it does, and is harmless to repeat.

        Raises Conflict (`not_caught_up`) for a learner, and for a node that is not up to date.
        """
        check_range("node_id", node_id, 0, NODE_ID_MAX)
        return await self._calls.view(ClusterMembers, "POST", f"/v1/cluster/members/{node_id}/lead")

    async def set_node_address(
        self,
        node_id: int,
        *,
        peer_address: str | None = None,
        http_address: str | None = None,
        force: bool = False,
    ) -> ClusterMembers:
        """Change the addresses of a node; an address that is None stays. Durable on return, and harmless to repeat.

        Raises Conflict (`address_unreachable`) unless the node already answers at `peer_address`, or `force` is set.
        """
        check_range("node_id", node_id, 0, NODE_ID_MAX)
        body = requests.SetAddress(peer_address=peer_address, http_address=http_address)
        target = f"/v1/cluster/members/{node_id}/address" + ("?force=true" if force else "")
        return await self._calls.view(ClusterMembers, "PUT", target, body)

    async def remove_node(self, node_id: int, *, force: bool = False) -> ClusterMembers:
        """Remove a node, even the leader. `force` allows it when the remaining nodes do not answer as a majority."""
        check_range("node_id", node_id, 0, NODE_ID_MAX)
        return await self._calls.view(
            ClusterMembers, "DELETE", f"/v1/cluster/members/{node_id}" + ("?force=true" if force else "")
        )

    async def rebuild_node(self, node_id: int, *, force: bool = False) -> RebuildStarted:
        """Discard the node's copy of the data and have the other nodes fill it again. Durable on return.

        The request goes to that node. Raises Conflict (`quorum_at_risk`) when too few other nodes hold the committed
        entries; with `force`, one other node is enough. Raises NotFound when the cluster has no such node.
        """
        check_range("node_id", node_id, 0, NODE_ID_MAX)
        view = await self.cluster()
        url = next((node.url for node in view.nodes if node.node_id == node_id and node.url), None)
        if url is None:
            raise NotFound("node_not_found", f"the cluster has no node {node_id}")
        target = f"/v1/cluster/rebuild?node_id={node_id}" + ("&force=true" if force else "")
        connection = self._connection.beside(url)
        try:
            return await AdminCalls(connection).view(RebuildStarted, "POST", target, anywhere=True)
        finally:
            connection.close()

    async def raise_feature_level(self, level: int | None = None) -> FeatureLevel:
        """Raise the feature level to `level`, by default the highest that every node knows; it cannot be lowered.

        Returns the new `feature_level` and the version of each of the `nodes`. Durable on return, and harmless to
        repeat. Raises Conflict (`feature_level_not_known`) while a node does not know the level.
        """
        return await self._calls.view(
            FeatureLevel, "POST", "/v1/cluster/feature-level", requests.RaiseFeatureLevel(level)
        )

    async def begin_backup(self) -> BackupBegun:
        """Begin a backup at the node that the connection asks; all frames have to be read there.

        Raises Overloaded while as many backups as a node allows are under way.
        """
        return await self._calls.view(BackupBegun, "POST", "/v1/backups", requests.NoFields(), anywhere=True)

    async def backup_frame(self, backup_id: str, frame: int) -> bytes:
        """Return one frame of the backup's file: the next one, or the last one again. `frame` counts from 0.

        Raises NotFound (`backup_not_found`) when the node gave the backup up, and LogRangeRemoved; begin anew then.
        """
        target = f"/v1/backups/{quote(backup_id, safe='')}?{query_of({'frame': frame})}"
        return (await self._connection.call("GET", target, accept=OCTETS, anywhere=True)).body

    async def end_backup(self, backup_id: str, *, stored: bool) -> None:
        """End a backup. With `stored`, the node counts it as one that can be restored."""
        target = f"/v1/backups/{quote(backup_id, safe='')}" + ("?stored=true" if stored else "")
        await self._connection.call("DELETE", target, anywhere=True)
