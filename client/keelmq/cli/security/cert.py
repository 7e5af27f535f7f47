"""Commands of `keelmq cert`: make an authority, and certificates of nodes and applications, on this machine alone."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from keelmq.cli.output import EXIT_ERROR, EXIT_INTERRUPTED, AsJson, fail, print_json, print_table, say, when, zone
from keelmq.errors import KeelMQError
from keelmq.limits import NODE_ID_MAX
from keelmq.version import how_to_install

if TYPE_CHECKING:
    from keelmq.cli.security.authority_directory import Made
    from keelmq.cli.security.certificates import Facts

# `cryptography` is imported by the commands alone: the other commands start without it.

T = TypeVar("T")

AUTHORITY_DAYS: Final = 3_650
CERTIFICATE_DAYS: Final = 365
DAYS_MAX: Final = 36_500
DAY_MS: Final = 86_400_000

app = typer.Typer(
    no_args_is_help=True, help="Make an authority and certificates for TLS, and show them. No node is asked."
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Directory with ca.crt and ca.key.", show_default=False)]
Days = Annotated[int, typer.Option("--days", min=1, max=DAYS_MAX, help="Days until the certificate ends.")]
Renew = Annotated[bool, typer.Option("--renew", help="Replace the certificate. The key stays.")]


@app.command(epilog="Example:  keelmq cert ca pki --name 'Shop nodes'")
def ca(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory to make ca.crt and ca.key in.", show_default=False)
    ],
    name: Annotated[str, typer.Option("--name", help="Common name of the authority.")] = "KeelMQ authority",
    days: Days = AUTHORITY_DAYS,
    as_json: AsJson = False,
) -> None:
    """Make an authority, whose key signs certificates of nodes and applications.

    An existing one is never overwritten.
    """

    def work() -> "Made":
        from keelmq.cli.security.authority_directory import make_authority_in
        from keelmq.cli.security.certificates import now_utc

        return make_authority_in(directory, name, days, now_utc())

    made = _done(work, as_json=as_json)
    _print_made(made, as_json)
    if not as_json:
        say(f"keep {made.key_file} off the nodes: whoever has it can make a node")


@app.command(epilog="Example:  keelmq cert node pki --cluster-id shop --node-id 1 --host broker-1.example.com")
def node(
    directory: Directory,
    cluster_id: Annotated[str, typer.Option("--cluster-id", help="Name of the cluster.", show_default=False)],
    node_id: Annotated[
        int, typer.Option("--node-id", min=1, max=NODE_ID_MAX, help="Id of the node.", show_default=False)
    ],
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME_OR_IP",
            help="Host name or IP address, beside those of loopback; repeatable. With --renew the former ones stay "
            "unless one is given.",
        ),
    ] = None,
    days: Days = CERTIFICATE_DAYS,
    renew: Renew = False,
    as_json: AsJson = False,
) -> None:
    """Make the certificate and the key of a node: node-ID.crt and node-ID.key.

    A node that runs takes a renewed certificate over by itself once its file is in place.
    """

    def work() -> "Made":
        from keelmq.cli.security.authority_directory import hosts_in, issue_in, renew_in
        from keelmq.cli.security.certificates import node_subject, now_utc

        stem = f"node-{node_id}"
        subject = node_subject(cluster_id, node_id, host or ())
        if renew and not host:
            subject = node_subject(cluster_id, node_id, hosts_in(directory, stem))
        return (renew_in if renew else issue_in)(directory, stem, subject, days, now_utc())

    _print_made(_done(work, as_json=as_json), as_json)


@app.command(epilog="Example:  keelmq cert client pki --name billing")
def client(
    directory: Directory,
    name: Annotated[str, typer.Option("--name", help="Name of the application.", show_default=False)],
    days: Days = CERTIFICATE_DAYS,
    renew: Renew = False,
    as_json: AsJson = False,
) -> None:
    """Make the certificate and the key of an application: client-NAME.crt and client-NAME.key.

    The name is the common name of the certificate. No node takes it for another node.
    """

    def work() -> "Made":
        from keelmq.cli.security.authority_directory import issue_in, renew_in
        from keelmq.cli.security.certificates import client_subject, now_utc

        subject = client_subject(name)
        return (renew_in if renew else issue_in)(directory, f"client-{name}", subject, days, now_utc())

    _print_made(_done(work, as_json=as_json), as_json)


@app.command(epilog="Example:  keelmq cert show pki/ca.crt pki/node-1.crt")
def show(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Files with certificates.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Show whom certificates name, who signed them, and when they end.

    Exit code 1 when one has expired or is not yet valid.
    """

    def work() -> "tuple[int, list[tuple[Path, Facts]]]":
        from keelmq.cli.security.certificate_files import read
        from keelmq.cli.security.certificates import facts_of, load_certificates, now_utc

        found = [(file, each) for file in files for each in load_certificates(read(file), file)]
        return int(now_utc().timestamp()) * 1000, [(file, facts_of(each, file)) for file, each in found]

    now_ms, found = _done(work, as_json=as_json)
    invalid = [(file, facts) for file, facts in found if not facts.valid_from_ms <= now_ms < facts.valid_until_ms]
    if as_json:
        shown = [{**_document(file, facts), "days_left": _days_left(facts, now_ms)} for file, facts in found]
        print_json({"valid": not invalid, "certificates": shown})
    else:
        rows = [
            (
                str(file),
                _names(facts),
                facts.issuer,
                when(facts.valid_until_ms),
                _days_left(facts, now_ms),
                facts.sha256,
            )
            for file, facts in found
        ]
        print_table(None, ["file", "names", "issuer", f"valid until ({zone()})", "days left", "SHA-256"], rows)
        for file, facts in invalid:
            ended = now_ms >= facts.valid_until_ms
            why = "has expired" if ended else f"is not valid before {when(facts.valid_from_ms)} {zone()}"
            say(f"warning: {file}: {_names(facts)} {why}", file=sys.stderr)
    if invalid:
        raise typer.Exit(EXIT_ERROR)


def _done(work: Callable[[], T], *, as_json: bool) -> T:
    """Return what `work` returns. An error ends the process with a message and an exit code."""
    try:
        return work()
    except KeelMQError as error:
        fail(error, as_json=as_json)
    except ModuleNotFoundError as error:
        if error.name != "cryptography":
            raise
        how = how_to_install("'./client[cli]'")
        text = f"the command needs the package cryptography: install it {how}"
        fail(KeelMQError("package_missing", text), as_json=as_json)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _print_made(made: "Made", as_json: bool) -> None:
    from keelmq.cli.security.certificates import facts_of

    facts = facts_of(made.certificate, made.certificate_file)
    if as_json:
        document = _document(made.certificate_file, facts)
        print_json(
            {**document, "key_file": str(made.key_file), "renewed": made.renewed, "warnings": list(made.warnings)}
        )
        return
    say(f"{made.certificate_file}: {_names(facts)}, valid until {when(facts.valid_until_ms)} {zone()}")
    say(f"{made.key_file}: {'its key, which stayed' if made.renewed else 'its key, readable by its owner only'}")
    for warning in made.warnings:
        say(f"warning: {made.certificate_file}: {warning}", file=sys.stderr)


def _document(file: Path, facts: "Facts") -> dict[str, Any]:
    return {"file": str(file), **facts._asdict()}


def _names(facts: "Facts") -> str:
    common = () if facts.common_name is None else (f"CN={facts.common_name}",)
    return ", ".join((*facts.uris, *facts.dns_names, *facts.ip_addresses, *common))


def _days_left(facts: "Facts", now_ms: int) -> int:
    """Return whole days until the end; negative after it."""
    return (facts.valid_until_ms - now_ms) // DAY_MS
