"""The way to a producer group's webhook: one POST, and what came back."""

from typing import Final, NamedTuple, Protocol

import aiohttp

from cluster.http.routes import JSON

ANSWER_BYTES_MAX: Final = 64 * 1024
"""What is read of an answer."""


class WebhookFailed(Exception):
    """No answer came; whether the webhook was asked is unknown."""


class WebhookReply(NamedTuple):
    status: int
    body: bytes


class Webhooks(Protocol):
    """Carries checks to URLs."""

    def start(self) -> None:
        """Called on the loop, before anything else."""
        ...

    async def stop(self) -> None:
        """Nothing is posted any more."""
        ...

    async def post(self, url: str, body: bytes) -> WebhookReply:
        """POST a JSON body. WebhookFailed when there is no answer in time."""
        ...


class HttpWebhooks:
    """The real way: redirects are not followed, cookies not kept."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_s = timeout_ms / 1000
        self._session: aiohttp.ClientSession | None = None

    def start(self) -> None:
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        # The caller bounds how many are under way; a limit here would let those that hang keep others waiting.
        connector = aiohttp.TCPConnector(limit=0)
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
