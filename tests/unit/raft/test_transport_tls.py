"""Mutual TLS between peers: only certificates of the configured CA get a connection."""

from pathlib import Path

import pytest
import trustme

from raft.config import RaftConfig, TlsConfig
from raft.messages import TimeoutNow, make_append
from store.log.record import Entry
from tests.unit.raft.test_transport import running, two_nodes, until


def with_tls(config: RaftConfig, directory: Path, ca: trustme.CA) -> RaftConfig:
    certificate = ca.issue_cert("127.0.0.1")
    paths = {name: directory / f"{config.node_id}-{name}.pem" for name in ("cert", "key", "ca")}
    certificate.private_key_pem.write_to_path(paths["key"])
    certificate.cert_chain_pems[0].write_to_path(paths["cert"])
    ca.cert_pem.write_to_path(paths["ca"])
    tls = TlsConfig(certificate_file=str(paths["cert"]), key_file=str(paths["key"]), ca_file=str(paths["ca"]))
    return RaftConfig(
        cluster_id=config.cluster_id, node_id=config.node_id, listen=config.listen, peers=config.peers, tls=tls
    )


async def test_peers_of_one_ca_talk(tmp_path: Path) -> None:
    ca = trustme.CA()
    async with running(*(with_tls(config, tmp_path, ca) for config in two_nodes())) as [(one, got_one), (_, got_two)]:
        await until(lambda: got_one.connected == {2} and got_two.connected == {1})
        one.send(2, TimeoutNow(3))
        await until(lambda: got_two.messages == [(1, TimeoutNow(3))])


async def test_large_entries_go_in_pieces_through_tls(tmp_path: Path) -> None:
    ca = trustme.CA()
    async with running(*(with_tls(config, tmp_path, ca) for config in two_nodes())) as [(one, got_one), (_, got_two)]:
        await until(lambda: got_one.connected == {2} and got_two.connected == {1})
        payload = bytes(range(256)) * 40_000
        assert one.send(2, make_append(2, 7, 2, 6, [Entry(payload, 8, 2, 1, 0)]))
        await until(lambda: len(got_two.messages) == 1)
        assert got_two.messages[0][1].entries[0].payload == payload


async def test_peer_of_another_ca_is_kept_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config_one, config_two = two_nodes()
    nodes = with_tls(config_one, tmp_path, trustme.CA()), with_tls(config_two, tmp_path, trustme.CA())
    async with running(*nodes) as [(_, got_one), (_, got_two)]:
        await until(lambda: caplog.text.lower().count("certificate") >= 2)
        assert got_one.connected == got_two.connected == set()


async def test_peer_without_tls_is_kept_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config_one, config_two = two_nodes()
    async with running(with_tls(config_one, tmp_path, trustme.CA()), config_two) as [(_, got_one), (_, got_two)]:
        await until(lambda: "no connection to node 1" in caplog.text and "no connection to node 2" in caplog.text)
        assert got_one.connected == got_two.connected == set()
