"""Tests who takes turns in front of the log: the principal of a request, or its address, and the node itself."""

from pathlib import Path
from typing import Any

import pytest

from cluster.security.principals import ADMINISTRATOR_NAME
from store.commands.entry import Proposal
from store.commands.topics import DeleteTopic
from tests.unit.cluster.conftest import Node, node_config, running_node

ADMINISTRATOR = "a" * 43
PATH = "/v1/topics/orders"


@pytest.fixture
def senders(node: Node) -> dict[str, str]:
    return noted_senders(node)


def noted_senders(node: Node) -> dict[str, str]:
    """Return the sender of the last command of each kind, as the log is told from now on."""
    found: dict[str, str] = {}
    propose = node.core.raft.propose

    def noted(proposal: Proposal, sender: str = "") -> Any:
        found[type(proposal.command).__name__] = sender
        return propose(proposal, sender)

    node.core.raft.propose = noted  # type: ignore[method-assign]
    return found


async def test_without_authentication_the_sender_is_the_address(node: Node, senders: dict[str, str]) -> None:
    await node.call("PUT", PATH, {"queues": 1})
    await node.call("POST", f"{PATH}/messages", {"messages": [{"body": "x"}]})
    assert senders["PutTopic"] == senders["Produce"] == "127.0.0.1"


async def test_the_node_has_turns_of_its_own(node: Node, senders: dict[str, str]) -> None:
    await node.call("PUT", PATH, {"queues": 1})
    await node.core.propose(DeleteTopic("orders"))
    assert senders == {"PutTopic": "127.0.0.1", "DeleteTopic": ""}


async def test_with_authentication_the_sender_is_the_principal(tmp_path: Path) -> None:
    file = tmp_path / "administrator"
    file.write_text(ADMINISTRATOR)
    file.chmod(0o600)
    fatal: list[str] = []
    async with running_node(node_config(tmp_path, auth="enforce", admin_token_file=str(file)), fatal) as node:
        found = noted_senders(node)
        node.session.headers["Authorization"] = f"Bearer {ADMINISTRATOR}"
        assert (await node.call("PUT", PATH, {"queues": 1})).status == 201
    assert found == {"PutTopic": f"principal {ADMINISTRATOR_NAME}"}
    assert fatal == []
