"""`keelmq group`"""

from typing import Annotated, Any, Literal

import typer

from keelmq.cli_output import DEFAULT_SERVERS, AsJson, Servers, print_json, print_table, run, when

app = typer.Typer(no_args_is_help=True, help="List, show and reset consumer groups.")

Name = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]


@app.command("list", epilog="Example:  keelmq group list")
def list_groups(servers: Servers = DEFAULT_SERVERS, as_json: AsJson = False) -> None:
    """List the groups with their lag."""
    from keelmq.admin import Admin

    groups = run(servers, lambda connection: Admin(connection).groups(), as_json=as_json)
    if as_json:
        print_json({"groups": groups})
        return
    rows = [
        (g["group"], ", ".join(g["topics"]), g["generation"], len(g["members"]), sum(o["lag"] for o in g["offsets"]))
        for g in groups
    ]
    print_table(None, ["group", "topics", "generation", "members", "lag"], rows)


@app.command(epilog="Example:  keelmq group show points")
def show(group: Name, servers: Servers = DEFAULT_SERVERS, as_json: AsJson = False) -> None:
    """Show members, assignment, offsets and lag."""
    from keelmq.admin import Admin

    found = run(servers, lambda connection: Admin(connection).group(group), as_json=as_json)
    if as_json:
        print_json(found)
        return
    print(f"{found['group']}: generation {found['generation']}, topics {', '.join(found['topics']) or '-'}")
    for topic, tags in found["tags"].items():
        print(f"of {topic} only the tags {tags}")
    for topic, expression in found["filters"].items():
        print(f"of {topic} only {expression}")
    members = [
        (m["member_id"], m["client_id"], when(m["joined_at_ms"]), _queues(m["assignment"])) for m in found["members"]
    ]
    print_table(None, ["member", "client", "joined (UTC)", "queues"], members)
    _print_offsets(found["offsets"])


@app.command(epilog="Example:  keelmq group reset points --topic orders --to earliest")
def reset(
    group: Name,
    topic: Annotated[str, typer.Option(help="The topic whose offsets are set.")],
    queue: Annotated[int | None, typer.Option(min=0, help="Only this queue.")] = None,
    to: Annotated[Literal["earliest", "latest"] | None, typer.Option(help="Beginning or end.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="The next offset to read.")] = None,
    timestamp_ms: Annotated[int | None, typer.Option(min=0, help="The first message stored at or after it.")] = None,
    servers: Servers = DEFAULT_SERVERS,
    as_json: AsJson = False,
) -> None:
    """Set committed offsets, backwards too. Running members go on from there."""
    from keelmq.admin import Admin

    answer = run(
        servers,
        lambda connection: Admin(connection).reset_group(
            group, topic, queue=queue, to=to, offset=offset, timestamp_ms=timestamp_ms
        ),
        as_json=as_json,
    )
    if as_json:
        print_json(answer)
        return
    print(f"{group}: generation {answer['generation']}")
    print_table(None, ["topic", "queue", "offset"], [(o["topic"], o["queue"], o["offset"]) for o in answer["offsets"]])


def _queues(assignment: list[dict[str, Any]]) -> str:
    return ", ".join(f"{each['topic']}/{each['queue']}" for each in assignment) or "-"


def _print_offsets(offsets: list[dict[str, Any]]) -> None:
    rows = [(o["topic"], o["queue"], o["offset"], o["max_offset"], o["lag"]) for o in offsets]
    print_table(None, ["topic", "queue", "committed", "max offset", "lag"], rows)
