"""Sends a check to a producer group's webhook with one POST, and returns the answer."""

import socket
import ssl
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, Protocol

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from cluster.http.routes import JSON
from cluster.process.allowed_urls import AllowedUrls, UrlInvalid, UrlNotAllowed, require_address
from cluster.process.name_lookups import NameLookups
from cluster.process.request_scope import TRACEPARENT_HEADER
from cluster.security.webhook_signer import WebhookSigner

ANSWER_BYTES_MAX: Final = 64 * 1024
"""Maximum size of an answer. A larger one is no answer."""

Failure = Literal["not_allowed", "timed_out", "unreachable", "answer_too_large"]


class WebhookFailed(Exception):
    """The webhook did not answer. It may have received the check all the same."""

    def __init__(self, detail: str, failure: Failure) -> None:
        super().__init__(detail)
        self.failure = failure


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

    async def post(self, url: str, body: bytes, traceparent: str | None = None) -> WebhookReply:
        """POST a JSON body and return the answer. `traceparent` is sent as a header of that name. Raises WebhookFailed
        when there is no answer in time.
        """
        ...


class HttpWebhooks:
    """Sends signed checks over HTTP to URLs that are allowed. Owns the client session. Redirects are not followed, and
    cookies not kept.
    """

    def __init__(
        self,
        allowed: AllowedUrls,
        signer: WebhookSigner,
        timeout_ms: int,
        wall_ms: Callable[[], int],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Create the client. It trusts the servers that `tls` trusts, by default the authorities of the system."""
        self._allowed = allowed
        self._signer = signer
        self._wall_ms = wall_ms
        self._timeout_s = timeout_ms / 1000
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    def start(self) -> None:
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        # The caller bounds the requests under way; with a limit here, hanging ones would keep others waiting.
        # Names are looked up for each connection, because they may stand for other addresses by then.
        connector = aiohttp.TCPConnector(
            limit=0, ssl=self._tls or True, resolver=GuardedResolver(NameLookups()), use_dns_cache=False
        )
        self._session = aiohttp.ClientSession(
            timeout=timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=connector,
            auto_decompress=False,  # a small answer could unpack to a large one
            headers={"Accept-Encoding": "identity"},
        )

    async def stop(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(self, url: str, body: bytes, traceparent: str | None = None) -> WebhookReply:
        assert self._session is not None
        try:
            target = self._allowed.require(url)
            headers = {"Content-Type": JSON, **self._signer.headers(body, self._wall_ms() // 1000)}
            if traceparent is not None:
                headers[TRACEPARENT_HEADER] = traceparent
            async with self._session.post(target, data=body, headers=headers, allow_redirects=False) as response:
                if not 200 <= response.status < 300:
                    return WebhookReply(response.status, b"")
                return WebhookReply(response.status, await _read(response))
        except (UrlInvalid, UrlNotAllowed) as error:
            raise WebhookFailed(str(error), "not_allowed") from None
        except TimeoutError as error:
            raise WebhookFailed(f"no answer within {self._timeout_s:g} s", "timed_out") from error
        except (aiohttp.ClientError, OSError, UnicodeError) as error:
            refused = _refusal_in(error)
            if refused is not None:
                raise WebhookFailed(str(refused), "not_allowed") from None
            raise WebhookFailed(repr(error), "unreachable") from error


class GuardedResolver(AbstractResolver):
    """Looks up names, and refuses those that stand for an address which webhooks must not have."""

    def __init__(self, resolver: AbstractResolver) -> None:
        """Create it. It owns `resolver` from here on."""
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of the name. Raises OSError; its cause is UrlNotAllowed when any of them is refused."""
        found = await self._resolver.resolve(host, port, family)
        try:
            for each in found:
                require_address(host, each["host"])
        except UrlNotAllowed as error:
            raise OSError(str(error)) from error
        return found

    async def close(self) -> None:
        await self._resolver.close()


async def _read(response: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for part in response.content.iter_any():
        content += part
        if len(content) > ANSWER_BYTES_MAX:
            raise WebhookFailed(f"the answer is larger than {ANSWER_BYTES_MAX} bytes", "answer_too_large")
    return bytes(content)


def _refusal_in(error: BaseException | None) -> UrlNotAllowed | None:
    """Return the refusal that the resolver gave as the reason of an error."""
    while error is not None and not isinstance(error, UrlNotAllowed):
        error = error.__cause__
    return error
