"""The base of all commands.

A command is a msgpack array; its first element, the tag, is never reused. A new field may only be appended, with a
default that stands for the field in older entries, and with a feature level (store/features.py). A field is never
removed, reordered or given another meaning. Unknown surplus elements are an error.
"""

import msgspec


class CommandBase(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, tag_field="command"):
    """Base class of every command."""
