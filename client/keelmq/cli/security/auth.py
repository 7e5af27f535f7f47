"""Commands of `keelmq auth`: users, their tokens and their permissions."""

from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from keelmq.cli.output import DEFAULT_SERVERS, AsJson, Servers, confirm, print_json, print_table, run, say, when
from keelmq.limits import TOKEN_EXPIRES_MS_MAX

if TYPE_CHECKING:
    from keelmq.admin.users import Rule, UserInfo, Users
    from keelmq.transport.connection import Connection

app = typer.Typer(no_args_is_help=True, help="Users, their tokens and permissions.")
user_app = typer.Typer(no_args_is_help=True, help="Create, list, show and delete users.")
token_app = typer.Typer(no_args_is_help=True, help="Make and revoke tokens.")
acl_app = typer.Typer(no_args_is_help=True, help="Allow and deny actions of a user.")
app.add_typer(user_app, name="user")
app.add_typer(token_app, name="token")
app.add_typer(acl_app, name="acl")

DAY_MS: Final = 86_400_000

UserName = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.", show_default=False)]
Resource = Annotated[
    str,
    typer.Argument(
        metavar="RESOURCE",
        help="topic:NAME, group:NAME, producer-group:NAME, cluster or log; NAME may be a PREFIX* or *; or just *.",
        show_default=False,
    ),
]
Action = Literal["send", "read", "describe", "create", "alter", "delete", "reset", "decide", "admin"]
Actions = Annotated[
    str,
    typer.Argument(
        metavar="ACTIONS",
        help="Comma-separated: send, read, describe, create, alter, delete, reset, decide, admin; or *.",
        show_default=False,
    ),
]
Networks = Annotated[
    list[str] | None, typer.Option("--network", metavar="CIDR", help="Only for clients there; may be repeated.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def _users(connection: "Connection") -> "Users":
    from keelmq.admin.users import Users

    return Users(connection)


@user_app.command(epilog="Example:  keelmq auth user create shop --certificate shop.example.com")
def create(
    user: UserName,
    certificate: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Common name of client certificates of the user.")
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Create a user, who may do nothing until `keelmq auth acl allow`."""
    made = run(servers, lambda it: _users(it).put(user, certificates=certificate or (), revision=0), as_json=as_json)
    _print_user(made, as_json)


@user_app.command("list", epilog="Example:  keelmq auth user list")
def list_users(servers: Servers = DEFAULT_SERVERS, as_json: AsJson = False) -> None:
    """List the users."""
    users = run(servers, lambda it: _users(it).all(), as_json=as_json)
    if as_json:
        print_json({"users": [each.document for each in users]})
        return
    rows = [(each.user, len(each.tokens), ", ".join(each.certificates), len(each.rules)) for each in users]
    print_table(None, ["user", "tokens", "certificates", "rules"], rows)


@user_app.command(epilog="Example:  keelmq auth user show shop")
def show(user: UserName, servers: Servers = DEFAULT_SERVERS, as_json: AsJson = False) -> None:
    """Show a user with its tokens and permissions. Secrets are never shown: the cluster does not know them."""
    _print_user(run(servers, lambda it: _users(it).get(user), as_json=as_json), as_json)


@user_app.command(epilog="Example:  keelmq auth user delete shop --yes")
def delete(user: UserName, yes: Yes = False, servers: Servers = DEFAULT_SERVERS, as_json: AsJson = False) -> None:
    """Delete a user; its tokens are not valid any more."""
    if not yes:
        confirm(f"Delete user {user} with its tokens and permissions?")
    run(servers, lambda it: _users(it).delete(user), as_json=as_json)
    if as_json:
        print_json({"user": user, "deleted": True})
    else:
        say(f"user {user} is deleted")


@token_app.command("create", epilog="Example:  (umask 077; keelmq auth token create shop --days 90 > shop.token)")
def create_token(
    user: UserName,
    days: Annotated[
        int | None, typer.Option(min=1, max=TOKEN_EXPIRES_MS_MAX // DAY_MS, help="Days until it expires; else never.")
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it: alone on stdout, so that it can go into a file. It is shown only now.

    A user has two tokens at most: make the new one, give it to the service, then revoke the old one.
    """
    expires_in_ms = None if days is None else days * DAY_MS
    made = run(servers, lambda it: _users(it).create_token(user, expires_in_ms=expires_in_ms), as_json=as_json)
    if as_json:
        print_json(made.document)
        return
    say(made.token)
    end = "does not expire" if made.expires_at_ms is None else f"expires at {when(made.expires_at_ms)}"
    typer.echo(f"token {made.token_id} of user {user} {end}; it is not shown again", err=True)


@token_app.command(epilog="Example:  keelmq auth token revoke shop 3f2a9c0d1b4e")
def revoke(
    user: UserName,
    token_id: Annotated[str, typer.Argument(metavar="TOKEN_ID", help="Id, as in `keelmq auth user show`.")],
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Revoke a token, which is not valid any more when the command ends."""
    run(servers, lambda it: _users(it).revoke_token(user, token_id), as_json=as_json)
    if as_json:
        print_json({"user": user, "token_id": token_id, "revoked": True})
    else:
        say(f"token {token_id} of user {user} is revoked")


@acl_app.command(epilog="Example:  keelmq auth acl allow shop send topic:orders")
def allow(
    user: UserName,
    actions: Actions,
    resource: Resource,
    network: Networks = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Allow actions on a resource. Whoever may do anything with a resource may also describe it."""
    _add(user, "allow", actions, resource, network, servers, as_json)


@acl_app.command(epilog="Example:  keelmq auth acl deny shop delete 'topic:*'")
def deny(
    user: UserName,
    actions: Actions,
    resource: Resource,
    network: Networks = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Deny actions on a resource, whatever allows them."""
    _add(user, "deny", actions, resource, network, servers, as_json)


@acl_app.command(epilog="Example:  keelmq auth acl remove shop topic:orders")
def remove(user: UserName, resource: Resource, servers: Servers = DEFAULT_SERVERS, as_json: AsJson = False) -> None:
    """Remove all rules of a user that name exactly this resource."""

    async def work(connection: "Connection") -> "UserInfo":
        users = _users(connection)
        held = await users.get(user)
        kept = [rule for rule in held.rules if rule.resource != resource]
        return await users.put(user, rules=kept, revision=held.revision)

    _print_user(run(servers, work, as_json=as_json), as_json)


@app.command(epilog="Example:  keelmq auth explain shop send topic:orders")
def explain(
    user: UserName,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="One action, such as send.")],
    resource: Resource,
    address: Annotated[str, typer.Option(help="Client address, for rules with networks.")] = "",
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Tell whether a user may do something, and by which rule."""
    verdict = run(servers, lambda it: _users(it).explain(user, action, resource, address=address), as_json=as_json)
    if as_json:
        print_json(verdict.document)
        return
    may = "may" if verdict.allowed else "may not"
    why = "no rule allows it" if verdict.rule is None else f"by the rule: {_words(verdict.rule)}"
    say(f"{user} {may} {action} {resource}: {why}")


@app.command(epilog="Example:  KEELMQ_TOKEN_FILE=shop.token keelmq auth whoami")
def whoami(servers: Servers = DEFAULT_SERVERS, as_json: AsJson = False) -> None:
    """Show as whom the cluster knows this client."""
    found = run(servers, lambda it: _users(it).principal(), as_json=as_json)
    if as_json:
        print_json(found.document)
    else:
        say(f"{found.principal}, from {found.address}")


@app.command(epilog="Example:  keelmq auth quota")
def quota(
    addresses: Annotated[
        bool, typer.Option("--addresses", help="Client addresses without valid credentials, instead of users.")
    ] = False,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Show the rest of the quotas of recently active users at the leader, and their weights. The rest may be negative:
    such a user has to wait.
    """
    from keelmq.admin.quotas import QuotaUsages

    kind = "address" if addresses else "user"
    usages = run(servers, lambda it: QuotaUsages(it).all(kind=kind), as_json=as_json)
    if as_json:
        print_json({"principals": [each.document for each in usages]})
        return
    fewer = [each for each in _RARE_QUOTAS if any(getattr(usage, each[1]) for usage in usages)]
    rows = [
        (
            each.principal,
            _of_quota(each.requests_left, each.requests_per_s),
            _of_quota(each.in_bytes_left, each.in_bytes_per_s),
            _of_quota(each.out_bytes_left, each.out_bytes_per_s),
            *(_of_quota(getattr(each, f"{name}_left"), getattr(each, limit)) for name, limit, _ in fewer),
            each.weight,
            "" if each.throttled is None else each.throttled,
        )
        for each in usages
    ]
    left = ["requests left", "bytes in left", "bytes out left", *(f"{words} left" for *_, words in fewer)]
    print_table(None, [kind, *left, "weight", "throttled"], rows)


_RARE_QUOTAS: Final = (
    ("filter_ms", "filter_ms_per_s", "filter ms"),
    ("connections", "connections", "connections"),
    ("long_polls", "long_polls", "long polls"),
    ("held_bytes", "held_bytes", "bytes held"),
)
"""Quotas that have a column only where somebody has one: the name of the rest, the limit, and the words for both."""


def _of_quota(left: int | None, limit: int) -> str:
    return "no limit" if left is None else f"{left} of {limit}"


def _add(
    user: str, effect: str, actions: str, resource: str, network: list[str] | None, servers: str, as_json: bool
) -> None:
    from keelmq.admin.users import Rule

    named = tuple(each.strip() for each in actions.split(","))
    rule = Rule(effect=effect, actions=named, resource=resource, networks=tuple(network or ()))

    async def work(connection: "Connection") -> "UserInfo":
        users = _users(connection)
        held = await users.get(user)
        rules = held.rules if rule in held.rules else (*held.rules, rule)
        return await users.put(user, rules=rules, revision=held.revision)

    _print_user(run(servers, work, as_json=as_json), as_json)


def _print_user(user: "UserInfo", as_json: bool) -> None:
    if as_json:
        print_json(user.document)
        return
    say(f"user {user.user}")
    for name in user.certificates:
        say(f"  certificates named {name}")
    for token in user.tokens:
        end = "does not expire" if token.expires_at_ms is None else f"expires at {when(token.expires_at_ms)}"
        say(f"  token {token.token_id}, made at {when(token.created_at_ms)}, {end}")
    for rule in user.rules:
        say(f"  {_words(rule)}")
    if not user.rules:
        say(f"  no permissions; keelmq auth acl allow {user.user} send topic:NAME")


def _words(rule: "Rule") -> str:
    where = f" from {', '.join(rule.networks)}" if rule.networks else ""
    return f"{rule.effect} {', '.join(rule.actions)} on {rule.resource}{where}"
