"""Sends a check to a producer group's webhook with one POST, and returns the answer."""

import ssl
from typing import Final, NamedTuple, Protocol

import aiohttp

from cluster.http.routes import JSON

ANSWER_BYTES_MAX: Final = 64 * 1024
"""Maximum bytes read of an answer."""


class WebhookFailed(Exception):
    """The webhook did not answer. It may have received the check all the same."""


class WebhookReply(NamedTuple):
    status: int
    body: bytes


class Webhooks(Protocol):
    """Sends checks to URLs."""

    def start(self) -> None:
        """Start. Call it on the event loop before `post`."""
        ...

    async def stop(self) -> None:
        """Stop: nothing is posted any more."""
        ...

    async def post(self, url: str, body: bytes) -> WebhookReply:
        """POST a JSON body and return the answer. Raises WebhookFailed when there is no answer in time."""
        ...


class HttpWebhooks:
    """Sends checks over HTTP. Owns the client session. Redirects are not followed, and cookies not kept."""

    def __init__(self, timeout_ms: int, tls: ssl.SSLContext | None = None) -> None:
        """Create the client. It trusts the servers that `tls` trusts, by default the authorities of the system."""
        self._timeout_s = timeout_ms / 1000
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    def start(self) -> None:
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        # The caller bounds the requests under way; with a limit here, hanging ones would keep others waiting.
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls or True)
        self._session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), connector=connector)

    async def stop(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(self, url: str, body: bytes) -> WebhookReply:
        assert self._session is not None
        try:
            async with self._session.post(
                url, data=body, headers={"Content-Type": JSON}, allow_redirects=False
            ) as response:
                return WebhookReply(response.status, await response.content.read(ANSWER_BYTES_MAX))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise WebhookFailed(repr(error)) from error
