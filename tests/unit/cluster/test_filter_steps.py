"""Expressions evaluated step by step have the same value as at once, and no step is longer than one predicate."""

import random

import pytest

from cluster.budgets import pace
from cluster.filters.evaluation import compile_condition
from cluster.filters.parser import parse
from cluster.filters.selection import by_expression
from cluster.filters.steps import CHARACTER_WEIGHT, Evaluation, compile_steps, weight
from cluster.limits import FILTER_LIKES_MAX, PROPERTIES_BYTES_MAX
from cluster.messages.blocks import BlockMessage
from tests.unit.cluster.conftest import Node

LIKES = " OR ".join(f"a LIKE '%_z{number}'" for number in range(FILTER_LIKES_MAX))
LONG = "xy" * (PROPERTIES_BYTES_MAX // 2 - 10)


def walked(steps: Evaluation) -> tuple[int, bool | None]:
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return count, ended.value
        count += 1


def test_step_by_step_comes_to_the_same() -> None:
    random.seed(7)
    predicates = [
        "a = 'x'",
        "b = 'x'",
        "c IS NULL",
        "a LIKE '_'",
        "b > 3",
        "TRUE",
        "NOT a = 'x'",
        "c",
        "a IN ('x', 'y')",
    ]
    values = set()
    for _ in range(2_000):
        parts = [random.choice(predicates) for _ in range(random.randrange(1, 6))]
        text = parts[0]
        for part in parts[1:]:
            text = (
                f"({text}) {random.choice(['AND', 'OR'])} NOT ({part})"
                if random.random() < 0.3
                else (f"{text} {random.choice(['AND', 'OR'])} {part}")
            )
        condition = parse(text)
        message = BlockMessage(b"b", properties={"a": random.choice("xyz"), "b": random.choice(["x", "4", "2"])})
        steps, value = walked(compile_steps(condition)(message))
        assert value is compile_condition(condition)(message), text
        assert 1 <= steps <= len(parts)
        values.add(value)
    assert values == {True, False, None}


def test_what_is_decided_is_looked_at_no_further() -> None:
    message = BlockMessage(b"b", properties={"a": "x"})
    assert walked(by_expression("a = 'y' AND a = 'x' AND a = 'x'").steps(message)) == (1, False)
    assert walked(by_expression("a = 'y' OR a = 'x' OR a = 'x'").steps(message)) == (2, True)


def test_only_long_messages_and_costly_expressions_are_evaluated_step_by_step() -> None:
    assert weight(parse(LIKES)) == FILTER_LIKES_MAX * CHARACTER_WEIGHT
    assert weight(parse("a LIKE '%x%' AND NOT (b = 1 OR c)")) == 3
    long, short = BlockMessage(b"b", properties={"a": LONG}), BlockMessage(b"b", properties={"a": "x" * 100})
    assert by_expression(LIKES).is_costly(long)
    assert not by_expression(LIKES).is_costly(short)
    assert not by_expression("a LIKE '%x%' AND b > 3").is_costly(long)
    assert by_expression(" OR ".join(["a CONTAINS 'z'"] * 100)).is_costly(long)


@pytest.mark.parametrize("pop", [False, True])
async def test_the_loop_goes_on_within_one_message(node: Node, monkeypatch: pytest.MonkeyPatch, pop: bool) -> None:
    await node.call("PUT", "/v1/topics/t", {"queues": 1})
    await node.call("POST", "/v1/topics/t/messages", {"messages": [{"body": "x", "properties": {"a": LONG}}]})
    rests = 0
    rest = pace.Pace.rest

    async def counting(each: pace.Pace) -> None:
        nonlocal rests
        rests += 1
        await rest(each)

    monkeypatch.setattr(pace, "SLICE_S", 0)
    monkeypatch.setattr(pace.Pace, "rest", counting)
    if pop:
        answer = await node.call("POST", "/v1/groups/g/pop", {"topic": "t", "filter": LIKES})
    else:
        path = node.session._build_url("/v1/topics/t/queues/0/messages").with_query(offset="0", filter=LIKES)
        answer = await node.call("GET", str(path.relative()))
    assert answer.status == 200
    assert answer.body["messages"] == []
    assert rests >= FILTER_LIKES_MAX
