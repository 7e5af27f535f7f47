"""The `keelmq` command: administration, sending and consuming from a shell."""

from typing import Annotated, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from keelmq.cli import contexts, lazy, output
from keelmq.version import COMMIT, VERSION

SUMMARIES: Final = {
    "operations.doctor": "Examine the cluster: ask every node twice, and print what is wrong, by which evidence, and "
    "the next command.",
    "operations.top": "Show rates, latencies, lag and the nodes, live on a terminal and as plain columns in a pipe.",
    "messages.send": "Send messages; returns when a majority of the nodes has fsynced them.",
    "messages.consume": "Print messages. Without a group, nothing is committed and no other consumer is affected.",
    "messages.pop": "Pop messages, print and acknowledge them. A group without offsets begins with the oldest message.",
    "messages.topic": "Create, alter, list, show, purge and delete topics.",
    "messages.message": "Find messages by id, key, time or offset, trace one, and find what it caused.",
    "messages.scheduled": "List and cancel messages that wait for their delivery time.",
    "messages.transaction": "List, show, resume and decide half transactions.",
    "groups.group": "List, show, change and reset consumer groups.",
    "groups.dlq": "List dead letters, and deliver them to their group once more.",
    "operations.cluster": "The state of the cluster.",
    "operations.client": "The clients of the cluster.",
    "operations.node": "Single nodes while they run.",
    "operations.config": "The configuration that the nodes run with.",
    "operations.bundle": "Write state, metrics, configuration and audit of all nodes, and what doctor finds, into one "
    "file.",
    "operations.audit": "List changes and refusals, with the names of those who asked.",
    "operations.definitions": "Export and import topics, groups, settings, and users without tokens.",
    "operations.log": "Show the commit log, as a replica delivers it.",
    "operations.backup": "Backups of the whole cluster; keelmqd restore brings them back.",
    "security.auth": "Users, their tokens and permissions.",
    "security.cert": "Make an authority and certificates for TLS, and show them. No node is asked.",
    "context": "Name clusters, and choose the one that commands use.",
}
"""The modules of the commands in the order of the help, each with the first paragraph of its command's own help. The
last part of a module's name is the name of its command.
"""

app = typer.Typer(
    cls=lazy.group_of(SUMMARIES),
    name="keelmq",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": lazy.HELP_OPTIONS, "max_content_width": 120},
    help="KeelMQ from the shell: topics, messages, transactions, groups, the cluster, its log and certificates.\n\n"
    "Nodes are found by --servers, KEELMQ_SERVERS or a context (keelmq context), "
    "a token in KEELMQ_TOKEN_FILE or KEELMQ_TOKEN. Every command takes --json. "
    "Exit codes: 0 done, 1 error, 2 usage, 3 something to do, 130 interrupted.",
    epilog="Examples:\n\n    keelmq topic create orders --queues 8\n\n"
    "    keelmq send orders 'hello' --message-id order-1\n\n"
    "    keelmq consume orders --from earliest --max 10\n\n    keelmq message trace order-1\n\n"
    "    keelmq transaction list --state prepared",
)


def _show_version(value: bool) -> None:
    if value:
        print(f"keelmq {VERSION}" + (f", commit {COMMIT}" if COMMIT else ""))
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
    local_time: Annotated[
        bool,
        typer.Option(
            "--local-time", envvar="KEELMQ_LOCAL_TIME", help="Show times of this machine's zone instead of UTC."
        ),
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    def typed(name: str, value: str | None) -> str | None:
        return value if output.was_typed(command, name) else None  # the variables are looked at where they count

    output.LOCAL_TIME.set(local_time)
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
    output.prepare()
    command = get_command(app)
    assert isinstance(command, TyperGroup)
    try:
        lazy.trimmed(command)()
    except OSError as error:
        output.fail_on_os_error(error)
    finally:
        output.flush()
