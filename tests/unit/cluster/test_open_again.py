"""A node that is opened again in its process, as after a received snapshot, while its files cannot be used."""

import logging
from pathlib import Path

import pytest

from cluster.broker import Broker
from cluster.process.config import NodeConfig
from cluster.process.exit_codes import ExitCode, StartupError
from tests.unit.cluster.conftest import node_config

SECRET = "secret-of-webhooks-".ljust(40, "x")


def opened(config: NodeConfig, former: Broker | None = None) -> Broker:
    """Return a broker that is closed again already: what it knows stays."""
    broker = Broker.open(config, pytest.fail, former=former)
    broker.close()
    return broker


def test_quotas_that_are_refused_leave_the_former_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    file = tmp_path / "quotas.toml"
    file.write_text("[default]\nrequests_per_s = 7\n")
    config = node_config(tmp_path, quota_file=str(file))
    broker = opened(config)
    for content in ("[defaults]\n", ""):  # more than once: what was kept is kept again
        file.write_text(content)
        broker = opened(config, broker)
        assert broker.core.quotas is not None
        assert broker.core.quotas.of_user("shop").rates.requests_per_s == 7
        assert "the node goes on with the former quotas: quota_file" in caplog.messages[-1]
    file.write_text("[default]\nrequests_per_s = 8\n")
    quotas = opened(config, broker).core.quotas
    assert quotas is not None
    assert quotas.of_user("shop").rates.requests_per_s == 8
    file.write_text("")
    with pytest.raises(StartupError, match="quota_file") as raised:
        opened(config)
    assert raised.value.code == ExitCode.BAD_CONFIG, "a node does not start with it"


async def test_secrets_of_webhooks_that_are_refused_leave_the_former_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    file = tmp_path / "webhook-secret"
    file.touch(mode=0o600)
    file.write_text(SECRET)
    config = node_config(tmp_path, webhook_secret_file=str(file))
    broker = opened(config)
    signed = broker._signer.headers(b"check", 1)
    for _ in range(2):  # more than once: what was kept is kept again
        file.write_text("short")
        broker = opened(config, broker)
        assert broker._signer.headers(b"check", 1) == signed
        assert "the node goes on with the former secrets of webhooks: webhook_secret_file" in caplog.messages[-1]
    guard = broker._guards.webhook_secrets
    await guard.look()
    assert [each.code for each in guard.conditions()] == ["webhook_secret_refused"]
    file.write_text(SECRET[::-1])
    await guard.look()
    assert not [*guard.conditions()]
    assert broker._signer.headers(b"check", 1) != signed
    await guard.stop()
    file.write_text("short")
    with pytest.raises(StartupError, match="webhook_secret_file") as raised:
        opened(config)
    assert raised.value.code == ExitCode.BAD_CONFIG, "a node does not start with it"
    assert SECRET not in caplog.text


async def test_a_drained_node_stays_drained_until_its_process_starts_again(tmp_path: Path) -> None:
    """A node opens again by itself when it is rebuilt or sent a snapshot, as one that is worked on may be."""
    config = node_config(tmp_path)
    broker = opened(config)
    broker.core.raft.vital_signs.drain(drained=True)
    again = opened(config, broker)
    assert again.core.raft.vital_signs.is_drained(config.node_id)
    assert not opened(config).core.raft.vital_signs.is_drained(config.node_id)
