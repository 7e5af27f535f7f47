"""Tests the `keelmq` command against real brokers: the output for people and for programs, and the exit codes."""

import asyncio
import itertools
import json
import os
import signal
import subprocess

import pytest

from keelmq import Connection, Decision, Message, Transaction, TransactionProducer
from tests.e2e.cluster_process import ClusterProcess
from tests.e2e.fixtures import KEELMQ, Shell, shell_topic
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process


topic = shell_topic()


def prepare(shell: Shell, topic: str, transaction_id: str) -> None:
    """Make a transaction that stays prepared."""

    async def leave(transaction: Transaction) -> Decision:
        return Decision.UNKNOWN

    async def main() -> None:
        connection = Connection(shell.servers)
        async with TransactionProducer(
            [], "cli", check=leave, client_id="test-client", connection=connection
        ) as producer:
            message = Message(topic=topic, body=b"half")
            await producer.execute(message, leave, transaction_id=transaction_id, check_after_ms=3_600_000)
        connection.close()

    asyncio.run(main())


def test_topics(shell: Shell, topic: str) -> None:
    assert shell.json("topic", "show", topic)["queues"] == 2
    assert shell.json("topic", "create", topic, "--queues", "3", "--retention-ms", "60000")["queues"] == 3
    assert topic in [each["topic"] for each in shell.json("topic", "list")["topics"]]
    table = shell("topic", "list").stdout
    assert topic in table
    assert "1 min" in table
    altered = shell.json("topic", "alter", topic, "--retention-ms", "2h", "--retention-bytes", "512M")
    assert (altered["retention_ms"], altered["retention_bytes"], altered["queues"]) == (7_200_000, 512 << 20, 3)
    assert "for 2 h, at most 512.0 MiB" in shell("topic", "list").stdout
    assert shell.json("topic", "alter", topic, "--retention-bytes", "-1")["retention_bytes"] == -1
    for bad in ("1GB", "x", "-2", "1.5G"):
        refused = shell("topic", "alter", topic, "--retention-bytes", bad, code=2).stderr
        assert "512M" in refused
    shell("topic", "alter", f"{topic}-other", "--retention-bytes", "1G", code=1)
    assert f"{topic}-other" not in [each["topic"] for each in shell.json("topic", "list")["topics"]]
    assert "RMQ_SYS_TRANS_HALF_TOPIC" in shell("topic", "list", "--system").stdout
    assert "max offset" in shell("topic", "show", topic).stdout
    for number in range(3):
        shell("send", topic, "text", "--queue", str(number))
    assert shell.json("topic", "show", topic)["bytes"] > 0
    stats = shell.json("topic", "stats", topic, "--seconds", "0.1")
    assert (stats["stored_per_s"], stats["removed_per_s"], len(stats["queue_offsets"])) == (0.0, 0.0, 3)
    assert f"{topic}: 3 messages" in shell("topic", "stats", topic, "--seconds", "0.1").stdout
    shell("topic", "purge", topic, stdin="n\n", code=1)
    purged = shell.json("topic", "purge", topic, "--queue", "1", "--yes")
    assert (purged["messages"], purged["queues"]) == (1, [{"queue": 1, "min_offset": 1, "messages": 1}])
    assert "2 messages" in shell("topic", "purge", topic, "--yes").stdout
    assert (shell.json("topic", "show", topic)["bytes"], shell.lines("consume", topic)) == (0, [])
    limited = shell.json("cluster", "settings", "--log-retention-bytes", "1T")
    assert limited["log_retention_bytes"] == 1 << 40
    assert "behind 1.0 TiB of log" in shell("cluster", "settings").stdout
    assert shell.json("cluster", "settings", "--log-retention-bytes", "-1")["log_retention_bytes"] == -1
    shell("topic", "delete", topic, stdin="n\n", code=1)
    shell("topic", "delete", topic, "--yes")
    assert "keelmq topic list" in shell("topic", "show", topic, code=1).stderr


def test_send_and_consume(shell: Shell, topic: str) -> None:
    options = ["--tag", "created", "--key", "a", "--key", "b", "--property", "x=y=z", "--message-id", "m-1"]
    sent = shell.json("send", topic, "héllo", *options)
    assert sent["message_id"] == "m-1"
    assert len(sent["receipt"]["durable_on"]) >= 2
    assert shell.json("send", topic, "héllo", "--message-id", "m-1")["duplicate"] is True
    shell("send", topic, "-", stdin=b"\xff\x00binary")
    assert len(shell.lines("send", topic, "--lines", "--queue", "1", stdin="one\n\ntwo\nthree")) == 3
    messages = {message["body"]: message for message in shell.lines("consume", topic)}
    assert set(messages) == {"héllo", "/wBiaW5hcnk=", "one", "two", "three"}
    assert messages["/wBiaW5hcnk="]["encoding"] == "base64"
    first = messages["héllo"]
    assert (first["tag"], first["keys"], first["properties"]) == ("created", ["a", "b"], {"x": "y=z"})
    assert len(shell.lines("consume", topic, "--max", "2")) == 2
    assert shell.lines("consume", topic, "--from", "latest") == []
    assert shell.lines("consume", topic, "--from", "2100-01-01T00:00:00+01:00") == []
    assert len(shell.lines("consume", topic, "--from", "1h")) == 5
    assert "x=y=z" in shell("consume", topic).stdout


def test_consume_some_of_the_messages(shell: Shell, topic: str) -> None:
    for tag, price in (("A", "1"), ("B", "5"), ("C", "9"), ("A", "7")):
        shell("send", topic, price, "--tag", tag, "--property", f"price={price}")
    assert sorted(each["body"] for each in shell.lines("consume", topic, "--filter", "price > 4")) == ["5", "7", "9"]
    assert sorted(each["body"] for each in shell.lines("consume", topic, "--tags", "A || C")) == ["1", "7", "9"]
    some = shell.lines("consume", topic, "--group", topic, "--filter", "TAGS = 'A' AND price BETWEEN 5 AND 8")
    assert [each["body"] for each in some] == ["7"]
    assert "TAGS = 'A' AND price BETWEEN 5 AND 8" in shell("group", "show", topic).stdout
    assert shell.lines("consume", topic, "--group", topic) == [], "what was filtered out is committed"
    wrong = shell("consume", topic, "--filter", "price > 'x'", code=1).stderr
    assert "column 9: expected a number" in wrong
    assert "\nprice > 'x'\n        ^" in wrong
    assert json.loads(shell("consume", topic, "--filter", "(", "--json", code=1).stderr)["error"]["position"] == 2
    shell("consume", topic, "--filter", "a = 1", "--tags", "A", code=1)


def test_consume_in_a_group_commits_what_was_printed(shell: Shell, topic: str) -> None:
    shell("send", topic, "--lines", "--queue", "0", stdin="\n".join(map(str, range(10))))
    some = shell.lines("consume", topic, "--group", topic, "--max", "4")
    rest = shell.lines("consume", topic, "--group", topic)
    assert [int(message["body"]) for message in some + rest] == list(range(10))
    assert shell.lines("consume", topic, "--group", topic) == []
    found = shell.json("group", "show", topic)
    assert sum(each["lag"] for each in found["offsets"]) == 0
    assert topic in shell("group", "list").stdout
    shell("group", "reset", topic, "--topic", topic, "--queue", "0", "--offset", "7")
    assert [message["body"] for message in shell.lines("consume", topic, "--group", topic)] == ["7", "8", "9"]
    assert "committed" in shell("group", "show", topic).stdout


def test_transactions(shell: Shell, topic: str) -> None:
    done, undone = f"{topic}-1", f"{topic}-2"
    prepare(shell, topic, done)
    prepare(shell, topic, undone)
    listed = [
        each["transaction_id"] for each in shell.json("transaction", "list", "--state", "prepared")["transactions"]
    ]
    assert {done, undone} <= set(listed)
    assert done in shell("transaction", "list").stdout
    assert shell.json("transaction", "commit", done)["state"] == "committed"
    assert shell.json("transaction", "rollback", undone)["state"] == "rolled_back"
    conflict = shell("transaction", "rollback", done, code=1)
    assert "transaction_conflict" in conflict.stderr
    assert "it is committed" in conflict.stderr
    shown = shell("transaction", "show", done).stdout
    for expected in ("prepared", "committed", "source operator", "test-client", "visible in"):
        assert expected in shown
    assert [e["event"] for e in shell.json("transaction", "show", done)["timeline"]][-1] == "committed"
    page = shell.json("transaction", "list", "--limit", "1")
    assert page["next"]
    other = shell.json("transaction", "list", "--limit", "1", "--after", page["next"])
    assert other["transactions"] != page["transactions"]


def test_cluster_status(shell: Shell, cluster: ClusterProcess) -> None:
    one = cluster.nodes[1].url
    status = shell.json("cluster", "status", "--servers", one)
    assert status["healthy"] is True
    assert [node["node_id"] for node in status["nodes"]] == [1, 2, 3]
    assert [node["role"] for node in status["nodes"]].count("leader") == 1
    assert "leader" in shell("cluster", "status").stdout
    follower = cluster.follower()
    follower.kill()
    try:
        status = shell.json("cluster", "status", code=1)
        assert [node["url"] for node in status["nodes"] if "error" in node] == [follower.url]
        assert "unreachable" in shell("cluster", "status", code=1).stdout
    finally:
        follower.start()
        cluster.wait_ready()


def test_log_dump(shell: Shell, topic: str) -> None:
    shell("send", topic, "x")
    records = shell.lines("log", "dump")
    assert [record["index"] for record in records] == list(range(1, len(records) + 1))
    assert records[0]["kind"] == "no-op"
    for before, after in itertools.pairwise(records):
        assert after["position"] == before["position"] + before["size"]
    assert any("produce" in record["commands"] for record in records)
    assert any("put-topic" in record["commands"] for record in records)
    assert [record["index"] for record in shell.lines("log", "dump", "--from-index", "2", "--max", "3")] == [2, 3, 4]
    text = shell("log", "dump").stdout
    assert "position" in text.splitlines()[0]
    assert "put-topic" in text


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["topic", "show", "no-such-topic"], 1, "topic_not_found"),
        (["topic", "create", "bad name"], 2, "invalid_topic"),
        (["send", "t"], 2, "BODY"),
        (["send", "t", ""], 2, "empty_body"),
        (["send", "t", "x", "--property", "novalue"], 2, "NAME=VALUE"),
        (["send", "RMQ_SYS_TRANS_HALF_TOPIC", "x"], 1, "system_topic"),
        (["consume", "t", "--from", "yesterday"], 2, "earliest"),
        (["transaction", "show", "no such"], 2, "transaction_id"),
        (["transaction", "commit", "unknown-id"], 1, "transaction_not_found"),
        (["group", "show", "unknown-group"], 1, "group_not_found"),
        (["group", "reset", "g", "--topic", "t"], 2, "exactly one"),
        (["cluster", "status", "--servers", "localhost"], 2, "servers"),
        (["no-such-command"], 2, "No such command"),
    ],
)
def test_errors(shell: Shell, arguments: list[str], code: int, says: str) -> None:
    result = shell(*arguments, code=code)
    assert says in result.stderr
    assert result.stdout == ""


def test_errors_for_programs(shell: Shell) -> None:
    error = json.loads(shell("topic", "show", "no-such-topic", "--json", code=1).stderr)["error"]
    assert (error["code"], error["status"], error["retryable"]) == ("topic_not_found", 404, False)


def test_nobody_there(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keelmq.cli.output.CALL_TIMEOUT_MS", 100)
    result = shell("topic", "list", "--servers", "http://127.0.0.1:1", code=1)
    assert "no_leader" in result.stderr
    assert "KEELMQ_SERVERS" in result.stderr


def test_help_of_every_command_has_an_example(shell: Shell) -> None:
    groups = {
        "topic": ["create", "list", "show", "delete"],
        "transaction": ["list", "show", "commit", "rollback"],
        "group": ["list", "show", "reset"],
        "cluster": ["status"],
        "log": ["dump"],
        "": ["send", "consume"],
    }
    for group, commands in groups.items():
        for command in commands:
            text = shell(*[part for part in (group, command) if part], "--help").stdout
            assert "Example" in text, (group, command)
            assert "--json" in text
    assert "--install-completion" in shell("--help").stdout


def test_follow_and_interrupt(shell: Shell, topic: str) -> None:
    """Runs as a process: it waits for messages, prints them at once, and ends at Ctrl-C without a traceback."""
    environment = {**os.environ, **shell.environment}
    process = subprocess.Popen(
        [*KEELMQ, "consume", topic, "--follow", "--from", "earliest", "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        shell("send", topic, "live")
        assert json.loads(process.stdout.readline())["body"] == "live"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130
        assert "Traceback" not in errors
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("command", [("consume",), ("topic", "show")], ids=["at once", "at the end"])
def test_a_closed_pipe_is_no_error_to_show(shell: Shell, topic: str, command: tuple[str, ...]) -> None:
    """A line is written at once, or when the process ends."""
    shell("send", topic, "--lines", stdin="\n".join(["x" * 1000] * 500))
    environment = {**os.environ, **shell.environment}
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run(
            [*KEELMQ, *command, topic],
            env=environment,
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
        )
    assert "Traceback" not in done.stderr
    assert done.returncode == 1
