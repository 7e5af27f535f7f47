"""Shell completion of names: asks the cluster, and gives up after 2 s."""

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Final

import typer

from keelmq.cli.output import DEFAULT_SERVERS, connection_to
from keelmq.errors import KeelMQError

if TYPE_CHECKING:
    from keelmq.admin import Admin

COMPLETION_TIMEOUT_MS: Final = 2_000


def _names(context: typer.Context, incomplete: str, ask: "Callable[[Admin], Awaitable[list[str]]]") -> list[str]:
    """Return the names that `ask` finds; none on an error, because a completing shell must not print errors."""
    import asyncio

    from keelmq.admin import Admin

    servers = context.params.get("servers") or os.environ.get("KEELMQ_SERVERS") or DEFAULT_SERVERS

    async def main() -> list[str]:
        connection = connection_to(servers, COMPLETION_TIMEOUT_MS)
        try:
            return await ask(Admin(connection))
        finally:
            connection.close()

    try:
        return [name for name in asyncio.run(main()) if name.startswith(incomplete)]
    except (KeelMQError, OSError, ValueError):
        return []


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    """Complete topic names; system topics only after a first character, since their prefix identifies them."""

    async def ask(admin: "Admin") -> list[str]:
        return [each.topic for each in await admin.topics(system=bool(incomplete))]

    return _names(context, incomplete, ask)


def group_names(context: typer.Context, incomplete: str) -> list[str]:
    async def ask(admin: "Admin") -> list[str]:
        return [each.group for each in await admin.groups()]

    return _names(context, incomplete, ask)


TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=topic_names, show_default=False)
]
GroupArgument = Annotated[
    str,
    typer.Argument(metavar="GROUP", help="Name of the consumer group.", autocompletion=group_names, show_default=False),
]
