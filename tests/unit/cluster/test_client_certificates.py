"""Certificates of clients that end while their connections are open."""

import ssl
from datetime import timedelta
from pathlib import Path
from typing import Final

import aiohttp

from cluster.process.validation import validate
from tests.certificates import Authority, today
from tests.unit.cluster.conftest import node_config, running_node
from tests.unit.cluster.test_join_tokens import private
from tests.unit.cluster.test_metering import ADMINISTRATOR

LEFT_MS: Final = 60_000
"""Time that the certificate has left when its connection is made."""


async def test_a_connection_ends_with_the_certificate_that_it_was_made_with(tmp_path: Path) -> None:
    """The next one needs a handshake, in which a certificate that has expired is refused. A renewed one goes on there
    without an error: the request that finds the former one over is answered.
    """
    ca, ends = Authority(), today() + timedelta(days=1)
    server, client = ca.issue_server(tmp_path), ca.issue_client(tmp_path, "shop", ends=ends)
    config = validate(
        node_config(
            tmp_path,
            auth="enforce",
            admin_token_file=private(tmp_path / "token", ADMINISTRATOR.encode()),
            http_tls_cert=server.certificate_file,
            http_tls_key=server.key_file,
            http_tls_client_ca=client.ca_file,
        )
    )
    context = ssl.create_default_context(cafile=client.ca_file)
    context.load_cert_chain(client.certificate_file, client.key_file)
    fatal: list[str] = []
    async with running_node(config, fatal, ca_file=client.ca_file) as node:
        node.clock.now_ms = int(ends.timestamp() * 1000) - LEFT_MS
        administrator = {"Authorization": f"Bearer {ADMINISTRATOR}", "Content-Type": "application/json"}
        body = b'{"certificates": ["shop"]}'

        async def is_made() -> bool:  # a new cluster takes users once its feature level is in the log
            async with node.session.put("/v1/users/shop", data=body, headers=administrator) as made:
                return made.status in (200, 201)

        await node.wait(is_made)
        connector = aiohttp.TCPConnector(ssl=context, limit=1)
        async with aiohttp.ClientSession(f"https://{config.http_listen}", connector=connector) as session:

            async def closes() -> bool:
                async with session.get("/v1/principal") as answer:
                    assert (await answer.json())["principal"] == "shop"
                    return answer.headers.get("Connection") == "close"

            assert not await closes()
            node.clock.now_ms += LEFT_MS - 1
            assert not await closes()
            node.clock.now_ms += 1
            assert await closes()
    assert not fatal
