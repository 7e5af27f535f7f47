"""Tests the API's purposes by plain HTTP on three real nodes: produce, pull, transactions, groups, the log."""

import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from crc32c import crc32c

from cluster.limits import WAIT_MS_MAX
from tests.e2e.cluster_process import STEADY, ClusterProcess, NodeProcess, wait_for

pytestmark = pytest.mark.process

MSGPACK = "application/msgpack"
pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode
CHECKS = ("--check-immunity-ms", "200", "--check-interval-ms", "400")
OPTIONS = (*STEADY, *CHECKS, "--check-max", "100")  # the plain requests of most tests follow no leader
CHECKS_MAX = 2
NEVER_CHECKED_MS = 600_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """Return three nodes that check early, so that a test need not wait long."""
    with ClusterProcess(tmp_path_factory.mktemp("flows"), nodes=3, options=OPTIONS) as running:
        yield running


@pytest.fixture(scope="module")
def losing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """Return three nodes that elect another leader soon, and ask little about a transaction."""
    options = ("--election-timeout-ms", "3000", "--heartbeat-ms", "50", *CHECKS, "--check-max", str(CHECKS_MAX))
    with ClusterProcess(tmp_path_factory.mktemp("losing"), nodes=3, options=options) as running:
        yield running


def call(node: NodeProcess, method: str, path: str, payload: Any = None, status: int = 200, **more: Any) -> Any:
    reply = node.request(method, path, payload=payload, **more)
    assert reply.status == status, (method, path, reply)
    return reply.json() if reply.body else None


def topic(cluster: ClusterProcess, name: str, queues: int = 1, **settings: Any) -> NodeProcess:
    """Create a topic; returns the leader."""
    leader = cluster.wait_leader()
    call(leader, "PUT", f"/v1/topics/{name}", {"queues": queues, **settings}, status=201)
    return leader


def pull(node: NodeProcess, name: str, offset: int = 0, queue: int = 0, **query: Any) -> Any:
    path = f"/v1/topics/{name}/queues/{queue}/messages?offset={offset}"
    return call(node, "GET", path + "".join(f"&{key}={value}" for key, value in query.items()))


def bodies(pulled: Any) -> list[str]:
    return [message["body"] for message in pulled["messages"]]


def produce(node: NodeProcess, name: str, *texts: str, **more: Any) -> Any:
    payload = {"messages": [{"body": text, "queue": 0} for text in texts]}
    return call(node, "POST", f"/v1/topics/{name}/messages", payload, **more)


def block_batch(messages: list[Any], batch_id: str, queue: int | None = 0) -> dict[str, Any]:
    block = pack(messages)
    return {"queue": queue, "batch_id": batch_id, "crc32c": crc32c(block), "block": block}


def produce_blocks(node: NodeProcess, name: str, *batches: Any) -> Any:
    reply = node.request(
        "POST", f"/v1/topics/{name}/messages", pack({"batches": batches}), headers={"Content-Type": MSGPACK}
    )
    assert reply.status == 200, reply
    return unpack(reply.body)


def test_a_message_comes_back_from_every_node_with_all_it_had(cluster: ClusterProcess) -> None:
    leader = topic(cluster, "whole")
    sent = {
        "body": "grüße",
        "message_id": "order:1",
        "keys": ["k1", "k2"],
        "tag": "A",
        "properties": {"city": "Köln"},
        "sharding_key": "customer-7",
        "born_at_ms": 5,
        "queue": 0,
    }
    answer = call(leader, "POST", "/v1/topics/whole/messages", {"messages": [sent]})
    assert answer["results"] == [{"message_id": "order:1", "queue": 0, "offset": 0, "duplicate": False}]
    receipt = answer["receipt"]
    assert set(receipt["durable_on"]) <= {1, 2, 3}
    assert len(receipt["durable_on"]) >= 2
    cluster.wait_same_state()  # a replica without the topic redirects to the leader
    for node in cluster.nodes.values():
        (message,) = pull(node, "whole", wait_ms=5000)["messages"]
        assert message.pop("stored_at_ms") == receipt["timestamp_ms"]
        assert message == {**sent, "topic": "whole", "offset": 0, "encoding": "utf8"}


def test_bytes_that_are_no_text_survive(cluster: ClusterProcess) -> None:
    leader = topic(cluster, "bytes")
    call(leader, "POST", "/v1/topics/bytes/messages", {"messages": [{"body": "/wD+", "encoding": "base64"}]})
    (message,) = pull(leader, "bytes")["messages"]
    assert (message["body"], message["encoding"]) == ("/wD+", "base64")


def test_a_follower_redirects_writes_and_keeps_the_query(cluster: ClusterProcess) -> None:
    leader = topic(cluster, "redirected")
    follower = cluster.follower()
    for method, path in (
        ("POST", "/v1/topics/redirected/messages?x=1"),
        ("PUT", "/v1/topics/other%7C1"),
        ("POST", "/v1/transactions"),
        ("POST", "/v1/transactions/t/commit"),
        ("GET", "/v1/producer-groups/g/checks?max=3"),
        ("POST", "/v1/groups/g/members"),
        ("GET", "/v1/topics/redirected/queues/0/messages?offset=99"),
    ):
        reply = follower.request(method, path, payload=None if method == "GET" else {})
        assert (reply.status, reply.headers["location"]) == (307, leader.url + path), (method, path)


def test_messages_of_one_sharding_key_share_a_queue_and_keep_their_order(cluster: ClusterProcess) -> None:
    leader = topic(cluster, "sharded", queues=4)
    messages = [{"body": f"{key}{n}", "sharding_key": key} for n in range(5) for key in ("a", "b", "c")]
    results = call(leader, "POST", "/v1/topics/sharded/messages", {"messages": messages})["results"]
    for key in ("a", "b", "c"):
        placed = [result for message, result in zip(messages, results, strict=True) if message["sharding_key"] == key]
        assert {result["queue"] for result in placed} == {crc32c(key.encode()) % 4}
        offsets = [result["offset"] for result in placed]
        assert offsets == sorted(offsets)


def test_requests_without_a_queue_go_round(cluster: ClusterProcess) -> None:
    leader = topic(cluster, "round", queues=3)
    queues = []
    for _ in range(6):
        results = call(leader, "POST", "/v1/topics/round/messages", {"messages": [{"body": "x"}, {"body": "y"}]})
        assert len({result["queue"] for result in results["results"]}) == 1
        queues.append(results["results"][0]["queue"])
    assert sorted(queues) == [0, 0, 1, 1, 2, 2]


def test_blocks_come_back_as_they_were_sent(cluster: ClusterProcess) -> None:
    leader = topic(cluster, "blocks")
    first = block_batch([[b"\xff" * 10], [b"two", "A", ["k"], {"p": "v"}, "s", "m2", 7]], "b1")
    second = block_batch([[b"three"]], "b2")
    answer = produce_blocks(leader, "blocks", first, second)
    assert [(r["batch_id"], r["offset"], r["count"], r["duplicate"]) for r in answer["results"]] == [
        ("b1", 0, 2, False),
        ("b2", 2, 1, False),
    ]
    path = "/v1/topics/blocks/queues/0/messages?offset=1"
    pulled = unpack(leader.request("GET", path, headers={"Accept": MSGPACK}).body)
    assert [batch["block"] for batch in pulled["batches"]] == [first["block"], second["block"]]
    assert [(batch["base_offset"], batch["count"], batch["crc32c"]) for batch in pulled["batches"]] == [
        (0, 2, first["crc32c"]),
        (2, 1, second["crc32c"]),
    ]
    assert (pulled["next_offset"], pulled["max_offset"]) == (3, 3)
    assert [m["message_id"] for m in pull(leader, "blocks")["messages"]] == ["b1-0", "m2", "b2-0"]


def test_a_pull_keeps_its_limits(cluster: ClusterProcess) -> None:
    leader = topic(cluster, "limited")
    for _ in range(3):
        produce_blocks(leader, "limited", block_batch([[b"x" * 100]] * 4, f"b{_}"))
    pulled = pull(leader, "limited", max_messages=5)
    assert (len(pulled["messages"]), pulled["next_offset"], pulled["max_offset"]) == (5, 5, 12)
    pulled = pull(leader, "limited", max_bytes=250)
    assert (len(pulled["messages"]), pulled["next_offset"]) == (2, 2)
    assert len(pull(leader, "limited", max_bytes=1)["messages"]) == 1
    accept = {"Accept": MSGPACK}
    path = "/v1/topics/limited/queues/0/messages?offset=0&max_messages=5"
    assert unpack(leader.request("GET", path, headers=accept).body)["next_offset"] == 8


def test_tags_filter_and_the_offset_moves_on(cluster: ClusterProcess) -> None:
    leader = topic(cluster, "tagged")
    messages = [{"body": tag or "none", "tag": tag, "queue": 0} for tag in ("A", "B", None, "C", "A")]
    call(leader, "POST", "/v1/topics/tagged/messages", {"messages": messages})
    assert bodies(pull(leader, "tagged", tags="A")) == ["A", "A"]
    assert bodies(pull(leader, "tagged", tags="A%20%7C%7C%20C")) == ["A", "C", "A"]
    assert len(bodies(pull(leader, "tagged", tags="*"))) == 5
    nothing = pull(leader, "tagged", tags="Z", wait_ms=1)
    assert (nothing["messages"], nothing["next_offset"]) == ([], 5)


@pytest.mark.parametrize("on_leader", [True, False], ids=["leader", "follower"])
def test_a_long_poll_is_answered_by_the_next_message(cluster: ClusterProcess, on_leader: bool) -> None:
    name = f"long-poll-{on_leader}"
    leader = topic(cluster, name)
    asked = leader if on_leader else cluster.follower()
    wait_for(lambda: asked.request("GET", f"/v1/topics/{name}").status == 200, "the topic")
    answers: list[Any] = []
    begun_s = time.monotonic()
    waiting = threading.Thread(target=lambda: answers.append(pull(asked, name, wait_ms=WAIT_MS_MAX)))
    waiting.start()
    wait_for(lambda: b"keelmq_waiting_pulls 1.0" in asked.request("GET", "/metrics").body, "the poll to wait")
    produce(leader, name, "now")
    waiting.join()
    assert bodies(answers[0]) == ["now"]
    assert time.monotonic() - begun_s < WAIT_MS_MAX / 1000, "nothing woke it"


def test_a_long_poll_ends_empty_when_its_time_is_over(cluster: ClusterProcess) -> None:
    leader = topic(cluster, "quiet")
    nothing = {"messages": [], "next_offset": 0, "min_offset": 0, "max_offset": 0}
    assert pull(leader, "quiet", wait_ms=50) == nothing


def test_a_client_that_hangs_up_frees_its_waiter(cluster: ClusterProcess) -> None:
    leader = topic(cluster, "hang-up")
    with pytest.raises(TimeoutError):
        leader.request("GET", "/v1/topics/hang-up/queues/0/messages?offset=0&wait_ms=30000", timeout_s=0.3)
    wait_for(lambda: b"keelmq_waiting_pulls 0.0" in leader.request("GET", "/metrics").body, "the waiter to go")


def test_offsets_by_time(cluster: ClusterProcess) -> None:
    leader = topic(cluster, "timed")
    stored = [produce(leader, "timed", text)["receipt"]["timestamp_ms"] for text in ("a", "b")]
    path = "/v1/topics/timed/queues/0/offsets?at="
    assert call(leader, "GET", f"{path}earliest") == {"offset": 0}
    assert call(leader, "GET", f"{path}latest") == {"offset": 2}
    assert call(leader, "GET", f"{path}0") == {"offset": 0, "timestamp_ms": stored[0]}
    assert call(leader, "GET", f"{path}{stored[1] + 1}") == {"offset": 2}


def test_the_same_id_is_appended_once_also_by_the_next_leader(losing: ClusterProcess) -> None:
    leader = topic(losing, "once", queues=3)
    key = {"Idempotency-Key": "order-1"}
    payload = {"messages": [{"body": "a"}, {"body": "b", "queue": 1}, {"body": "c", "message_id": "c1", "queue": 2}]}
    batch = block_batch([[b"blk"]], "batch-1", queue=None)
    first = call(leader, "POST", "/v1/topics/once/messages", payload, headers=key)
    first_block = produce_blocks(leader, "once", batch)["results"][0]
    leader.terminate()
    successor = losing.wait_leader()
    assert successor is not leader
    again = call(successor, "POST", "/v1/topics/once/messages", payload, headers=key)
    block_again = produce_blocks(successor, "once", batch)["results"][0]
    assert again["results"] == [{**result, "duplicate": True} for result in first["results"]]
    assert block_again == {**first_block, "duplicate": True}
    other_batch = {"messages": [{"body": "c", "message_id": "c1", "queue": 0}, {"body": "d", "queue": 0}]}
    placed = call(successor, "POST", "/v1/topics/once/messages", other_batch)["results"]
    assert [(result["message_id"] == "c1", result["duplicate"]) for result in placed] == [(True, True), (False, False)]
    ends = [q["max_offset"] for q in call(successor, "GET", "/v1/topics/once")["queue_offsets"]]
    assert sum(ends) == 5
    leader.start()
    losing.wait_ready()
    losing.wait_same_state()


def half(transaction_id: str, name: str, *texts: str, **more: Any) -> dict[str, Any]:
    messages = [{"topic": name, "body": text, "queue": 0} for text in texts]
    defaults = {"producer_group": "shop", "client_id": "c1", "check_after_ms": NEVER_CHECKED_MS}
    return {"transaction_id": transaction_id, "messages": messages, **defaults, **more}


def test_a_committed_transaction_becomes_visible_in_all_its_topics(cluster: ClusterProcess) -> None:
    topic(cluster, "paid")
    leader = topic(cluster, "points")
    payload = half("tx-commit", "paid", "paid 1", "paid 2")
    payload["messages"].append({"topic": "points", "body": "points", "queue": 0})
    prepared = call(leader, "POST", "/v1/transactions", payload, status=201)
    assert (prepared["state"], prepared["duplicate"]) == ("prepared", False)
    assert call(leader, "POST", "/v1/transactions", payload, status=201)["duplicate"]
    produce(leader, "paid", "plain")
    assert bodies(pull(leader, "paid")) == ["plain"]
    decided = call(leader, "POST", "/v1/transactions/tx-commit/commit")
    assert decided["positions"] == [
        {"topic": "paid", "queue": 0, "offset": 1, "count": 2},
        {"topic": "points", "queue": 0, "offset": 0, "count": 1},
    ]
    assert call(leader, "POST", "/v1/transactions/tx-commit/commit") == decided
    for node in cluster.nodes.values():
        assert bodies(pull(node, "points", wait_ms=5000)) == ["points"]
        assert bodies(pull(node, "paid")) == ["plain", "paid 1", "paid 2"]
    reply = leader.request("POST", "/v1/transactions/tx-commit/rollback")
    assert (reply.status, reply.json()["code"], reply.json()["state"]) == (409, "transaction_conflict", "committed")
    shown = call(leader, "GET", "/v1/transactions/tx-commit")
    assert [event["event"] for event in shown["timeline"]] == ["prepared", "committed"]


def test_a_rolled_back_transaction_is_never_seen(cluster: ClusterProcess) -> None:
    leader = topic(cluster, "dropped")
    call(leader, "POST", "/v1/transactions", half("tx-rollback", "dropped", "never"), status=201)
    assert call(leader, "POST", "/v1/transactions/tx-rollback/rollback") == {
        "transaction_id": "tx-rollback",
        "state": "rolled_back",
    }
    produce(leader, "dropped", "after")
    assert bodies(pull(leader, "dropped")) == ["after"]
    assert leader.request("POST", "/v1/transactions/tx-rollback/commit").status == 409


def test_a_half_transaction_as_blocks(cluster: ClusterProcess) -> None:
    leader = topic(cluster, "half-blocks")
    batch = {"topic": "half-blocks", **block_batch([[b"one"], [b"two"]], "hb")}
    body = pack({"transaction_id": "tx-blocks", "producer_group": "shop", "batches": [batch]})
    reply = leader.request("POST", "/v1/transactions", body, headers={"Content-Type": MSGPACK})
    assert reply.status == 201
    assert unpack(reply.body)["transaction_id"] == "tx-blocks"
    call(leader, "POST", "/v1/transactions/tx-blocks/commit", {"producer_group": "shop"})
    pulled = unpack(
        leader.request("GET", "/v1/topics/half-blocks/queues/0/messages?offset=0", headers={"Accept": MSGPACK}).body
    )
    assert [(b["block"], b["transaction_id"]) for b in pulled["batches"]] == [(batch["block"], "tx-blocks")]


def test_transactions_are_listed_in_pages(cluster: ClusterProcess) -> None:
    leader = topic(cluster, "listed")
    names = [f"listed-{n}" for n in range(5)]
    for name in names:
        call(leader, "POST", "/v1/transactions", half(name, "listed", "x"), status=201)
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        query = f"&after={cursor}" if cursor else ""
        page = call(leader, "GET", f"/v1/transactions?state=prepared&limit=2{query}")
        assert len(page["transactions"]) <= 2
        found += [each["transaction_id"] for each in page["transactions"]]
        cursor = page["next"]
    assert [name for name in found if name in names] == names
    assert call(leader, "GET", "/v1/transactions?older_than_ms=3600000")["transactions"] == []
    for name in names:
        call(leader, "POST", f"/v1/transactions/{name}/rollback")


def test_an_undecided_transaction_is_asked_about_and_resolved(cluster: ClusterProcess) -> None:
    leader = topic(cluster, "asked")
    payload = half("tx-asked", "asked", "checked", producer_group="asking", check_after_ms=None)
    call(leader, "POST", "/v1/transactions", payload, status=201)
    path = "/v1/producer-groups/asking/checks?wait_ms=10000&client_id=c1"
    (check,) = call(leader, "GET", path)["checks"]
    assert (check["transaction_id"], check["check_times"]) == ("tx-asked", 1)
    assert bodies(check) == ["checked"]
    answer = {"source": "check", "client_id": "c1", "producer_group": "asking"}
    assert call(leader, "POST", "/v1/transactions/tx-asked/unknown", answer)["state"] == "prepared"
    (check,) = call(leader, "GET", path)["checks"]
    assert check["check_times"] == 2
    call(leader, "POST", "/v1/transactions/tx-asked/commit", answer)
    assert bodies(pull(leader, "asked")) == ["checked"]
    timeline = call(leader, "GET", "/v1/transactions/tx-asked")["timeline"]
    assert [event["event"] for event in timeline] == ["prepared", "check", "answer", "check", "answer", "committed"]


def test_checks_go_on_where_the_old_leader_stopped(losing: ClusterProcess) -> None:
    leader = topic(losing, "failover")
    payload = half("tx-failover", "failover", "x", producer_group="failing", check_after_ms=0)
    call(leader, "POST", "/v1/transactions", payload, status=201)
    path = "/v1/producer-groups/failing/checks?wait_ms=10000"
    assert call(leader, "GET", path)["checks"][0]["check_times"] == 1
    wait_for(lambda: call(leader, "GET", "/v1/transactions/tx-failover")["check_times"] == 1, "the check to count")
    leader.kill()
    successor = losing.wait_leader()
    assert call(successor, "GET", path)["checks"][0]["check_times"] == 2
    leader.start()
    losing.wait_ready()

    def discarded() -> bool:
        return bool(call(successor, "GET", "/v1/transactions/tx-failover")["state"] == "discarded")

    wait_for(discarded, "the transaction to be discarded after its last check")


def test_group_offsets_are_fenced_by_generation(cluster: ClusterProcess) -> None:
    leader = topic(cluster, "grouped", queues=2)
    for queue in (0, 1):
        messages = [{"body": str(n), "queue": queue} for n in range(4)]
        call(leader, "POST", "/v1/topics/grouped/messages", {"messages": messages})
    members = "/v1/groups/readers/members"
    joined = call(leader, "POST", members, {"topics": ["grouped"], "client_id": "c1"}, status=201)
    member, generation = joined["member_id"], joined["generation"]
    assert joined["assignment"] == [{"topic": "grouped", "queue": 0}, {"topic": "grouped", "queue": 1}]
    commit = {"member_id": member, "generation": generation, "offsets": [{"topic": "grouped", "queue": 0, "offset": 3}]}
    call(leader, "PUT", "/v1/groups/readers/offsets", commit)
    (row,) = call(leader, "GET", "/v1/groups/readers/offsets?topic=grouped")["offsets"]
    assert row == {"topic": "grouped", "queue": 0, "offset": 3, "max_offset": 4, "lag": 1, "held": 0}
    call(leader, "POST", members, {"topics": ["grouped"], "client_id": "c2"}, status=201)
    beat = call(leader, "POST", f"{members}/{member}/heartbeat", {"generation": generation})
    assert beat["generation"] > generation
    stale = leader.request("PUT", "/v1/groups/readers/offsets", payload=commit)
    assert (stale.status, stale.json()["code"]) == (409, "stale_generation")
    assert stale.json()["generation"] == beat["generation"]
    reset = call(leader, "POST", "/v1/groups/readers/reset", {"topic": "grouped", "to": "earliest"})
    assert reset["generation"] > beat["generation"]
    assert {(row["queue"], row["offset"]) for row in reset["offsets"]} == {(0, 0), (1, 0)}


def test_a_silent_member_expires_and_a_failover_does_not_expire_anybody(losing: ClusterProcess) -> None:
    leader = topic(losing, "sessions")
    members = "/v1/groups/sessions/members"
    lively = {"topics": ["sessions"], "member_id": "lively", "session_timeout_ms": 60_000}
    silent = {"topics": ["sessions"], "member_id": "silent", "session_timeout_ms": 1_000}
    generation = call(leader, "POST", members, lively, status=201)["generation"]
    leader.kill()
    successor = losing.wait_leader()
    leader.start()
    losing.wait_ready()
    assert call(successor, "POST", f"{members}/lively/heartbeat")["generation"] == generation
    call(successor, "POST", members, silent, status=201)

    def alone() -> bool:
        return [m["member_id"] for m in call(successor, "GET", "/v1/groups/sessions")["members"]] == ["lively"]

    wait_for(alone, "the silent member to expire")
    assert successor.request("POST", f"{members}/silent/heartbeat").status == 404


def test_the_log_can_be_tailed_from_any_node(cluster: ClusterProcess) -> None:
    leader = topic(cluster, "tailed")
    index = produce(leader, "tailed", "to be found")["receipt"]["index"]
    tails = []
    for node in cluster.nodes.values():
        reply = node.request("GET", f"/v1/log?from_index={index}&wait_ms=5000&max_bytes=1")
        assert reply.status == 200
        assert int(reply.headers["keelmq-next-index"]) == index + 1
        assert int(reply.headers["keelmq-commit-index"]) >= index
        magic, length, raft_index = struct.unpack_from("<4s4xI4xQ", reply.body)
        assert (magic, raft_index, len(reply.body)) == (b"KMQR", index, 52 + length)
        tails.append(reply.body[52:])
    assert len(set(tails)) == 1
    assert b"to be found" in tails[0]
    beyond = leader.request("GET", f"/v1/log?from_index={index + 1000}")
    assert (beyond.status, beyond.body, beyond.headers["keelmq-next-index"]) == (200, b"", str(index + 1000))


def test_every_node_tells_the_same_story_at_the_end(cluster: ClusterProcess) -> None:
    cluster.wait_same_state()
    leader = cluster.wait_leader()
    status = leader.known_status()
    assert [node["node_id"] for node in status["nodes"]] == [1, 2, 3]
    wait_for(lambda: all(node["connected"] for node in leader.known_status()["nodes"]), "every node to be heard")
    for node in cluster.nodes.values():
        assert node.request("GET", "/healthz").json() == {"status": "ok"}
        assert int(node.request("GET", "/v1/topics").headers["keelmq-applied-index"]) >= status["applied_index"]
