"""A node whose certificate is replaced while it runs, refused, or about to end."""

import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from cluster.broker import Broker
from cluster.health.certificate_guard import DAY_S, WARNING_DAYS
from cluster.process.addresses import ConfigError
from cluster.process.config_loading import load
from cluster.process.exit_codes import ExitCode, StartupError
from raft.config import TlsConfig
from tests.certificates import Authority, today
from tests.documents import blocks_of
from tests.requirements import BASH, REPOSITORY, path_of
from tests.unit.cluster.conftest import Node, node_config, running_node

CLUSTER = "keelmq"


def options_of(tls: TlsConfig) -> dict[str, str]:
    return {"tls_cert": tls.certificate_file, "tls_key": tls.key_file, "tls_ca": tls.ca_file}


def alarms_of(node: Node) -> dict[str, tuple[str, str]]:
    """Return severity and detail of the active alarms by code."""
    node.broker.services.alarms.look()
    return {alarm.code: (alarm.severity, alarm.detail) for alarm in node.broker.services.alarms.active}


async def shown_end_s(node: Node, kind: str = "peer") -> float:
    lines = (await node.call("GET", "/metrics")).body.decode().splitlines()
    (line,) = [each for each in lines if each.startswith(f"keelmq_{kind}_certificate_expires_timestamp_seconds ")]
    return float(line.split()[1])


@pytest.fixture
async def certified(tmp_path: Path) -> AsyncIterator[tuple[Node, Authority]]:
    ca, fatal = Authority(), list[str]()
    async with running_node(node_config(tmp_path, **options_of(ca.issue(tmp_path, 1, CLUSTER))), fatal) as node:
        yield node, ca
    assert not fatal


async def test_files_that_were_replaced_are_used_and_their_end_is_shown(
    certified: tuple[Node, Authority], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    node, ca = certified
    before_s = await shown_end_s(node)
    ends = today() + timedelta(days=300)
    ca.issue(tmp_path, 1, CLUSTER, ends=ends)
    await node.broker._guards.certificates.look()
    assert await shown_end_s(node) == ends.timestamp() != before_s
    assert f"the certificate ends on {ends:%Y-%m-%d at %H:%M} UTC" in caplog.text


async def test_files_that_cannot_be_used_are_an_alarm_until_they_are_replaced(
    certified: tuple[Node, Authority], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node, ca = certified
    before_s = await shown_end_s(node)
    ca.issue(tmp_path, 1, CLUSTER, uris=())
    for _ in range(3):
        await node.broker._guards.certificates.look()
    severity, detail = alarms_of(node)["certificate_refused"]
    assert severity == "warning"
    assert "names no node" in detail
    assert len([text for text in caplog.messages if "the new TLS files are not used" in text]) == 1
    assert await shown_end_s(node) == before_s
    ca.issue(tmp_path, 1, CLUSTER)
    await node.broker._guards.certificates.look()
    assert "certificate_refused" not in alarms_of(node)


async def test_a_certificate_that_ends_soon_is_an_alarm(certified: tuple[Node, Authority]) -> None:
    node, _ = certified
    end_ms = int(await shown_end_s(node)) * 1000
    for left_s, severity in ((WARNING_DAYS * DAY_S, ""), (WARNING_DAYS * DAY_S - 1, "warning"), (0, "critical")):
        node.clock.leapt_ms = end_ms - left_s * 1000 - node.clock.now_ms
        assert alarms_of(node).get("certificate_ends", ("",))[0] == severity


async def test_files_for_clients_are_guarded_as_well(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ca, fatal = Authority(), list[str]()
    tls = ca.issue_server(tmp_path)
    files = {"http_tls_cert": tls.certificate_file, "http_tls_key": tls.key_file}

    def alarms(node: Node) -> dict[str, str]:
        node.broker.services.alarms.look()
        return {
            alarm.code: alarm.severity for alarm in node.broker.services.alarms.active if alarm.subject == "clients"
        }

    async with running_node(node_config(tmp_path, **files), fatal, ca_file=tls.ca_file) as node:
        before_s = await shown_end_s(node, "http")
        ca.issue_server(tmp_path, hosts=("127.0.0.2",))
        for _ in range(2):
            await node.broker._guards.certificates.look()
        assert alarms(node) == {"certificate_refused": "warning"}
        assert caplog.text.count("the new TLS files are not used: http_tls_cert") == 1
        assert await shown_end_s(node, "http") == before_s
        ends = today() + timedelta(days=300)
        ca.issue_server(tmp_path, ends=ends)
        await node.broker._guards.certificates.look()
        assert not alarms(node)
        assert await shown_end_s(node, "http") == ends.timestamp()
        node.clock.leapt_ms = int(ends.timestamp()) * 1000 - node.clock.now_ms
        assert alarms(node) == {"certificate_ends": "critical"}
    assert not fatal


async def test_a_node_without_tls_shows_no_end(tmp_path: Path) -> None:
    async with running_node(node_config(tmp_path), []) as node:
        assert await shown_end_s(node) == 0
        node.clock.leapt_ms = 10 * 365 * DAY_S * 1000
        await node.broker._guards.certificates.look()
        assert not [code for code in alarms_of(node) if code.startswith("certificate")]


def test_a_start_with_files_that_no_peer_would_accept_is_refused(tmp_path: Path) -> None:
    ca = Authority()
    files = options_of(ca.issue(tmp_path, 1, CLUSTER))
    load(None, {}, {"node_id": "1", **files})
    with pytest.raises(ConfigError, match=r"names keelmq://keelmq/node/1; it must have .* URI:keelmq://keelmq/node/2"):
        load(None, {}, {"node_id": "2", **files})
    with pytest.raises(StartupError, match="URI:keelmq://keelmq/node/2") as raised:
        Broker.open(node_config(tmp_path, node_id=2, **files), list[str]().append)
    assert raised.value.code == ExitCode.BAD_CONFIG


def test_the_commands_of_the_page_make_certificates_that_nodes_accept(tmp_path: Path) -> None:
    BASH.require()
    page = REPOSITORY / "docs" / "configuration.md"
    commands = [each.text for each in blocks_of(page) if each.language == "bash" and "keelmq cert" in each.text]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for text in commands:
        command = [path_of("bash"), "-ec", text]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
        for node_id in (1, 2, 3):
            certificate, key, authority = (
                str(tmp_path / "pki" / each) for each in (f"node-{node_id}.crt", f"node-{node_id}.key", "ca.crt")
            )
            files = {"tls_cert": certificate, "tls_key": key, "tls_ca": authority}
            load(None, {}, {"cluster_id": "shop", "node_id": str(node_id), **files})
            files = {"http_tls_cert": certificate, "http_tls_key": key, "http_ca": authority}
            for host in (f"10.0.0.{node_id}", f"keelmq-{node_id}"):
                load(None, {}, {**files, "http_url": f"https://{host}:7081", "insecure_http": "true"})
    assert len(commands) == 2, "the certificates are made, and then renewed"
