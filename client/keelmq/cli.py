"""The `keelmq` command: administration, sending and consuming from a shell."""

from typing import Annotated

import typer

from keelmq import (
    cli_cluster,
    cli_consume,
    cli_dlq,
    cli_group,
    cli_log,
    cli_message,
    cli_output,
    cli_pop,
    cli_scheduled,
    cli_send,
    cli_topic,
    cli_transaction,
)
from keelmq.version import VERSION

app = typer.Typer(
    name="keelmq",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="KeelMQ from the shell: topics, messages, transactions, groups, the cluster and its log.\n\n"
    "Nodes are found by [bold]--servers[/bold] or KEELMQ_SERVERS. Every command takes [bold]--json[/bold]. "
    "Exit codes: 0 done, 1 error, 2 usage, 130 interrupted.",
    epilog="Examples:\n\n    keelmq topic create orders --queues 8\n\n"
    "    keelmq send orders 'hello' --message-id order-1\n\n"
    "    keelmq consume orders --from earliest --max 10\n\n    keelmq message trace order-1\n\n"
    "    keelmq transaction list --state prepared",
)
app.add_typer(cli_topic.app, name="topic")
app.add_typer(cli_message.app, name="message")
app.add_typer(cli_scheduled.app, name="scheduled")
app.add_typer(cli_transaction.app, name="transaction")
app.add_typer(cli_group.app, name="group")
app.add_typer(cli_dlq.app, name="dlq")
app.add_typer(cli_cluster.app, name="cluster")
app.add_typer(cli_log.app, name="log")
app.command("send", epilog=cli_send.EXAMPLES)(cli_send.send)
app.command("consume", epilog=cli_consume.EXAMPLES)(cli_consume.consume)
app.command("pop", epilog=cli_pop.EXAMPLES)(cli_pop.pop)


def _show_version(value: bool) -> None:
    if value:
        print(f"keelmq {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


def main() -> None:
    """Entry point of the `keelmq` command."""
    try:
        app()
    finally:
        cli_output.flush()
