"""The `keelmq` command: administration, sending and consuming from a shell."""

from typing import Annotated

import typer

from keelmq.cli import (
    auth,
    backup,
    cert,
    cluster,
    consume,
    contexts,
    dlq,
    doctor,
    group,
    log,
    message,
    output,
    pop,
    scheduled,
    send,
    top,
    topic,
    transaction,
)
from keelmq.cli.context import app as context_app
from keelmq.version import VERSION

app = typer.Typer(
    name="keelmq",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="KeelMQ from the shell: topics, messages, transactions, groups, the cluster, its log and certificates.\n\n"
    "Nodes are found by [bold]--servers[/bold], KEELMQ_SERVERS or a context (keelmq context), "
    "a token in KEELMQ_TOKEN_FILE or KEELMQ_TOKEN. Every command takes [bold]--json[/bold]. "
    "Exit codes: 0 done, 1 error, 2 usage, 130 interrupted.",
    epilog="Examples:\n\n    keelmq topic create orders --queues 8\n\n"
    "    keelmq send orders 'hello' --message-id order-1\n\n"
    "    keelmq consume orders --from earliest --max 10\n\n    keelmq message trace order-1\n\n"
    "    keelmq transaction list --state prepared",
)
app.add_typer(topic.app, name="topic")
app.add_typer(message.app, name="message")
app.add_typer(scheduled.app, name="scheduled")
app.add_typer(transaction.app, name="transaction")
app.add_typer(group.app, name="group")
app.add_typer(dlq.app, name="dlq")
app.add_typer(cluster.app, name="cluster")
app.add_typer(log.app, name="log")
app.add_typer(backup.app, name="backup")
app.add_typer(auth.app, name="auth")
app.add_typer(cert.app, name="cert")
app.command("doctor", epilog=doctor.EXAMPLES)(doctor.doctor)
app.command("top", epilog=top.EXAMPLES)(top.top)
app.add_typer(context_app, name="context")
app.command("send", epilog=send.EXAMPLES)(send.send)
app.command("consume", epilog=consume.EXAMPLES)(consume.consume)
app.command("pop", epilog=pop.EXAMPLES)(pop.pop)


def _show_version(value: bool) -> None:
    if value:
        print(f"keelmq {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    command: typer.Context,
    context: Annotated[
        str | None,
        typer.Option(
            "--context",
            envvar=contexts.VARIABLE,
            metavar="NAME",
            help="Context to use instead of the current one; see keelmq context.",
        ),
    ] = None,
    ca_file: Annotated[
        str | None,
        typer.Option(
            "--ca-file",
            envvar="KEELMQ_CA_FILE",
            metavar="FILE",
            help="PEM file with the authorities of https servers; default: those of the system.",
        ),
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option(
            "--token-file", envvar="KEELMQ_TOKEN_FILE", metavar="FILE", help="File with the token to show to servers."
        ),
    ] = None,
    certificate_file: Annotated[
        str | None,
        typer.Option(
            "--certificate-file",
            envvar="KEELMQ_CERTIFICATE_FILE",
            metavar="FILE",
            help="PEM file with the certificate to show to https servers.",
        ),
    ] = None,
    key_file: Annotated[
        str | None,
        typer.Option("--key-file", envvar="KEELMQ_KEY_FILE", metavar="FILE", help="PEM file with its key."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    def typed(name: str, value: str | None) -> str | None:
        return value if output.was_typed(command, name) else None  # the variables are looked at where they count

    contexts.FLAGS.set(
        contexts.Flags(
            context=typed("context", context),
            ca_file=typed("ca_file", ca_file),
            token_file=typed("token_file", token_file),
            certificate_file=typed("certificate_file", certificate_file),
            key_file=typed("key_file", key_file),
        )
    )


def main() -> None:
    """Run the `keelmq` command."""
    try:
        app()
    finally:
        output.flush()
