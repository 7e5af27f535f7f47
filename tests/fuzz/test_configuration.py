"""Fuzzes the configuration from file, environment and flags: a valid node, or a ConfigError that names the mistake."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.process.addresses import ConfigError
from cluster.process.config import NodeConfig, options
from cluster.process.config_loading import load
from cluster.process.validation import validate
from tests.fuzz.budget import fuzz
from tests.fuzz.mutation import damaged

FILE = b"""
cluster_id = "shop"
node_id = 1
data_dir = "/var/lib/keelmq"
heartbeat_ms = 50
peer_secret_file = "/etc/keelmq/peer_secret"
insecure_peers = true
insecure_http = true
peers = [
  "1=10.0.0.1:7091=http://10.0.0.1:7081",
  "2=10.0.0.2:7091=http://10.0.0.2:7081",
]
"""
NAMES = [option.name for option in options()]
VARIABLES = [option.variable for option in options()]
PEERS = ("1=a:1=http://a:2", "2=[::1]:7091=http://[::1]:7081", "1=a:1=http://a:99999", "1=:1=http://", "²=a:1=http://b")
TEXTS = (
    st.sampled_from(
        ("", "0", "1", "-1", "50", "1e3", "70000", "true", "debug", "host:7081", "[::1]:80", "http://[", "١")
    )
    | st.sampled_from(PEERS)
    | st.text(max_size=20)
    | st.integers(0, 1 << 70).map(str)
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config") / "node.toml"


def loaded(file: Path | None, environment: dict[str, str], flags: dict[str, Any]) -> NodeConfig | None:
    try:
        config = load(None if file is None else str(file), environment, flags)
    except ConfigError as error:
        message = str(error)
        assert message
        assert "\n" not in message.strip()
        return None
    # An accepted configuration is complete: no error may appear later that could have been reported now.
    assert validate(config) == config
    assert config.nodes()[config.node_id]
    assert config.http_address().port > 0
    assert config.peer_address().port > 0
    assert config.advertised_url()
    return config


@fuzz(400)
@given(data=damaged(FILE) | st.binary(max_size=60))
@example(data=b"x = " + b"[" * 20_000)
@example(data=b'cluster_id = "\xff"')
@example(data=b'peers = ["1=a:1=http://a:1", "1=a:1=http://a:1"]')
@example(data=b"node_id = 1" + b"0" * 5000)
def test_a_file_is_a_configuration_or_refused(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    loaded(file, {}, {})


@fuzz(400)
@given(
    st.dictionaries(st.sampled_from(VARIABLES) | st.text(max_size=8).map("KEELMQ_".__add__), TEXTS, max_size=4),
    st.dictionaries(st.sampled_from(NAMES), TEXTS, max_size=4),
    st.lists(TEXTS, max_size=3),
)
@example({"KEELMQ_PEERS": "1=a:1=http://a:1,"}, {}, [])
@example({"KEELMQ_NODE_ID": "9" * 5000}, {}, [])
@example({}, {}, ["9" * 5000 + "=a:1=http://a:1"])
@example({}, {"http_listen": "a:" + "9" * 5000}, [])
@example({}, {"tls_cert": "\0", "tls_key": "\0", "tls_ca": "\0"}, [])
def test_environment_and_flags_are_a_configuration_or_refused(
    environment: dict[str, str], flags: dict[str, str], peers: list[str]
) -> None:
    given_flags: dict[str, Any] = {**flags, **({"peers": peers} if peers else {})}
    if isinstance(given_flags.get("peers"), str):
        del given_flags["peers"]  # the command line makes a list of it
    loaded(None, environment, given_flags)


def test_the_sample_is_a_configuration(file: Path) -> None:
    file.write_bytes(FILE)
    config = loaded(file, {}, {})
    assert config is not None
    assert msgspec.structs.asdict(config)["heartbeat_ms"] == 50
