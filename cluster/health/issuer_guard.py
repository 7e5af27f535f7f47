"""Keeps the keys of the issuer of people's tokens: fetches them from a URL, or reads their file when it changes.

Keys are fetched every `oidc_refresh_ms`, and sooner for a token with an unknown key or after an error, but never twice
within a tenth of that: no client can make a node call the issuer more often. A fetch is bounded in time and size,
follows no redirect, and its content is parsed in a thread. A set without a key that can be used withdraws all keys.
While the issuer does not answer, the former keys stay for a day: with older ones, a key that the issuer has withdrawn
would be trusted for as long as somebody can keep the node from hearing of it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import aiohttp
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from cluster.core.core import Core
from cluster.core.reader_threads import ReaderPool
from cluster.health.alarms import Condition
from cluster.process.http_tls import webhook_trust
from cluster.process.name_lookups import NameLookups
from cluster.process.oidc import is_url
from cluster.process.quota_file import stamp_of
from cluster.security.issuer import Issuer

if TYPE_CHECKING:
    from cluster.process.key_set import KeySet

logger = logging.getLogger(__name__)

FETCH_TIMEOUT_S: Final = 5.0
"""Seconds in which the whole answer of the issuer must have arrived."""
FILE_INTERVAL_S: Final = 5.0
SOONER_DIVISOR: Final = 10
"""A fetch out of turn begins a tenth of `oidc_refresh_ms` after the last one at the earliest."""
KEYS_KEPT_S: Final = 86_400
"""Seconds for which keys are used that could not be fetched again."""


class FetchFailed(Exception):
    """The keys could not be fetched or read; the message says why, on one line."""


class KeysWithdrawn(FetchFailed):
    """The issuer has keys no longer, or none that this node could use."""


class IssuerGuard:
    """Owns the looks at the keys. Use on the event loop only. Without an issuer it does nothing."""

    def __init__(self, core: Core, threads: ReaderPool) -> None:
        """Create the guard, which owns `threads` from here on."""
        self._core = core
        self._issuer = core.access.issuer
        self._where = core.config.oidc_keys or ""
        self._threads = threads
        is_fetched = self._issuer is not None and is_url(self._where)
        self._trust = webhook_trust(core.config) if is_fetched else None  # here, since it takes the loop 20 ms
        self._lookups = NameLookups()
        self._wanted = asyncio.Event()
        self._refresh_s = core.config.oidc_refresh_ms / 1000
        self._stamp: tuple[int, ...] = ()
        self._problem = ""
        self._fetched_s = core.steady_ms() / 1000
        """Time of the last fetch that was a success."""
        self._looks = {"ok": 0, "failed": 0}
        self._task = core.background.task("issuer-keys", "look at the keys of the issuer", self._round)
        if self._issuer is not None:
            self._issuer.on_wanted = self._wanted.set
        core.metrics.add_gauges(self._counters)

    def start(self) -> None:
        if self._issuer is not None:
            self._task.start()

    async def stop(self) -> None:
        await self._task.stop()
        self._threads.stop()

    async def look(self) -> None:
        """Use the keys if they can be fetched or, in a file, were changed. An error is noted for `conditions`, and
        logged when it is another one.
        """
        issuer = self._issuer
        if issuer is None:
            return
        issuer.begin_look()
        try:
            keys = await (self._fetch() if is_url(self._where) else self._read())
        except FetchFailed as error:
            self._looks["failed"] += 1
            if str(error) != self._problem:
                logger.error("the keys of %s are not renewed: %s", issuer.name, error)
            self._problem = str(error)
            if isinstance(error, KeysWithdrawn):
                self._withdraw(issuer)
            elif is_url(self._where) and self._age_s() > KEYS_KEPT_S and issuer.has_keys:
                logger.error("the keys of %s are too old to be used any longer", issuer.name)
                issuer.forget()
            return
        if keys is None:
            issuer.settle()
            return
        self._looks["ok"] += 1
        self._problem = ""
        self._fetched_s = self._core.steady_ms() / 1000
        issuer.use(keys)

    def _withdraw(self, issuer: Issuer) -> None:
        """Trust no key any more: what the issuer has answered, or what is in its file, names none."""
        from cluster.process.key_set import KeySet

        self._fetched_s = self._core.steady_ms() / 1000
        issuer.use(KeySet({}))

    def conditions(self) -> Iterator[Condition]:
        """Yield an alarm while the keys cannot be renewed."""
        if self._problem and self._issuer is not None:
            consequence = (
                "this node goes on with the former keys, for a day at most, and with those of a file until it ends"
                if self._issuer.has_keys
                else "this node judges no token of the issuer"
            )
            yield Condition(
                "oidc_keys_not_renewed",
                "warning",
                f"the keys of {self._issuer.name} cannot be renewed: {self._problem}; {consequence}",
            )

    async def _round(self) -> float:
        self._wanted.clear()
        await self.look()
        if not is_url(self._where):
            return FILE_INTERVAL_S
        soonest_s = self._refresh_s / SOONER_DIVISOR
        if not self._problem:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._refresh_s):
                    await asyncio.sleep(soonest_s)
                    await self._wanted.wait()
            return 0.0
        return soonest_s

    def _age_s(self) -> float:
        return self._core.steady_ms() / 1000 - self._fetched_s

    async def _fetch(self) -> "KeySet":
        """Return the keys at the URL. Raises FetchFailed."""
        timeout = aiohttp.ClientTimeout(total=FETCH_TIMEOUT_S)
        connector = aiohttp.TCPConnector(ssl=self._trust or True, resolver=self._lookups, use_dns_cache=False)
        session = aiohttp.ClientSession(
            timeout=timeout,
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=connector,
            auto_decompress=False,  # a small answer could unpack to a large one
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
        )
        try:
            async with session, session.get(self._where, allow_redirects=False) as response:
                if response.status != 200:
                    raise FetchFailed(f"{self._where} answers {response.status}, not 200; redirects are not followed")
                content = await _read(response)
        except TimeoutError:
            raise FetchFailed(f"{self._where} does not answer within {FETCH_TIMEOUT_S:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise FetchFailed(f"{self._where}: {' '.join(str(error).split())[:200] or type(error).__name__}") from None
        return await self._parsed(content)

    async def _parsed(self, content: bytes) -> "KeySet":
        from cluster.process.key_set import KeySetError, NoUsableKey, parse_key_set

        algorithms = self._core.config.oidc_algorithms
        try:
            return await self._threads.run(lambda: parse_key_set(content, algorithms))
        except NoUsableKey as error:
            raise KeysWithdrawn(f"{self._where}: {error}") from None
        except KeySetError as error:
            raise FetchFailed(f"{self._where}: {error}") from None

    async def _read(self) -> "KeySet | None":
        """Return the keys in the file; None when it was not changed since the last look. Raises FetchFailed."""
        from cluster.process.key_set import KeySetError, NoUsableKey, read_key_set

        path, algorithms = self._where, self._core.config.oidc_algorithms
        stamp = await self._threads.run(lambda: stamp_of(path))
        if stamp == self._stamp:
            return None
        try:
            keys = await self._threads.run(lambda: read_key_set(path, algorithms))
        except NoUsableKey as error:
            raise KeysWithdrawn(f"{path}: {error}") from None
        except KeySetError as error:
            raise FetchFailed(f"{path}: {error}") from None
        self._stamp = stamp  # what could not be read is read again, though it has not changed
        return keys

    def _counters(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "keelmq_oidc_key_looks", "Looks at the keys of the issuer of people's tokens", labels=["outcome"]
        )
        for outcome, count in self._looks.items():
            family.add_metric([outcome], count)
        yield family


async def _read(response: aiohttp.ClientResponse) -> bytes:
    from cluster.process.key_set import KEY_SET_BYTES_MAX

    content = bytearray()
    async for part in response.content.iter_any():
        content += part
        if len(content) > KEY_SET_BYTES_MAX:
            raise FetchFailed(f"{response.url} answers with more than {KEY_SET_BYTES_MAX} bytes")
    return bytes(content)
