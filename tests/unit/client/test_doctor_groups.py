"""Groups that wait for long, as the doctor asks for them: what was not examined is not diagnosed."""

import asyncio
from types import SimpleNamespace
from typing import Any, Final

import pytest

from keelmq.cli.operations import doctor
from keelmq.cli.operations.exposition import Reading
from keelmq.cli.operations.group_findings import OTHERS, lagging_groups
from keelmq.cli.operations.seen import Finding, Seen
from keelmq.errors import Forbidden
from tests.unit.client.test_doctor import NOW_S, status

SERVERS: Final = "http://127.0.0.1:1"


def waiting(lags_s: dict[str, float]) -> Seen:
    """Return what is seen of a leader whose groups have these lags."""
    lines = [f'keelmq_consumer_lag_seconds{{group="{name}",queue="0",topic="t"}} {s}' for name, s in lags_s.items()]
    return Seen([status(1)], {}, {}, {1: Reading("\n".join(lines))}, {}, NOW_S)


class FakeAdmin:
    """Knows groups without members, and notes which were asked for."""

    asked: list[str]
    at_once = most_at_once = 0
    hidden: frozenset[str] = frozenset()

    def __init__(self, connection: Any) -> None:
        type(self).asked = []

    async def group(self, group: str) -> Any:
        kind = type(self)
        kind.asked.append(group)
        kind.at_once += 1
        kind.most_at_once = max(kind.most_at_once, kind.at_once)
        await asyncio.sleep(0)
        kind.at_once -= 1
        if group in self.hidden:
            raise Forbidden("forbidden", "you may not describe the group")
        return SimpleNamespace(members=(), offsets=())


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> type[FakeAdmin]:
    fake = type("Admin", (FakeAdmin,), {})
    monkeypatch.setattr("keelmq.admin.Admin", fake)
    return fake


async def found_in(seen: Seen) -> list[Finding]:
    return list(lagging_groups(seen._replace(consumed=await doctor._consumed(SERVERS, seen))))


async def test_many_groups_are_examined_and_none_is_called_slow_that_nobody_consumes(admin: type[FakeAdmin]) -> None:
    found = await found_in(waiting({f"g{number:03}": 400.0 for number in range(60)}))
    assert {finding.code for finding in found} == {"group_without_members"}
    assert len(found) == 60
    assert admin.most_at_once <= doctor.GROUPS_AT_ONCE


async def test_those_that_wait_longest_are_asked_for_and_the_rest_is_said_not_to_be_examined(
    admin: type[FakeAdmin],
) -> None:
    lags_s = {f"g{number:03}": 400.0 + number for number in range(doctor.GROUPS_MAX + 30)}
    *found, rest = await found_in(waiting({**lags_s, OTHERS: 1_000.0}))
    assert set(admin.asked) == {f"g{number:03}" for number in range(30, doctor.GROUPS_MAX + 30)}
    assert {finding.code for finding in found} == {"group_without_members"}
    assert (rest.code, rest.what.startswith("31 groups are behind, and it was not examined")) == (
        "groups_not_examined",
        True,
    )
    assert rest.evidence.startswith("behind by: (others) 1000 s, g029 429 s, ")
    assert " and 26 more; " in rest.evidence
    assert rest.next_step.startswith("keelmq group list")


async def test_a_group_that_the_token_may_not_see_is_not_diagnosed(admin: type[FakeAdmin]) -> None:
    admin.hidden = frozenset({"secret"})
    (found,) = await found_in(waiting({"secret": 400.0}))
    assert (found.code, found.next_step) == ("groups_not_examined", "keelmq group show secret")
    assert found.what == "group secret is behind, and it was not examined whether anybody consumes"
