"""Checks a JSON value against the part of JSON Schema that /openapi.json uses; undescribed members are violations too.

Written out here because the schema under test must not be read by the library that made it.
"""

from typing import Any

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def violations(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "$") -> list[str]:
    """Return the parts of `value` that do not follow `schema`; empty when every part does."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return violations(value, root["components"]["schemas"][name], root, at)
    if "anyOf" in schema:
        tried = [violations(value, option, root, at) for option in schema["anyOf"]]
        return [] if any(not found for found in tried) else [f"{at}: none of {len(tried)} alternatives", *tried[0]]
    if "allOf" in schema:
        # A problem: the described members, with more that depend on its code.
        return [
            found
            for part in schema["allOf"]
            for found in violations(value, part, root, at)
            if "not described" not in found
        ]
    found: list[str] = []
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: {value!r} is none of {schema['enum']}")
    kind = schema.get("type")
    if kind is not None:
        is_bool_for_number = isinstance(value, bool) and kind in ("integer", "number")
        if is_bool_for_number or not isinstance(value, _TYPES[kind]):
            return [*found, f"{at}: {value!r} is no {kind}"]
    if isinstance(value, dict):
        found += _object_violations(value, schema, root, at)
    elif isinstance(value, list):
        items = schema.get("items", {})
        for position, item in enumerate(value):
            found += violations(item, items, root, f"{at}[{position}]")
    elif isinstance(value, int | float) and value < schema.get("minimum", value):
        found.append(f"{at}: {value} is below {schema['minimum']}")
    return found


def _object_violations(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], at: str) -> list[str]:
    if schema.keys() <= {"type", "description", "title"}:
        return []  # any object
    properties = schema.get("properties", {})
    found = [f"{at}.{name}: missing" for name in schema.get("required", ()) if name not in value]
    for name, member in value.items():
        if name in properties:
            found += violations(member, properties[name], root, f"{at}.{name}")
        elif isinstance(schema.get("additionalProperties"), dict):
            found += violations(member, schema["additionalProperties"], root, f"{at}.{name}")
        else:
            found.append(f"{at}.{name}: not described")
    return found
