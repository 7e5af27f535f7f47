"""Answers of a moment ago are given again to those who take them; everybody else gets a new one."""

import asyncio
from pathlib import Path
from typing import Any, Self

import pytest
from aiohttp import web

from cluster.http import shared_answers
from cluster.http.routes import Handler
from cluster.http.shared_answers import ANSWERS_MAX, KEPT_MS, SharedAnswers
from tests.e2e.closed_cluster import ADMINISTRATOR, administrator_file
from tests.unit.cluster.conftest import Node, node_config, running_node

TOPIC = "/v1/topics/orders"
OFFSETS = "/v1/groups/g/offsets"


@pytest.fixture(autouse=True)
async def prepared(node: Node) -> None:
    await node.call("PUT", TOPIC, {"queues": 1})
    await commit(node, 0)


async def commit(node: Node, offset: int) -> None:
    offsets = [{"topic": "orders", "queue": 0, "offset": offset}]
    assert (await node.call("PUT", OFFSETS, {"offsets": offsets})).status == 200


async def produce(node: Node) -> None:
    assert (await node.call("POST", f"{TOPIC}/messages", {"messages": [{"body": "1"}]})).status == 200


async def ask(node: Node, path: str, cache: str | None = "max-age=2") -> tuple[Any, int | None, int]:
    """Return the answer, for how long it has been made, and the entry that it knows."""
    headers = {} if cache is None else {"Cache-Control": cache}
    async with node.session.get(path, headers=headers) as response:
        assert response.status == 200
        age = response.headers.get("KeelMQ-Age-Ms")
        return await response.json(), None if age is None else int(age), int(response.headers["KeelMQ-Applied-Index"])


def end_of(answer: Any) -> int:
    return int(answer["queue_offsets"][0]["max_offset"])


async def test_an_answer_is_given_again_while_it_is_young_enough(node: Node) -> None:
    first, age, index = await ask(node, TOPIC)
    assert (end_of(first), age) == (0, 0)
    await produce(node)
    node.clock.now_ms += 1_500
    again, age, known = await ask(node, TOPIC)
    assert (again, known) == (first, index), "the entry is that of the answer, not that of the moment"
    assert age is not None
    assert age >= 1_500
    assert end_of((await ask(node, TOPIC, "no-transform, max-age=1"))[0]) == 1
    node.clock.now_ms += 1_000
    assert end_of((await ask(node, TOPIC))[0]) == 1


@pytest.mark.parametrize("cache", [None, "max-age=0", "no-cache", "max-age=-5", "max-age=x", "s-max-age=2", ""])
async def test_who_does_not_ask_for_it_gets_a_new_answer(node: Node, cache: str | None) -> None:
    await ask(node, TOPIC)
    await produce(node)
    answer, age, _ = await ask(node, TOPIC, cache)
    assert (end_of(answer), age) == (1, None)


async def test_no_answer_is_kept_for_long(node: Node) -> None:
    await ask(node, TOPIC)
    await produce(node)
    node.clock.now_ms += KEPT_MS + 1
    assert end_of((await ask(node, TOPIC, "max-age=999999999"))[0]) == 1


async def test_questions_that_differ_get_answers_of_their_own(node: Node) -> None:
    await produce(node)
    plain = (await ask(node, OFFSETS))[0]
    waits = (await ask(node, f"{OFFSETS}?waits=true"))[0]
    assert "waits_since_ms" not in plain["offsets"][0]
    assert "waits_since_ms" in waits["offsets"][0]


async def test_what_many_ask_at_once_is_made_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    each_offset = node.core.state.each_offset

    def counted(*arguments: Any) -> Any:
        nonlocal made
        made += 1
        return each_offset(*arguments)

    monkeypatch.setattr(node.core.state, "each_offset", counted)
    answers = await asyncio.gather(*(ask(node, OFFSETS) for _ in range(20)))
    assert made == 1
    assert all(answer == answers[0][0] for answer, _, _ in answers)


async def test_errors_are_nobody_elses(node: Node) -> None:
    for _ in range(2):
        async with node.session.get("/v1/topics/later", headers={"Cache-Control": "max-age=2"}) as response:
            assert response.status == 404
    await node.call("PUT", "/v1/topics/later", {"queues": 1})
    assert (await ask(node, "/v1/topics/later"))[0]["topic"] == "later"


async def test_only_so_many_answers_are_kept(node: Node) -> None:
    for number in range(ANSWERS_MAX + 1):
        await ask(node, f"{OFFSETS}?limit={number + 1}")
    await produce(node)
    await commit(node, 1)
    assert (await ask(node, f"{OFFSETS}?limit=2"))[0]["offsets"][0]["offset"] == 0
    assert (await ask(node, f"{OFFSETS}?limit=1"))[0]["offsets"][0]["offset"] == 1, "it was the oldest"


async def test_an_answer_that_gives_way_to_another_is_not_kept_by_its_timer(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[asyncio.TimerHandle] = []

    class Noted(shared_answers._Answer):
        def __new__(cls, *fields: Any) -> Self:
            timers.append(fields[-1])
            return super().__new__(cls, *fields)

    monkeypatch.setattr(shared_answers, "_Answer", Noted)
    for number in range(2 * ANSWERS_MAX):
        await ask(node, f"{OFFSETS}?limit={number + 1}")
    assert [timer.cancelled() for timer in timers] == [True] * ANSWERS_MAX + [False] * ANSWERS_MAX


async def test_an_answer_that_takes_longer_than_it_may_be_old_is_made_once_for_all_who_wait(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0
    make, waits = SharedAnswers._make, asyncio.Event()

    async def slow(answers: SharedAnswers, key: Any, inner: Handler, request: web.Request) -> web.StreamResponse:
        nonlocal made
        made += 1

        async def later(request: web.Request) -> web.StreamResponse:
            await waits.wait()
            return await inner(request)

        return await make(answers, key, later, request)

    monkeypatch.setattr(SharedAnswers, "_make", slow)
    asked = [asyncio.create_task(ask(node, TOPIC, "max-age=1")) for _ in range(20)]

    async def has_begun() -> bool:
        return made == 1

    await node.wait(has_begun)
    node.clock.now_ms += 1_100
    asked += [asyncio.create_task(ask(node, TOPIC, "max-age=1")) for _ in range(20)]

    async def has_begun_again() -> bool:
        return made == 2

    await node.wait(has_begun_again)
    node.clock.now_ms += 1_100
    waits.set()
    await asyncio.gather(*asked)
    assert made <= 3, "the first, one for those who came later, and one for those whose answer was too old"


async def test_no_large_answer_is_kept(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.http.shared_answers.BODY_BYTES_MAX", 16)
    await ask(node, TOPIC)
    await produce(node)
    assert end_of((await ask(node, TOPIC))[0]) == 1


async def test_a_permission_is_asked_for_each_time(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    file = administrator_file(tmp_path)
    async with running_node(node_config(tmp_path / "closed", auth="enforce", admin_token_file=str(file)), []) as node:
        known = {"Authorization": f"Bearer {ADMINISTRATOR}", "Cache-Control": "max-age=2"}
        async with node.session.put("/v1/topics/secret", headers=known, json={"queues": 1}) as response:
            assert response.status == 201
        for headers, status in ((known, 200), ({"Cache-Control": "max-age=2"}, 401), (known, 200)):
            async with node.session.get("/v1/topics/secret", headers=headers) as response:
                assert response.status == status


async def test_a_list_is_shared_by_those_who_see_the_same(tmp_path: Path) -> None:
    file = administrator_file(tmp_path)
    config = node_config(tmp_path / "closed", auth="enforce", admin_token_file=str(file))
    async with running_node(config, []) as node:
        node.session.headers["Authorization"] = f"Bearer {ADMINISTRATOR}"
        await node.call("PUT", "/v1/topics/a", {"queues": 1})
        rules = [{"actions": ["describe"], "resource": "topic:b"}]
        assert (await node.call("PUT", "/v1/users/ann", {"rules": rules, "revision": 0})).status == 201
        token = (await node.call("POST", "/v1/users/ann/tokens", {})).body["token"]

        async def names(shown: str) -> list[str]:
            headers = {"Authorization": f"Bearer {shown}", "Cache-Control": "max-age=2"}
            async with node.session.get("/v1/topics", headers=headers) as response:
                return [each["topic"] for each in (await response.json())["topics"]]

        assert (await names(ADMINISTRATOR), await names(token)) == (["a"], [])
        await node.call("PUT", "/v1/topics/b", {"queues": 1})
        assert (await names(ADMINISTRATOR), await names(token)) == (["a"], []), "of a moment ago"
        rules = [{"actions": ["describe"], "resource": "topic:*"}]
        assert (await node.call("PUT", "/v1/users/ann", {"rules": rules})).status == 200
        assert await names(token) == ["a", "b"], "its rules are others"
