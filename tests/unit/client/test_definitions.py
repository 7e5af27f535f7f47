"""Files of definitions: equal definitions are equal bytes, and a file that is not right is refused as a whole."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from keelmq.admin import definitions as file_format
from keelmq.admin.definitions import Definitions, RuleDefinition, TopicDefinition, UserDefinition
from keelmq.cli.app import app
from keelmq.cli.operations.definitions import _replace
from keelmq.errors import InvalidRequest, KeelMQError

TOPIC: dict[str, Any] = {
    "topic": "orders",
    "queues": 4,
    "type": "any",
    "retention_ms": 60_000,
    "retention_bytes": -1,
}


def file_of(version: Any = 1, format: str = "keelmq-definitions", **parts: Any) -> bytes:
    return json.dumps({"format": format, "version": version, "definitions": parts}).encode()


def refused(data: bytes) -> KeelMQError:
    with pytest.raises(KeelMQError) as caught:
        file_format.decode_definitions(data)
    return caught.value


def test_a_file_is_the_same_whatever_the_order_of_what_it_defines() -> None:
    rules = [{"resource": "topic:b", "actions": ["send", "read"]}, {"resource": "topic:a", "actions": ["read"]}]
    user = {"user": "shop", "rules": rules, "certificates": ["z", "a"]}
    turned = {**user, "rules": [rules[1], {**rules[0], "actions": ["read", "send"]}], "certificates": ["a", "z"]}
    one = file_format.decode_definitions(file_of(topics=[TOPIC, {**TOPIC, "topic": "bills"}], users=[user]))
    other = file_format.decode_definitions(file_of(topics=[{**TOPIC, "topic": "bills"}, TOPIC], users=[turned]))
    assert one == other
    data = file_format.encode_definitions(one)
    assert data == file_format.encode_definitions(other)
    assert file_format.decode_definitions(data) == one
    assert data.endswith(b"}\n")
    assert b"Users are without tokens" in data


def test_a_file_has_only_the_parts_that_are_defined() -> None:
    found = file_format.decode_definitions(file_of(topics=[]))
    assert (found.topics, found.users, found.settings) == ((), None, None)
    assert json.loads(file_format.encode_definitions(found))["definitions"] == {"topics": []}


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "truncated"),
        (b"[]", "`format`"),
        (b"{", "truncated"),
        (b"\xff\xfe", "malformed"),
        (b"[" * 100_000, "recursion"),
        (file_of(format="others"), "`format`"),
        (file_of(version="1"), "`version`"),
        (file_of(version=True), "`version`"),
        (file_of(version=0), "`version`"),
        (file_of(topics=[{**TOPIC, "color": "red"}]), "color"),
        (file_of(colors=[]), "colors"),
        (file_of(topics=[{**TOPIC, "queues": 0}]), "queues"),
        (file_of(topics=[{**TOPIC, "type": "round"}]), "type"),
        (file_of(topics=[{**TOPIC, "retention_ms": -2}]), "retention_ms"),
        (file_of(topics=[TOPIC, TOPIC]), "orders is defined twice"),
        (file_of(users=[{"user": "a"}, {"user": "a"}]), "a is defined twice"),
        (file_of(users=[{"user": "a", "tokens": []}]), "tokens"),
        (file_of(users=[{"user": "a", "rules": [{"resource": "*", "effect": "maybe", "actions": []}]}]), "maybe"),
        (file_of(topics={}), "array"),
    ],
)
def test_what_is_no_file_of_definitions_is_refused_and_says_where(data: bytes, word: str) -> None:
    error = refused(data)
    assert error.code == "definitions_invalid"
    assert word in error.detail.lower() or word in error.detail


def test_names_that_no_cluster_takes_are_refused() -> None:
    assert refused(file_of(topics=[{**TOPIC, "topic": "a b"}])).code == "invalid_topic"
    group = {"group": "a/b", "retry_max_attempts": 1, "retry_delays_ms": [1]}
    assert refused(file_of(groups=[group])).code == "invalid_group"


def test_a_later_version_is_refused_as_such_whatever_else_it_has() -> None:
    error = refused(file_of(version=2, topics=[{"shape": "unknown"}]))
    assert error.code == "definitions_too_new"
    assert "version 2" in error.detail


def test_a_file_is_limited_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    data = file_of(topics=[TOPIC])
    monkeypatch.setattr(file_format, "DEFINITIONS_BYTES_MAX", len(data) - 1)
    assert refused(data).code == "definitions_too_large"
    assert refused(b"[" * len(data)).code == "definitions_too_large"
    many = tuple(
        TopicDefinition(topic=f"t{number}", queues=1, type="any", retention_ms=1, retention_bytes=-1)
        for number in range(9)
    )
    with pytest.raises(KeelMQError, match="definitions_too_large"):
        file_format.encode_definitions(Definitions(topics=many))


def test_rules_that_are_there_twice_are_one() -> None:
    rule = RuleDefinition(resource="topic:a", actions=("read", "read"))
    found = file_format.sorted_user(UserDefinition(user="u", rules=(rule, rule)))
    assert found.rules == (RuleDefinition(resource="topic:a", actions=("read",)),)


def test_the_command_refuses_files_before_it_asks_a_node(tmp_path: Path) -> None:
    runner = CliRunner(env={"KEELMQ_SERVERS": "http://127.0.0.1:1"})
    file = tmp_path / "definitions.json"
    file.write_bytes(file_of(version=7))
    answer = runner.invoke(app, ["definitions", "import", str(file)])
    assert (answer.exit_code, "definitions_too_new" in answer.output) == (2, True)
    answer = runner.invoke(app, ["definitions", "import", str(tmp_path / "none")])
    assert (answer.exit_code, "file_unusable" in answer.output) == (2, True)


@pytest.mark.parametrize("target", ["", ".", "/"])
def test_an_export_to_what_has_no_name_is_refused(target: str) -> None:
    with pytest.raises(InvalidRequest, match="is a directory"):
        _replace(Path(target), b"{}")
