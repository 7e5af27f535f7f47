"""Asks every node of a cluster, each over a connection of its own, or one of them."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, NamedTuple, TypeVar

import typer

from keelmq.cli.operations.cluster import ask_all
from keelmq.cli.output import connection_to
from keelmq.errors import Conflict, KeelMQError, NotFound

if TYPE_CHECKING:
    from keelmq.admin import NodeCalls

T = TypeVar("T")

TIMEOUT_MS: Final = 5_000

OneNode = Annotated[
    int | None, typer.Option("--node", metavar="NODE_ID", help="Ask this node alone; default: every node.")
]


class OfNode(NamedTuple, Generic[T]):
    """The answer of a node, or the error with which asking it ended; `node_id` is None for a node that did not answer
    at all.
    """

    node_id: int | None
    url: str
    answer: T | None
    error: str = ""

    def document(self) -> dict[str, Any]:
        return {"node_id": self.node_id, "url": self.url, "error": self.error}


async def ask_each(
    servers: str, work: "Callable[[NodeCalls], Awaitable[T]]", node_id: int | None = None
) -> list[OfNode[T]]:
    """Return the answers of all nodes, or of the one node. Raises NotFound (`node_not_found`) when none of this id
    answers, and Conflict (`node_not_asked`) when that one cannot be asked.
    """
    import asyncio

    views = await ask_all(servers)
    found = [(None if each.status is None else each.status.node_id, each.url, each.error) for each in views]
    if node_id is None:
        return await asyncio.gather(*(_ask(servers, work, *each) for each in found))
    for each in found:
        if each[0] == node_id:
            one = await _ask(servers, work, *each)
            if one.answer is None:
                raise Conflict("node_not_asked", f"node {node_id}: {one.error}")
            return [one]
    raise NotFound("node_not_found", f"no node {node_id} answers; keelmq cluster status shows the nodes")


async def _ask(
    servers: str, work: "Callable[[NodeCalls], Awaitable[T]]", node_id: int | None, url: str, error: str
) -> OfNode[T]:
    from keelmq.admin import NodeCalls

    if node_id is None:
        return OfNode(None, url, None, error)
    connection = connection_to(servers, TIMEOUT_MS, node=url)
    try:
        return OfNode(node_id, url, await work(NodeCalls(connection)))
    except KeelMQError as exc:
        return OfNode(node_id, url, None, f"{exc.detail} ({exc.code})")
    finally:
        connection.close()
