"""The users of the cluster: replicated, so every node knows the same credentials and permissions.

All users are held in memory and written through to the index. The limits on a user's size are checked where a command
is proposed (cluster/operations/user_api.py); apply accepts every command in the log.
"""

from typing import NamedTuple

import msgspec

from store.commands.users import DeleteUser, PutUser, Rule, Token, UserDeleted, UserPut
from store.errors import CERTIFICATE_TAKEN, USER_CHANGED, USER_NOT_FOUND, Refused
from store.index import keys
from store.index.index import Index
from store.messages.sorted_names import SortedNames


class User(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A user as the index holds it. `revision` is the index of the entry that changed it last."""

    user: str
    revision: int
    certificates: tuple[str, ...]
    tokens: tuple[Token, ...]
    rules: tuple[Rule, ...]


class TokenOwner(NamedTuple):
    """A token with the user whose token it is."""

    user: User
    token: Token


_decode = msgspec.msgpack.Decoder(User).decode
_encode = msgspec.msgpack.Encoder().encode


class Users:
    """All users, found by name, by the SHA-256 of a token and by the name in a certificate."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._users: dict[str, User] = {}
        self._names = SortedNames()
        self._of_folded: dict[str, set[str]] = {}
        """Names by their form without case."""
        self._of_token: dict[bytes, TokenOwner] = {}
        self._of_certificate: dict[str, User] = {}
        self.version = 0
        """A number that changes with each change of a user, in this process only."""
        for _, value in index.scan(keys.USER, keys.after(keys.USER)):
            self._hold(_decode(value))

    def __len__(self) -> int:
        return len(self._users)

    def get(self, name: str) -> User | None:
        return self._users.get(name)

    def in_other_case(self, name: str) -> str | None:
        """Return the name of a user that differs from this name only in case; None if there is none."""
        return min(self._of_folded.get(name.casefold(), set()) - {name}, default=None)

    def after(self, name: str | None, limit: int) -> list[User]:
        """Return at most `limit` users whose names follow `name`, in order of their names."""
        return [self._users[each] for each in self._names.after(name, limit)]

    def of_token(self, sha256: bytes) -> TokenOwner | None:
        """Return the owner of the token with this SHA-256, expired or not; None when nobody has it."""
        return self._of_token.get(sha256)

    def of_certificate(self, name: str) -> User | None:
        """Return the user to whom certificates with this name belong."""
        return self._of_certificate.get(name)

    def put(self, command: PutUser, index: int) -> UserPut:
        """Create or replace a user. Refused: user_changed, certificate_taken."""
        former = self._users.get(command.user)
        if command.replaces != (former.revision if former is not None else 0):
            raise Refused(USER_CHANGED, f"user {command.user!r} was changed at the same time; look, and send it again")
        for name in command.certificates:
            owner = self._of_certificate.get(name)
            if owner is not None and owner.user != command.user:
                raise Refused(CERTIFICATE_TAKEN, f"certificates named {name!r} belong to user {owner.user!r}")
        if former is not None:
            self._let_go(former)
        user = User(command.user, index, command.certificates, command.tokens, command.rules)
        self._hold(user)
        self._index.put(keys.user(user.user), _encode(user))
        return UserPut(index)

    def delete(self, command: DeleteUser) -> UserDeleted:
        """Delete a user with its tokens and permissions. Refused: user_not_found, user_changed."""
        user = self._users.get(command.user)
        if user is None:
            raise Refused(USER_NOT_FOUND, f"there is no user {command.user!r}; GET /v1/users lists them")
        if command.replaces not in (0, user.revision):
            raise Refused(USER_CHANGED, f"user {command.user!r} was changed at the same time; look, and send it again")
        self._let_go(user)
        self._index.delete(keys.user(user.user))
        return UserDeleted(user.user)

    def _hold(self, user: User) -> None:
        self.version += 1
        self._users[user.user] = user
        self._names.add(user.user)
        self._of_folded.setdefault(user.user.casefold(), set()).add(user.user)
        self._of_token.update({each.sha256: TokenOwner(user, each) for each in user.tokens})
        self._of_certificate.update(dict.fromkeys(user.certificates, user))

    def _let_go(self, user: User) -> None:
        self.version += 1
        del self._users[user.user]
        self._names.remove(user.user)
        alike = self._of_folded[user.user.casefold()]
        alike.remove(user.user)
        if not alike:
            del self._of_folded[user.user.casefold()]
        for token in user.tokens:
            self._of_token.pop(token.sha256, None)
        for name in user.certificates:
            self._of_certificate.pop(name, None)
