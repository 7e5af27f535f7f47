"""Requests of `Admin`: their paths and queries, and their answers as views, page by page where there are pages."""

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from keelmq import wire
from keelmq.admin.view import Json, View, view_of, views_of
from keelmq.limits import check_group, check_message_id, check_topic, no_text
from keelmq.transport.connection import Connection

V = TypeVar("V", bound=View)


class AdminCalls:
    """Sends requests over `connection`, which the caller owns. Every method raises the errors of Connection.call."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def document(self, method: str, target: str, body: msgspec.Struct | None = None, **options: Any) -> Json:
        """Return the JSON object of the answer. `options` are those of Connection.call."""
        data = b"" if body is None else wire.encode_json(body)
        response = await self.connection.call(method, target, body=data, **options)
        return wire.decode(dict, response.body, response.headers.get("content-type", ""))

    async def view(
        self, kind: type[V], method: str, target: str, body: msgspec.Struct | None = None, **options: Any
    ) -> V:
        """Like `document`, but return the answer as `kind`."""
        return view_of(kind, await self.document(method, target, body, **options))

    async def pages(
        self, kind: type[V], path: str, name: str, query: Mapping[str, str | int | None], **options: Any
    ) -> list[V]:
        """Return the entries of all pages of a list. A broker without paging sends the whole list as the first page."""
        found: list[V] = []
        asked = dict(query)
        while True:
            given = query_of(asked)
            page = await self.document("GET", f"{path}?{given}" if given else path, **options)
            found += views_of(kind, page, name)
            following = page.get("next")
            if not isinstance(following, str | int):
                return found
            asked["after"] = following


def topic_path(topic: str) -> str:
    check_topic(topic)
    return f"/v1/topics/{quote(topic, safe='')}"


def message_path(message_id: str, topic: str | None, what: str = "") -> str:
    check_message_id(message_id)
    if topic is not None:
        check_topic(topic)
    query = f"?{query_of({'topic': topic})}" if topic is not None else ""
    return f"/v1/messages/{quote(message_id, safe='')}{what}{query}"


def group_path(group: str) -> str:
    check_group(group)
    return f"/v1/groups/{quote(group, safe='')}"


def query_of(values: Mapping[str, str | int | None]) -> str:
    """Return the query string of the values that are not None. Raises InvalidRequest for what is no text."""
    try:
        return urlencode({name: value for name, value in values.items() if value is not None})
    except UnicodeEncodeError as exc:
        raise no_text(exc) from None


def quoted(name: str) -> str:
    """Return the name as a part of a path. Raises InvalidRequest for what is no text."""
    try:
        return quote(name, safe="")
    except UnicodeEncodeError as exc:
        raise no_text(exc) from None
