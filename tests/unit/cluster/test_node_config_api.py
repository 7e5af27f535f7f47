"""The options that a running node shows: value and source, without credentials."""

from pathlib import Path

from cluster.process.config_description import described
from cluster.process.config_loading import LoadedConfig, load
from tests.unit.cluster.conftest import Node
from tests.unit.cluster.test_join_tokens import closed_node

PATH = "/v1/node/config"


async def test_every_option_is_shown_with_its_source(node: Node) -> None:
    shown = (await node.call("GET", PATH)).body
    config = node.core.config
    assert set(shown["options"]) == set(described(config))
    assert shown["options"]["cluster_id"]["value"] == config.cluster_id
    assert {each["source"] for each in shown["options"].values()} == {"default"}, "nothing was loaded here"


async def test_it_needs_a_permission(tmp_path: Path) -> None:
    async with closed_node(tmp_path) as node:
        assert (await node.call("GET", PATH)).status == 200
        node.session.headers["Authorization"] = "Bearer wrong"
        assert (await node.call("GET", PATH)).status == 401


def test_what_was_loaded_knows_where_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('data_dir = "here"\nlog_level = "error"\n')
    config = load(str(file), {"KEELMQ_LOG_LEVEL": "warning"}, {"node_id": "1"})
    assert isinstance(config, LoadedConfig)
    assert config.given_by == {"data_dir": str(file), "log_level": "KEELMQ_LOG_LEVEL", "node_id": "--node-id"}
