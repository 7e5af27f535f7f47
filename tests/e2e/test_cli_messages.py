"""Tests the `keelmq` commands that look for messages and manage groups, against real brokers."""

import asyncio
import getpass
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster_process import ClusterProcess
from tests.e2e.fixtures import Shell, shell_topic
from tests.patience import PATIENCE_S
from tests.requirements import BASH

pytestmark = pytest.mark.process


@pytest.fixture
def shell(single: ClusterProcess) -> Shell:
    return Shell(single)


topic = shell_topic()


def bodies(page: Any) -> list[str]:
    return [message["body"] for message in page["messages"]]


def test_a_message_is_got_by_id_key_time_and_offset(shell: Shell, topic: str) -> None:
    sent = [
        shell.json("send", topic, body, "--queue", "1", "--message-id", f"{topic}.{body}", "--key", key)
        for body, key in (("one", "red"), ("two", "blue"), ("three", "red"))
    ]
    first_ms, last_ms = sent[0]["receipt"]["timestamp_ms"], sent[2]["receipt"]["timestamp_ms"]
    assert bodies(shell.json("message", "get", f"{topic}.two")) == ["two"]
    assert bodies(shell.json("message", "get", "--topic", topic, "--key", "red")) == ["one", "three"]
    between = ("--at", str(first_ms), "--until", str(last_ms + 1))
    assert bodies(shell.json("message", "get", "--topic", topic, *between)) == ["one", "two", "three"]
    assert bodies(shell.json("message", "get", "--topic", topic, "--until", str(first_ms))) == []
    assert bodies(shell.json("message", "get", "--topic", topic, "--queue", "1", "--offset", "2")) == ["three"]
    page = shell.json("message", "get", "--topic", topic, "--key", "red", "--limit", "1")
    rest = shell.json("message", "get", "--topic", topic, "--key", "red", "--after", page["next"])
    assert bodies(page) + bodies(rest) == ["one", "three"]
    shown = shell("message", "get", f"{topic}.one").stdout
    assert f"message {topic}.one in {topic}/1 at offset 0" in shown
    assert "keys: red" in shown
    assert "body: one" in shown
    assert f"{topic}.three" in shell("message", "get", "--topic", topic, "--key", "red").stdout
    assert "message_not_found" in shell("message", "get", "nobody", code=1).stderr
    assert (
        "offset_out_of_range"
        in shell("message", "get", "--topic", topic, "--queue", "1", "--offset", "3", code=1).stderr
    )


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("id", "--key", "k", "--topic", "t"),
        ("--key", "k"),
        ("--topic", "t"),
        ("--topic", "t", "--offset", "1"),
        ("--topic", "t", "--queue", "1", "--key", "k"),
        ("--topic", "t", "--at", "soon"),
        ("a b",),
    ],
)
def test_what_cannot_be_got_is_a_usage_error(shell: Shell, arguments: tuple[str, ...]) -> None:
    shell("message", "get", *arguments, code=2)


def test_a_trace_is_drawn_as_a_timeline(shell: Shell, topic: str) -> None:
    group, message_id = f"group-{topic}", f"{topic}.one"
    shell("send", topic, "one", "--queue", "0", "--message-id", message_id)
    shell("group", "settings", group, "--delays", "0")
    member = shell.call("POST", f"/v1/groups/{group}/members", {"topics": [topic], "client_id": "till-1"})
    fence = {"member_id": member["member_id"], "generation": member["generation"]}
    bad = {"topic": topic, "queue": 0, "offset": 0, "reason": "no [stock]"}
    given = shell.call("POST", f"/v1/groups/{group}/retries", {**fence, "messages": [bad]})
    fence["generation"] = given["generation"]
    done = {"topic": topic, "queue": 0, "offset": 1}
    shell.call("PUT", f"/v1/groups/{group}/offsets", {**fence, "offsets": [done]})
    drawn = shell("message", "trace", message_id).stdout
    assert f"message {message_id} is visible in {topic}/0 at offset 0" in drawn
    lines = drawn.splitlines()[1:]
    for line, event in zip(lines, ("produced", "given_back", "given_again", "consumed"), strict=True):
        assert event in line
    assert "reason no [stock]" in lines[1]
    assert f"%RETRY%{group}/0 at offset 0" in lines[2]
    assert f"by group {group}" in lines[3]
    assert "client till-1" in lines[3]
    (trace,) = shell.json("message", "trace", message_id, "--topic", topic)["traces"]
    assert [event["event"] for event in trace["events"]] == ["produced", "given_back", "given_again", "consumed"]
    assert "message_not_found" in shell("message", "trace", "nobody", code=1).stderr


def test_what_a_message_caused_is_searched_for_in_the_log(shell: Shell, topic: str) -> None:
    causes = ("--property", f"causation_id={topic}.one", "--property", f"causation_topic={topic}")
    shell("send", topic, "one", "--queue", "0", "--message-id", f"{topic}.one")
    shell(
        "send", topic, "two", "--queue", "0", "--message-id", f"{topic}.two", *causes, "--property", "producer_group=g"
    )
    shell("send", topic, "three", "--message-id", f"{topic}.three", *causes[:2], "--delay", "1h")
    told = shell("message", "caused", f"{topic}.one")
    first, second = told.stdout.splitlines()
    assert f"{topic}.two  in {topic}/0 at offset 1, by group g  #" in first
    assert f"{topic}.three  in {topic}/" in second
    assert "scheduled, due " in second
    assert "names no topic" in second
    assert "of the log, 2 found" in told.stderr
    document = shell.json("message", "caused", f"{topic}.one", "--topic", topic)
    assert [each["message_id"] for each in document["messages"]] == [f"{topic}.two", f"{topic}.three"]
    assert (document["topics_left_out"], document["log_removed"]) == (False, False)
    assert shell.json("message", "caused", f"{topic}.two")["messages"] == []
    assert "message_not_found" in shell("message", "caused", "nobody", code=1).stderr
    assert "message_not_found" in shell("message", "caused", "nobody", "--topic", topic, code=1).stderr


def test_group_settings_are_shown_and_changed(shell: Shell, topic: str) -> None:
    group = f"group-{topic}"
    assert "group_not_found" in shell("group", "settings", group, code=1).stderr
    changed = shell.json("group", "settings", group, "--max-attempts", "5", "--delays", "10s,1m,2h")
    expected = {"group": group, "retry_max_attempts": 5, "retry_delays_ms": [10_000, 60_000, 7_200_000]}
    assert changed == expected
    assert shell.json("group", "settings", group) == expected
    assert "10 s, 1 min, 2 h" in shell("group", "settings", group).stdout
    shell("group", "settings", group, "--delays", "soon", code=2)


def test_a_group_is_paused_and_resumed_from_the_shell(shell: Shell, topic: str) -> None:
    group = f"paused-{topic}"
    assert "group_not_found" in shell("group", "pause", group, code=1).stderr
    shell.call("PUT", f"/v1/groups/{group}", {})
    assert f"group {group} was not paused" in shell("group", "resume", group).stdout
    told = shell("group", "pause", group, "--reason", "moved", "--operator", "ann").stdout
    assert f"group {group} is paused since " in told
    assert told.endswith("by ann: moved\n")
    assert told.strip() in shell("group", "show", group).stdout
    assert shell("group", "pause", group, "--reason", "moved").stdout == f"group {group} was paused already\n{told}"
    again = shell("group", "pause", group, "--reason", "other", code=1)
    assert again.stdout == f"group {group} was paused already\n{told}"
    assert "the reason that is given now is not kept" in again.stderr
    (line,) = (line for line in shell("group", "list").stdout.splitlines() if group in line)
    assert not line.rstrip().endswith("-")
    resumed = shell.json("group", "resume", group)
    assert (resumed["paused"], resumed["changed"]) == (None, True)
    assert "paused since" not in shell("group", "show", group).stdout


def test_who_is_logged_in_is_the_operator(shell: Shell, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    group = f"unnamed-{topic}"
    shell.call("PUT", f"/v1/groups/{group}", {})
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    assert shell.json("group", "pause", group)["paused"]["operator"] == getpass.getuser()


def test_a_lower_limit_asks_before_messages_go(shell: Shell, topic: str) -> None:
    shell("topic", "alter", topic, "--retention-ms", "1h")  # it is empty: nothing can go
    shell("send", topic, "hello")
    for verb in ("alter", "create"):
        refused = shell("topic", verb, topic, "--retention-ms", "90", stdin="n\n", code=1)
        assert "kept for 90 ms from now on? Up to 1 messages go. [y/N]" in refused.stderr
        refused = shell("topic", verb, topic, "--retention-bytes", "1M", stdin="", code=1)
        assert "at most 1.0 MiB from now on? Up to 1 messages go." in refused.stderr
    assert shell.json("topic", "show", topic)["retention_ms"] == 3_600_000
    assert shell.json("topic", "alter", topic, "--retention-ms", "2h")["retention_ms"] == 7_200_000
    assert shell.json("topic", "alter", topic, "--retention-bytes", "1G", "--yes")["retention_bytes"] == 1 << 30
    shell("topic", "alter", topic, "--retention-ms", "1h", stdin="y\n")
    assert shell.json("topic", "show", topic)["retention_ms"] == 3_600_000


def test_offsets_are_cloned_from_the_shell(shell: Shell, topic: str) -> None:
    source, target = f"from-{topic}", f"to-{topic}"
    for queue in ("0", "1"):
        shell("send", topic, "x", "--queue", queue)
    offsets = [{"topic": topic, "queue": queue, "offset": 1} for queue in (0, 1)]
    shell.call("PUT", f"/v1/groups/{source}/offsets", {"offsets": offsets})
    assert shell.json("group", "clone-offsets", source, target)["offsets"] == offsets
    assert f"{target} goes on from where {source} is" in shell("group", "clone-offsets", source, target).stdout
    found = shell.json("group", "show", target)["offsets"]
    assert [(each["queue"], each["offset"]) for each in found] == [(0, 1), (1, 1)]
    shell.call("POST", f"/v1/groups/{target}/members", {"topics": [topic]})
    assert "group_has_members" in shell("group", "clone-offsets", source, target, code=1).stderr
    assert "group_not_found" in shell("group", "clone-offsets", "none", f"other-{topic}", code=1).stderr


def test_a_topic_shows_when_its_messages_were_stored(shell: Shell, topic: str) -> None:
    first = shell.json("send", topic, "x", "--queue", "1")["receipt"]["timestamp_ms"]
    last = shell.json("send", topic, "x", "--queue", "1")["receipt"]["timestamp_ms"]
    empty, full = shell.json("topic", "show", topic)["queue_offsets"]
    assert empty == {"queue": 0, "min_offset": 0, "max_offset": 0, "bytes": 0}
    assert (full["max_offset"], full["first_stored_at_ms"], full["last_stored_at_ms"]) == (2, first, last)
    assert "last stored (UTC)" in shell("topic", "show", topic).stdout


def completed(shell: Shell, words: str, servers: str | None = None) -> list[str]:
    """Return bash's completions of the last word, by the script that --install-completion writes."""
    environment = {
        **os.environ,
        "KEELMQ_SERVERS": servers or shell.servers,
        "_KEELMQ_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    patient = (
        "import keelmq.cli.complete; keelmq.cli.complete.COMPLETION_TIMEOUT_MS = 60_000; " if servers is None else ""
    )
    code = patient + "import sys; sys.argv[0] = 'keelmq'; from keelmq.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_the_shell_completes_commands_and_names(shell: Shell, topic: str) -> None:
    assert completed(shell, "keelmq mess") == ["message"]
    assert completed(shell, "keelmq message ") == ["get", "trace", "caused"]
    assert completed(shell, f"keelmq topic show {topic[:-1]}").count(topic) == 1
    assert completed(shell, f"keelmq message get --topic {topic}") == [topic]
    shell("group", "settings", f"g-{topic}", "--max-attempts", "1")
    assert completed(shell, f"keelmq group show g-{topic}") == [f"g-{topic}"]
    assert completed(shell, "keelmq topic show x", servers="http://127.0.0.1:1") == []


def test_completion_is_installed(tmp_path: Path) -> None:
    """bash asks for its own name, as `keelmq --install-completion` typed into one does."""
    BASH.require()
    command = f"{sys.executable} -c \"import sys; sys.argv[0] = 'keelmq'; from keelmq.cli.app import main; main()\""
    environment = {**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    subprocess.run(
        ["bash", "-c", f"{command} --install-completion bash"], env=environment, check=True, timeout=PATIENCE_S
    )
    script = tmp_path / ".bash_completions" / "keelmq.sh"
    assert "_KEELMQ_COMPLETE=complete_bash" in script.read_text()
    assert str(script) in (tmp_path / ".bashrc").read_text()
    offered = subprocess.run(
        ["bash", "-c", f"source {script} && complete -p keelmq"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert "keelmq" in offered.stdout


def test_the_same_through_the_sdk(shell: Shell, topic: str) -> None:
    """Admin.clone_offsets and the other calls raise the broker's error."""
    from keelmq import Connection
    from keelmq.admin import Admin
    from keelmq.errors import InvalidRequest, MessageNotFound, OffsetOutOfRange

    async def main() -> None:
        connection = Connection(shell.servers)
        admin = Admin(connection)
        try:
            with pytest.raises(MessageNotFound):
                await admin.message("nobody", topic=topic)
            with pytest.raises(OffsetOutOfRange):
                await admin.message_at(topic, 0, 0)
            with pytest.raises(InvalidRequest):
                await admin.clone_offsets("same", "a b")
        finally:
            connection.close()

    asyncio.run(main())
