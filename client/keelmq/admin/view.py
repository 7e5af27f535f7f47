"""The base of all answers of `Admin`, and the conversion of JSON documents to them."""

from typing import TypeVar

import msgspec

from keelmq.errors import Corrupt

Json = dict[str, object]


class View(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Base class of all answers of `Admin`, and of their parts.

    Fields that this version of the SDK does not know are ignored; optional fields that the broker leaves out have their
    default.
    """

    @property
    def document(self) -> Json:
        """The JSON object that the broker sent, including fields that this version of the SDK does not know.

        Only the objects that `Admin` returns, alone or in a list, keep it. For parts of such an object, and for objects
        that a program makes, it is made from the fields of the struct.
        """
        kept: Json | None = self.__dict__.get("_document")
        if kept is not None:
            return kept
        made: Json = msgspec.json.decode(msgspec.json.encode(self))
        return made


V = TypeVar("V", bound=View)


def view_of(kind: type[V], document: object) -> V:
    """Convert the JSON object of an answer to `kind`, which keeps it as its document.

    Raises Corrupt (`invalid_response`) when the object does not follow the contract.
    """
    try:
        view = msgspec.convert(document, kind)
    except (ValueError, RecursionError) as exc:
        raise Corrupt("invalid_response", f"the answer does not follow the contract: {exc}") from exc
    view.__dict__["_document"] = document
    return view


def views_of(kind: type[V], document: Json, name: str) -> list[V]:
    """Convert each object of the list `name` of an answer. Raises Corrupt (`invalid_response`) as view_of does."""
    listed = document.get(name)
    if not isinstance(listed, list):
        raise Corrupt("invalid_response", f"the answer does not follow the contract: `{name}` is not a list")
    return [view_of(kind, each) for each in listed]
