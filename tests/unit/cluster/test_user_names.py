"""Users whose names differ only in case: none is created beside another, and those that exist stay."""

import asyncio

import pytest

from store.commands.users import PutUser
from tests.unit.cluster.conftest import Node


async def put(node: Node, name: str) -> tuple[int, str]:
    """Create or replace the user, and return the status and the code of a refusal."""
    answer = await node.call("PUT", f"/v1/users/{name}", {})
    return answer.status, answer.body.get("code", "")


async def test_a_name_that_differs_only_in_case_is_refused_and_the_other_named(node: Node) -> None:
    assert await put(node, "alice") == (201, "")
    refused = await node.call("PUT", "/v1/users/Alice", {})
    assert (refused.status, refused.body["code"], refused.body["user"]) == (409, "user_name_taken", "alice")
    assert "user 'alice' exists" in refused.body["detail"]
    assert await put(node, "ALICE") == (409, "user_name_taken")
    assert [each["user"] for each in (await node.call("GET", "/v1/users")).body["users"]] == ["alice"]
    assert await put(node, "alice2") == (201, "")
    assert (await node.call("DELETE", "/v1/users/alice")).status == 204
    assert await put(node, "Alice") == (201, "")


async def test_users_that_exist_already_stay_and_are_changed_as_before(node: Node) -> None:
    for name in ("Alice", "alice"):
        await node.core.propose(PutUser(name, (), (), (), 0))
    for name in ("Alice", "alice"):
        assert await put(node, name) == (200, "")
        assert (await node.call("POST", f"/v1/users/{name}/tokens", {})).status == 201
    assert await put(node, "aLICE") == (409, "user_name_taken")
    assert (await node.call("DELETE", "/v1/users/Alice")).status == 204
    assert await put(node, "alice") == (200, "")


async def test_of_two_that_are_created_at_the_same_time_one_is(node: Node) -> None:
    names = ("bob", "Bob", "BOB", "boB")
    answers = await asyncio.gather(*(put(node, name) for name in names))
    assert sorted(answers) == [(201, ""), *[(409, "user_name_taken")] * 3]
    found = (await node.call("GET", "/v1/users")).body["users"]
    assert [each["user"] for each in found] == [names[answers.index((201, ""))]]
    assert (await node.call("PUT", "/v1/users/carol", {"revision": 5})).body["code"] == "user_changed"
    assert await put(node, "Carol") == (201, ""), "a creation that was refused takes no name"


@pytest.mark.parametrize("name", ["Admin", "ADMIN", "Anonymous"])
async def test_a_name_like_a_reserved_one_is_refused(node: Node, name: str) -> None:
    refused = await node.call("PUT", f"/v1/users/{name}", {})
    assert (refused.status, refused.body["code"]) == (400, "invalid_request")
    assert f"looks like '{name.lower()}', which is reserved" in refused.body["detail"]


async def test_the_names_of_people_and_groups_are_those_of_the_issuer(node: Node) -> None:
    for name in ("oidc:Ab", "oidc:aB", "oidc-group:Ops", "oidc-group:ops"):
        assert await put(node, name) == (201, "")
