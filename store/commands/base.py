"""What all commands share.

A command is a msgpack array; its first element, the tag, is never reused. A field may be appended with a default, which
older entries then read as, and a feature level (store/features.py); a field is never removed, reordered or given
another meaning, and more elements than are known are an error.
"""

import msgspec


class CommandBase(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True, tag_field="command"):
    """Base of every command."""
