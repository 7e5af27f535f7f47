"""Command `keelmq cluster upgrade`, and the version that runs on each node."""

from typing import TYPE_CHECKING, Annotated

import typer

from keelmq.cli.output import DEFAULT_SERVERS, AsJson, Servers, print_json, print_table, run, say

if TYPE_CHECKING:
    from keelmq.admin import ClusterStatus, NodeBuild, NodeStatus


def register(app: typer.Typer) -> None:
    """Add the command to `keelmq cluster`."""
    app.command("upgrade", epilog="Example:  keelmq cluster upgrade")(upgrade)


def upgrade(
    level: Annotated[
        int | None, typer.Option("--level", min=1, help="New level. Default: the highest level that all nodes know.")
    ] = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Raise the cluster's feature level, which enables the features of the new version.

    No node can return to the version before. Every node has to run a version that knows the level.
    """
    from keelmq.admin import Admin

    answer = run(servers, lambda connection: Admin(connection).raise_feature_level(level), as_json=as_json)
    if as_json:
        print_json(answer.document)
        return
    done = "raised" if answer.raised else "nothing to do"
    say(f"{done}: feature level {answer.feature_level} is in force")
    rows = [(node.node_id, _named(node), _levels(node)) for node in answer.nodes]
    print_table(None, ["node", "version", "feature levels"], rows)


def build_of(status: "ClusterStatus") -> str | None:
    """Return version, commit and feature levels of a node by its own view; None for a node that does not name its
    version.
    """
    mine = next((each for each in status.nodes if each.node_id == status.node_id), None)
    levels = None if mine is None else _levels(mine)
    version = _named(status)
    return version if levels is None else f"{version} ({levels})"


def _named(build: "NodeBuild | ClusterStatus") -> str | None:
    """Return the version with the commit behind it, if the build names one."""
    return f"{build.version} {build.commit}" if build.version and build.commit else build.version


def _levels(node: "NodeBuild | NodeStatus") -> str | None:
    """Return the range of feature levels as text."""
    low, high = node.feature_level_min, node.feature_level_max
    if low is None or high is None:
        return None
    return str(high) if low == high else f"{low}-{high}"
