"""Requests drawn from a node's own description: mostly valid, often a little wrong, sometimes nothing like it."""

from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec
from crc32c import crc32c
from hypothesis import strategies as st

from tests.fuzz.mutation import EDGES, damaged, plain_values

Schema = dict[str, Any]

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
# Few names, so that requests meet the objects of earlier ones; by the name of the parameter or member.
NAMES: Final = {
    "topic": ("orders", "payments"),
    "topics": ("orders", "payments"),
    "queue": ("0", "1"),
    "group": ("g", "h"),
    "producer_group": ("g", "h"),
    "transaction_id": ("t-1", "t-2", "t-3"),
    "batch_id": ("b-1", "b-2", "b-3", "b-4"),
    "member_id": ("m-1", "m-2"),
    "message_id": ("b-1-0", "b-2-1", "t-1-0", "id-1"),
    "source": ("g", "h"),
    "check_url": ("http://127.0.0.1:1/check",),
}
OTHER_NAMES: Final = ("a", "key-1", "1")
ODD_NAMES: Final = (
    "",
    ".",
    "..",
    "a b",
    "é",
    "a/b",
    "a\n",
    "{}",
    "x" * 300,
    "\0",
    "%2e",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "1024",
)
BLOCK: Final = msgspec.msgpack.encode([[b"body"], [b"other", "tag"]])
WAIT_MS_MAX: Final = 3
"""Maximum wait in a request: longer waits would only test the long poll."""
LONGEST_WAIT_MS: Final = 30_000
"""Longest wait that the broker accepts."""
_NOT_IN_A_SEGMENT: Final = frozenset("/{}")


class Call(NamedTuple):
    method: str
    template: str
    path: str
    body: bytes | None
    headers: dict[str, str]
    odd_path: bool
    """True when a path parameter does not stay in its segment: another route, or none, may be meant."""


class Values:
    """Strategies for the values that schemas describe. With `odd`, they contain texts that are no valid names."""

    def __init__(self, root: Schema, *, odd: bool) -> None:
        self._root = root
        self._odd = odd

    def names(self, what: str) -> st.SearchStrategy[str]:
        known = st.sampled_from(NAMES.get(what, OTHER_NAMES))
        return known | st.sampled_from(ODD_NAMES) | st.text(max_size=8) if self._odd else known

    def of(self, schema: Schema, name: str = "") -> st.SearchStrategy[Any]:
        """Return the values of a schema; `name` is that of the described parameter or member."""
        if "$ref" in schema:
            return self.of(self._root["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
        if "anyOf" in schema:
            return st.one_of([self.of(option, name) for option in schema["anyOf"]])
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        match schema.get("type"):
            case "object":
                return self._objects(schema)
            case "array":
                return st.lists(self.of(schema["items"], name), min_size=schema.get("minItems", 0), max_size=3)
            case "integer":
                return _integers(schema)
            case "string" if schema.get("contentEncoding"):
                return st.just(BLOCK) | st.binary(max_size=20) if self._odd else st.just(BLOCK)
            case "string":
                return self.names(name)
            case "boolean":
                return st.booleans()
            case "null":
                return st.none()
        return plain_values()

    def _objects(self, schema: Schema) -> st.SearchStrategy[dict[str, Any]]:
        properties: Schema = schema.get("properties", {})
        if not properties:
            return st.dictionaries(self.names(""), self.of(schema["additionalProperties"]), max_size=3)
        members = {name: self.of(described, name) for name, described in properties.items()}
        required = schema.get("required", ())
        return st.fixed_dictionaries(
            {name: members[name] for name in required},
            optional={name: member for name, member in members.items() if name not in required},
        ).map(_with_right_checksum)


def _with_right_checksum(members: dict[str, Any]) -> dict[str, Any]:
    # Drawn at random it would never be right, and nothing behind the check would be reached.
    if isinstance(members.get("block"), bytes) and "crc32c" in members and members["crc32c"] % 4:
        members["crc32c"] = crc32c(members["block"])
    return members


def _integers(schema: Schema) -> st.SearchStrategy[int]:
    least = schema.get("minimum", 0)
    most = schema.get("maximum", schema.get("exclusiveMaximum", 1 << 63) - 1)
    near = st.integers(least, min(most, least + 5))
    return near | near | st.sampled_from((least, most)) | st.integers(least, most)


@st.composite
def spoiled(draw: st.DrawFn, described: st.SearchStrategy[Any]) -> Any:
    """Draw a value that the schema describes, or nearly."""
    value = draw(described)
    wrong = draw(st.integers(0, 5))
    if isinstance(value, dict) and value and wrong < 2:
        name = draw(st.sampled_from(sorted(value)) | st.text(max_size=5))
        value[name] = draw(st.sampled_from(EDGES) | st.just(-1) | plain_values())
    elif isinstance(value, dict) and value and wrong == 2:
        del value[draw(st.sampled_from(sorted(value)))]
    elif wrong == 3:
        value = draw(plain_values())
    return value


@st.composite
def calls(draw: st.DrawFn, root: Schema) -> Call:
    """Draw a call; two of three are as described."""
    template = draw(st.sampled_from(sorted(root["paths"])))
    method = draw(st.sampled_from(sorted(root["paths"][template])))
    operation = root["paths"][template][method]
    odd = draw(st.integers(0, 2)) == 0
    make = Values(root, odd=odd)
    path, odd_path = template, False
    query: list[tuple[str, str]] = []
    headers: dict[str, str] = {}
    for parameter in operation["parameters"]:
        name, schema = parameter["name"], parameter["schema"]
        if parameter["in"] == "path":
            text = draw(make.names(name))
            path = path.replace(f"{{{name}}}", quote(text, safe=""))
            odd_path = odd_path or text in ("", ".", "..") or not _NOT_IN_A_SEGMENT.isdisjoint(text)
        elif parameter["in"] == "header":
            if draw(st.booleans()):
                headers[name] = draw(st.sampled_from(("key-1", "key-2", "no key", "x" * 65)))
        elif parameter["required"] or draw(st.integers(0, 2)) == 0:
            described = make.of(schema, name)
            value = draw(spoiled(described) if odd else described)
            if value is not None:
                query.append((name, _short(_shown(value)) if name == "wait_ms" else _shown(value)))
    if odd and query and draw(st.booleans()):
        query.append(draw(st.sampled_from([query[0], ("more", "1")])))
    path += "?" + urlencode(query) if query else ""
    body = None
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]
        media = draw(st.sampled_from(sorted(content)))
        body = draw(_bodies(make.of(content[media]["schema"]), media, odd=odd))
        headers["Content-Type"] = draw(st.sampled_from((media, JSON, MSGPACK, "text/plain", ""))) if odd else media
        headers["Accept"] = media
    return Call(method.upper(), template, path, body, headers, odd_path)


def _bodies(described: st.SearchStrategy[Any], media: str, *, odd: bool) -> st.SearchStrategy[bytes | None]:
    encode = msgspec.msgpack.encode if media == MSGPACK else _json
    right = described.map(_impatient).map(encode)
    if not odd:
        return right
    return st.one_of(
        spoiled(described).map(_impatient).map(encode), right.flatmap(damaged), st.binary(max_size=30), st.none()
    )


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _impatient(body: Any) -> Any:
    """Shorten the wait of a long poll in a body; a wait beyond the limit is left, since it is refused."""
    if isinstance(body, dict) and type(wait_ms := body.get("wait_ms")) is int and wait_ms <= LONGEST_WAIT_MS:
        return {**body, "wait_ms": min(wait_ms, WAIT_MS_MAX)}
    return body


def _short(value: str) -> str:
    return str(min(int(value[:4]), WAIT_MS_MAX)) if value.isascii() and value.isdigit() else value
