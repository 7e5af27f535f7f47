"""A scripted HTTP side for tests of what the SDK does with answers: no sockets, no timing of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec

from keelmq.blocks.compression import unpack
from keelmq.transport.http1 import HttpResponse, Origin
from keelmq.wire import MSGPACK
from tests.patience import PATIENCE_S

SERVERS = ["http://n1:1", "http://n2:1", "http://n3:1"]


class Request(NamedTuple):
    node: str
    method: str
    target: str
    headers: str
    body: bytes
    timeout_s: float

    def msgpack(self) -> Any:
        return msgspec.msgpack.decode(self.body)

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


Script = Callable[[Request], HttpResponse | Awaitable[HttpResponse]]


class ScriptedTransport:
    """A transport that answers each request by `script` (which may raise ConnectFailed or ExchangeFailed) and remembers
    the request.

    The question for the leader is answered with "none" unless the script wants to (`answers_cluster`).
    """

    def __init__(self, script: Script, *, answers_cluster: bool = False) -> None:
        self.script = script
        self.answers_cluster = answers_cluster
        self.requests: list[Request] = []
        self.forgotten: list[str] = []
        self.closed = False

    async def request(
        self, origin: Origin, method: str, target: str, headers: str, body: bytes, timeout_s: float
    ) -> HttpResponse:
        request = Request(origin.host, method, target, headers, body, timeout_s)
        if target == "/v1/cluster" and not self.answers_cluster:
            return json_answer({"leader_url": None})
        self.requests.append(request)
        if "/checks?" in target:
            await asyncio.sleep(0)  # a poll that is answered at once is asked again at once: others have to run too
        answer = self.script(request)
        return answer if isinstance(answer, HttpResponse) else await answer

    def forget(self, origin: Origin) -> None:
        self.forgotten.append(origin.host)

    def close(self) -> None:
        self.closed = True


def json_answer(value: Any, status: int = 200, **headers: str) -> HttpResponse:
    return HttpResponse(status, {"content-type": "application/json", **headers}, msgspec.json.encode(value))


def msgpack_answer(value: Any, status: int = 200) -> HttpResponse:
    return HttpResponse(status, {"content-type": MSGPACK}, msgspec.msgpack.encode(value))


def problem(status: int, code: str, retry_after: str = "", **extra: Any) -> HttpResponse:
    headers = {"content-type": "application/problem+json"}
    if retry_after:
        headers["retry-after"] = retry_after
    body = {"type": "about:blank", "title": code, "status": status, "code": code, "detail": f"about {code}", **extra}
    return HttpResponse(status, headers, msgspec.json.encode(body))


def redirect(url: str) -> HttpResponse:
    return HttpResponse(307, {"location": url}, b"")


RECEIPT = {"term": 1, "index": 7, "timestamp_ms": 1_700_000_000_000, "durable_on": [1, 2]}


class Appender:
    """Answers to produce requests as a broker would give them: offsets are dense per queue, and each batch id is
    appended once.
    """

    def __init__(self, queues: int = 4) -> None:
        self.queues = queues
        self.stored: dict[int, list[bytes]] = {queue: [] for queue in range(queues)}
        self.batches: dict[str, dict[str, Any]] = {}

    def __call__(self, request: Request) -> HttpResponse:
        if request.method == "GET":
            return json_answer({"topic": "t", "queues": self.queues, "type": "any", "retention_ms": 1})
        return msgpack_answer({"results": [self.append(b) for b in request.msgpack()["batches"]], "receipt": RECEIPT})

    def append(self, batch: dict[str, Any]) -> dict[str, Any]:
        known = self.batches.get(batch["batch_id"])
        if known is not None:
            return {**known, "duplicate": True}
        queue = batch.get("queue") or 0
        block, size = batch["block"], batch.get("uncompressed_bytes")
        bodies = [message[0] for message in msgspec.msgpack.decode(block if size is None else unpack(block, size))]
        result = {
            "batch_id": batch["batch_id"],
            "queue": queue,
            "offset": len(self.stored[queue]),
            "count": len(bodies),
            "duplicate": False,
        }
        self.stored[queue] += bodies
        self.batches[batch["batch_id"]] = result
        return result


class Gate:
    """A gate that holds answers back until the test releases them, one by one or all."""

    def __init__(self, script: Callable[[Request], HttpResponse]) -> None:
        self._script = script
        self._waiting: list[tuple[asyncio.Future[None], Request]] = []
        self.arrived = asyncio.Event()

    @property
    def held(self) -> list[Request]:
        return [request for _, request in self._waiting]

    async def __call__(self, request: Request) -> HttpResponse:
        released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((released, request))
        self.arrived.set()
        await released
        return self._script(request)

    async def wait(self, count: int) -> None:
        """Wait until `count` requests are held."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self._waiting) < count:
                self.arrived.clear()
                await self.arrived.wait()

    def release(self) -> None:
        """Release the oldest answer."""
        released, _ = self._waiting.pop(0)
        released.set_result(None)
