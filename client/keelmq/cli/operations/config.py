"""Commands of `keelmq config`: the options that nodes run with."""

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from keelmq.cli.operations.each_node import OneNode, ask_each
from keelmq.cli.output import DEFAULT_SERVERS, EXIT_ERROR, AsJson, Servers, print_json, print_table, run, say

if TYPE_CHECKING:
    from keelmq.admin import NodeConfig

DEFAULT: Final = "default"
"""Source of an option that was not given."""

app = typer.Typer(no_args_is_help=True, help="The configuration that the nodes run with.")


@app.callback()
def _root() -> None: ...


@app.command(epilog="Examples:\n\n    keelmq config show\n\n    keelmq config show --node 2 --effective")
def show(
    node: OneNode = None,
    effective: Annotated[bool, typer.Option("--effective", help="Also options that have their default.")] = False,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Show the options that were given to the nodes, with value and source, as they have been since the start.
    Credentials are left out. Needs the permission `describe` on the cluster.

    Exit code 1 if a node did not answer.
    """
    answers = run(servers, lambda _: ask_each(servers, lambda calls: calls.config(), node), as_json=as_json)
    silent = [each for each in answers if each.answer is None]
    shown = [each.answer for each in answers if each.answer is not None]
    if as_json:
        nodes = [{**each.document, "options": _options(each, effective=effective)} for each in shown]
        print_json({"nodes": nodes, "unanswered": [each.document() for each in silent]})
    else:
        rows = [
            [each.node_id, name, _text(option["value"]), option["source"]]
            for each in shown
            for name, option in _options(each, effective=effective).items()
        ]
        print_table(None, ["node", "option", "value", "source"], rows)
        for of in silent:
            say(f"{of.url}: {of.error}", file=sys.stderr)
    if silent:
        raise typer.Exit(EXIT_ERROR)


def _options(config: "NodeConfig", *, effective: bool) -> dict[str, dict[str, object]]:
    return {
        name: {"value": option.value, "source": option.source}
        for name, option in config.options.items()
        if effective or option.source != DEFAULT
    }


def _text(value: object) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)
