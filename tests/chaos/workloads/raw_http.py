"""Sends raw HTTP as a client without an SDK: JSON, an Idempotency-Key, and repetition until there is an answer."""

import asyncio
from typing import Any, Final

import aiohttp
import msgspec

from tests.chaos.ledger import Place
from tests.chaos.message import body_of
from tests.chaos.violations import Kind
from tests.chaos.workloads.worker import PLAIN_TOPIC, Field, paced, write_operation

MESSAGES: Final = 10
TRY_TIMEOUT_S: Final = 2.0
BUDGET_S: Final = 8.0
PAUSE_S: Final = 0.1
TWICE_SHARE: Final = 0.15
"""Share of requests that are sent twice at the same time, to two nodes."""
CERTAIN_REFUSALS: Final = frozenset({"no_leader", "overloaded", "disk_full", "not_ready"})
POSSIBLE: Final = frozenset({"unknown_outcome", "request_timeout"})


class RawHttp:
    """Sends requests of ten messages with one key each. Every answer to a key must be the same."""

    def __init__(self, field: Field, interval_s: float) -> None:
        self._field = field
        self._interval_s = interval_s
        self._ledger = field.book.worker("http")
        self._rng = field.rng("http")

    async def run(self, stop: asyncio.Event) -> None:
        timeout = aiohttp.ClientTimeout(total=TRY_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            await paced(lambda: self._send(session, stop), self._interval_s, stop)

    async def _send(self, session: aiohttp.ClientSession, stop: asyncio.Event) -> None:
        ledger, field = self._ledger, self._field
        begin_s = field.history.now_s()
        first = ledger.begin(MESSAGES)
        key = f"{field.run_id}-{ledger.worker}-{first}"
        messages = [{"body": body_of(each).decode()} for each in ledger.numbers(first, MESSAGES)]
        body = msgspec.json.encode({"messages": messages})
        tries = 2 if self._rng.random() < TWICE_SHARE else 1
        answers = await asyncio.gather(*(self._until_answered(session, key, body, stop) for _ in range(tries)))
        given = [answer for answer, _ in answers if answer is not None]
        places = {tuple((each["queue"], each["offset"]) for each in answer["results"]) for answer in given}
        if len(places) > 1:
            field.violations.add(Kind.MOVED, f"Idempotency-Key {key} has two answers: {places}")
        if sum(not answer["results"][0]["duplicate"] for answer in given) > 1:
            field.violations.add(Kind.DUPLICATED, f"Idempotency-Key {key} was appended twice by its own words")
        if given:
            self._acked(first, given, begin_s)
        elif any(possibly for _, possibly in answers):
            write_operation(field, ledger, first, MESSAGES, begin_s, "unknown")
        else:
            ledger.failed(first, MESSAGES)
            write_operation(field, ledger, first, MESSAGES, begin_s, "fail")

    def _acked(self, first: int, given: list[dict[str, Any]], begin_s: float) -> None:
        results = given[0]["results"]
        offsets = [each["offset"] for each in results]
        if offsets != list(range(offsets[0], offsets[0] + MESSAGES)):
            self._field.violations.add(Kind.CONTRACT, f"one request was stored at the offsets {offsets}")
        original = [answer["receipt"]["index"] for answer in given if not answer["results"][0]["duplicate"]]
        place = Place(PLAIN_TOPIC, results[0]["queue"], offsets[0])
        self._ledger.acked(first, MESSAGES, place, original[0] if original else 0)
        write_operation(
            self._field, self._ledger, first, MESSAGES, begin_s, "ok", queue=place.queue, offset=place.offset
        )

    async def _until_answered(
        self, session: aiohttp.ClientSession, key: str, body: bytes, stop: asyncio.Event
    ) -> tuple[dict[str, Any] | None, bool]:
        """Return the answer, or None and whether any try may have stored something."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + BUDGET_S
        possibly = False
        url = self._rng.choice(self._field.urls)
        while loop.time() < until_s:
            try:
                answer, refused = await self._post(session, url, key, body)
                if answer is not None:
                    return answer, True
                possibly = possibly or not refused
            except aiohttp.ClientConnectorError:
                pass  # no connection: nothing was sent
            except (aiohttp.ClientError, OSError, TimeoutError):
                possibly = True
            if stop.is_set() and not possibly:
                break
            url = self._rng.choice(self._field.urls)
            await asyncio.sleep(PAUSE_S)
        return None, possibly

    async def _post(
        self, session: aiohttp.ClientSession, url: str, key: str, body: bytes
    ) -> tuple[dict[str, Any] | None, bool]:
        """Return the results; or None and whether the request was certainly refused. Redirects to the leader are
        followed.
        """
        headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
        async with session.post(f"{url}/v1/topics/{PLAIN_TOPIC}/messages", data=body, headers=headers) as response:
            answer: dict[str, Any] = msgspec.json.decode(await response.read(), type=dict)
            if response.status == 200:
                return answer, False
            code = answer.get("code", "")
            if code not in CERTAIN_REFUSALS | POSSIBLE:
                self._field.violations.add(Kind.CONTRACT, f"HTTP {response.status} {code}: {answer.get('detail')}")
            return None, code in CERTAIN_REFUSALS
