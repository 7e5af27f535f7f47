"""Administration calls about users, and their answers."""

from collections.abc import Sequence

import msgspec

from keelmq.admin.calls import AdminCalls, query_of, quoted
from keelmq.admin.view import View
from keelmq.transport.connection import Connection


class Rule(View, frozen=True, kw_only=True):
    """A permission: allows or denies actions on a resource, `KIND:NAME`, `KIND:PREFIX*` or `*`."""

    actions: tuple[str, ...]
    resource: str
    effect: str = "allow"
    networks: tuple[str, ...] = ()


class TokenInfo(View, frozen=True, kw_only=True):
    """A token of a user, without its secret. `expires_at_ms` is None when it does not expire."""

    token_id: str
    created_at_ms: int
    expires_at_ms: int | None = None


class UserInfo(View, frozen=True, kw_only=True):
    """A user. `revision` changes with every change of the user."""

    user: str
    revision: int
    certificates: tuple[str, ...] = ()
    tokens: tuple[TokenInfo, ...] = ()
    rules: tuple[Rule, ...] = ()


class NewToken(View, frozen=True, kw_only=True):
    """A token that was just made. No other answer shows `token` again."""

    token: str
    token_id: str
    expires_at_ms: int | None = None


class Verdict(View, frozen=True, kw_only=True):
    """Answer whether an action is allowed, and the rule that decides it; None when no rule matches."""

    allowed: bool
    rule: Rule | None = None


class PrincipalInfo(View, frozen=True, kw_only=True):
    """The client as the cluster knows it: its principal, the address from which it comes, and the actions that it may
    do on the resource that was asked for, if any.
    """

    principal: str
    address: str
    actions: tuple[str, ...] = ()


class PutUser(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The parts of a user that are replaced; the others are left out."""

    rules: Sequence[Rule] | None = None
    certificates: Sequence[str] | None = None
    revision: int | None = None


class MakeToken(msgspec.Struct, omit_defaults=True):
    expires_in_ms: int | None = None


class Users:
    """Shows and changes users over `connection`, which the caller owns. Needs the permission `admin` on the cluster."""

    def __init__(self, connection: Connection) -> None:
        self._calls = AdminCalls(connection)

    async def principal(self, *, resource: str | None = None) -> PrincipalInfo:
        """Return as whom the cluster knows this client, and what it may do on `resource`. Every principal may ask."""
        query = "" if resource is None else f"?{query_of({'resource': resource})}"
        return await self._calls.view(PrincipalInfo, "GET", f"/v1/principal{query}")

    async def all(self) -> list[UserInfo]:
        """Return all users by name, fetched page by page."""
        return await self._calls.pages(UserInfo, "/v1/users", "users", {})

    async def get(self, user: str) -> UserInfo:
        """Return a user. Raises NotFound (`user_not_found`)."""
        return await self._calls.view(UserInfo, "GET", _path(user))

    async def put(
        self,
        user: str,
        *,
        rules: Sequence[Rule] | None = None,
        certificates: Sequence[str] | None = None,
        revision: int | None = None,
    ) -> UserInfo:
        """Create the user, or replace the given parts of one; durable on return.

        With `revision`, only a user with this revision is replaced, 0 being one that does not exist. Raises Conflict
        (`user_changed`) otherwise.
        """
        body = PutUser(rules=rules, certificates=certificates, revision=revision)
        return await self._calls.view(UserInfo, "PUT", _path(user), body)

    async def delete(self, user: str) -> None:
        """Delete the user; its tokens are not valid any more on return. Raises NotFound (`user_not_found`)."""
        await self._calls.connection.call("DELETE", _path(user))

    async def create_token(self, user: str, *, expires_in_ms: int | None = None) -> NewToken:
        """Make a token, which does not expire without `expires_in_ms`. Raises Conflict (`too_many_tokens`).

        A try whose answer was lost may have made a token that nobody knows: `get` shows it, `revoke_token` removes it.
        """
        path = f"{_path(user)}/tokens"
        return await self._calls.view(NewToken, "POST", path, MakeToken(expires_in_ms), tries=1)

    async def revoke_token(self, user: str, token_id: str) -> None:
        """Revoke a token; it is not valid any more on return."""
        await self._calls.connection.call("DELETE", f"{_path(user)}/tokens/{quoted(token_id)}")

    async def explain(self, user: str, action: str, resource: str, *, address: str = "") -> Verdict:
        """Return whether the user may do this from the client address, and by which rule."""
        query = query_of({"action": action, "resource": resource, "address": address})
        return await self._calls.view(Verdict, "GET", f"{_path(user)}/explain?{query}")


def _path(user: str) -> str:
    return f"/v1/users/{quoted(user)}"
