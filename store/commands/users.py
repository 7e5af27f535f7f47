"""Commands about users, their credentials and their permissions, each with its result.

A user is replaced as a whole: the command names the revision that it replaces, so of two changes at the same time one
is refused and nothing is lost. Tokens are stored as their SHA-256 only.
"""

from typing import Literal

import msgspec

from store.commands.base import CommandBase

Effect = Literal["allow", "deny"]


class Token(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A bearer token of a user. `expires_at_ms` is in ms since 1970; 0: it does not expire."""

    token_id: str
    sha256: bytes
    created_at_ms: int
    expires_at_ms: int


class Rule(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A permission: it allows or denies the actions on the resources that match.

    `resource` is `KIND:NAME`, `KIND:PREFIX*` or `*`. `networks` are in CIDR notation; without any, the rule holds for
    every client address.
    """

    effect: Effect
    actions: tuple[str, ...]
    resource: str
    networks: tuple[str, ...] = ()


class PutUser(CommandBase, frozen=True, tag=29):
    """Create a user (`replaces` is 0), or replace the user whose revision is `replaces`."""

    user: str
    certificates: tuple[str, ...]
    tokens: tuple[Token, ...]
    rules: tuple[Rule, ...]
    replaces: int


class UserPut(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    revision: int
    """Index of the entry that changed the user last."""


class DeleteUser(CommandBase, frozen=True, tag=30):
    user: str
    replaces: int = 0
    """Revision that the user must have; 0: any."""


class UserDeleted(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    user: str
