"""`--join`: nodes that may begin without knowing the nodes that the cluster began with, and join tokens."""

import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from cluster.operations.join_api import JoinApi
from cluster.problems import Problem
from cluster.process.addresses import ConfigError
from cluster.process.exit_codes import StartupError
from cluster.process.join import _Cluster, _id_of, _Node, _Unsettled, joined
from cluster.process.validation import validate
from tests.unit.cluster.conftest import Node, node_config

ROOT = Path(__file__).parents[3]
NODES = (_Node(1), _Node(2))


def test_a_founder_does_not_join_while_the_log_says_nothing_of_the_nodes() -> None:
    cluster = _Cluster("orders", 0, 100, NODES)
    with pytest.raises(StartupError, match="same --peer options"):
        _id_of(cluster, 2)
    assert _id_of(cluster, 3) == "orders"


def test_a_member_waits_while_the_log_may_yet_say_nothing_of_the_nodes() -> None:
    """Entries that are not committed may be cut off, and a node with a new disk would never know which nodes there
    are.
    """
    cluster = _Cluster("orders", 9, 8, NODES)
    with pytest.raises(_Unsettled):
        _id_of(cluster, 2)
    assert _id_of(cluster, 3) == "orders"


def test_a_member_joins_once_the_log_says_who_is_there() -> None:
    assert _id_of(_Cluster("orders", 9, 9, NODES), 2) == "orders"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "only a node that joins a cluster"),
        ({"join": "http://10.0.0.1:7081"}, "shown the join token without TLS"),
        ({"join": "http://10.0.0.1:7081", "insecure_http": True}, "shown the join token without TLS"),
    ],
)
def test_a_join_token_is_shown_to_a_cluster_over_tls_alone(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        validate(node_config(tmp_path, join_token_file=str(tmp_path / "token"), **changes))
    config = node_config(tmp_path, join_token_file=str(tmp_path / "token"), join="https://10.0.0.1:7081")
    assert validate(config) is config


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        (None, 0, "No such file"),
        ("t" * 50, 0o640, "users other than its owner"),
        ("", 0o600, "1 to 4 lines"),
        ("short", 0o600, "at least 32 characters"),
        ("a" * 50 + "\n" + "b" * 50, 0o600, "give the one line"),
        ("a" * 20 + " " + "b" * 20, 0o600, "give the one line"),
        ("a" * 129, 0o600, "give the one line"),
        ("é" * 50, 0o600, "give the one line"),
    ],
)
def test_a_file_without_a_join_token_is_refused(tmp_path: Path, content: str | None, mode: int, words: str) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.touch(mode=mode)
        file.write_text(content)
        file.chmod(mode)
    config = validate(node_config(tmp_path, join_token_file=str(file), join="https://127.0.0.1:1"))
    with pytest.raises(StartupError, match=f"join_token_file.*{words}"):
        joined(config)


def test_the_documented_place_of_the_secret_is_one_that_the_unit_lets_the_node_write() -> None:
    unit = (ROOT / "deploy/systemd/keelmqd@.service").read_text()
    page = (ROOT / "docs/membership.md").read_text()
    (directory,) = re.findall(r"^StateDirectory=(\S+)$", unit, re.MULTILINE)
    (file,) = re.findall(r"--peer-secret-file (\S+)", page)
    (name,) = re.findall(r"`keelmqd@(\w+)`", page)
    assert "ProtectSystem=strict" in unit
    assert Path(file).parent == Path("/var/lib") / directory.replace("%i", name)


async def test_the_secret_of_the_peers_leaves_the_machine_over_tls_alone(node: Node) -> None:
    api = JoinApi(node.core)
    for remote in ("127.0.0.1", "::1"):
        api._require_secrecy(make_mocked_request("POST", "/v1/cluster/join").clone(remote=remote))
    with pytest.raises(Problem, match="not sent without TLS") as raised:
        api._require_secrecy(make_mocked_request("POST", "/v1/cluster/join").clone(remote="10.0.0.9"))
    assert raised.value.code == "forbidden"
    told = await node.call("POST", "/v1/cluster/join-tokens", {"node_id": 4})
    assert (told.status, told.body["code"]) == (400, "invalid_request")
    told = await node.call("POST", "/v1/cluster/join", {"node_id": 4})
    assert (told.status, told.body["code"]) == (403, "forbidden"), "with auth off nobody has a join token"
