"""The `keelmq-lineage` command: queries causes and effects of messages, and runs the job that updates the tables."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from keelmq.cli.output import EXIT_ERROR, EXIT_USAGE, AsJson, print_json, print_table
from keelmq_spark import cli_run
from keelmq_spark.cli_run import DAYS_MAX, DEFAULT_TABLES
from keelmq_spark.queries import answers
from keelmq_spark.queries.graph import DEPTH_MAX, Fact, Graph, NoTables
from keelmq_spark.tables.errors import TablesError

Tables = cli_run.TablesOption
Picture = Annotated[
    Path | None, typer.Option("--picture", metavar="FILE", help="Also draw a picture: .svg, or .html with the rows.")
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="Maximum number of rows.")]
What = Annotated[
    str, typer.Argument(metavar="MESSAGE|TRANSACTION", help="Message id, TOPIC/ID, transaction id, or a node id.")
]
Depth = Annotated[
    int, typer.Option("--depth", min=1, max=DEPTH_MAX, help="Maximum number of steps between cause and effect.")
]
_DATE_FORMATS: Final = ["%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d", "%Y-%m-%dT%H:%M:%S.%f"]

app = typer.Typer(
    name="keelmq-lineage",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Show causes, consumers and effects of messages.\n\n`run` updates the tables, `compact` and `prune` tidy "
    "them; all other commands read them, without Spark. Every answer takes [bold]--json[/bold]. Exit codes: 0 done, "
    "1 error, 2 usage.",
    epilog="Examples:\n\n    keelmq-lineage run --tables lineage\n\n"
    "    keelmq-lineage show order-17 --picture order-17.svg\n\n"
    "    keelmq-lineage impact --producer-group shop --from 2026-11-01T10:00:00 --to 2026-11-01T10:05:00",
)

app.command("run", epilog=cli_run.EXAMPLES)(cli_run.run)


@contextmanager
def _graph(tables: str) -> Iterator[Graph]:
    try:
        graph = Graph(tables)
    except (NoTables, TablesError) as exc:
        _fail(str(exc))
    with graph:
        yield graph


def _fail(text: str, code: int = EXIT_ERROR) -> Any:
    typer.echo(f"error: {text}", err=True)
    raise typer.Exit(code)


def _node_of(graph: Graph, what: str) -> str:
    """Return the only node that `what` may mean; end the command when there is none, or several."""
    found = graph.find(what)
    if len(found) == 1:
        return found[0]
    if not found:
        _fail(f"{what} is not in the tables (they may be behind the log: `keelmq-lineage summary` says up to where)")
    _fail(f"{what} may be one of {', '.join(found)}: say which", EXIT_USAGE)
    raise AssertionError


def _print(title: str, facts: Sequence[Fact], as_json: bool, columns: Sequence[str] = ()) -> None:
    if as_json:
        print_json([_plain(fact) for fact in facts])
        return
    names = list(columns or (facts[0] if facts else ()))
    print_table(title, names, [[_cell(fact.get(name)) for name in names] for fact in facts])


def _plain(value: Any) -> Any:
    """Convert facts for JSON: times become ISO 8601 in UTC."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    return round(value, 3) if isinstance(value, float) else value


def _draw(file: Path | None, svg: Callable[[], str], heading: str, facts: Sequence[Fact]) -> None:
    if file is None:
        return
    from keelmq_spark.queries.page import page

    if file.suffix not in (".svg", ".html"):
        _fail(f"--picture {file}: the name ends in .svg or .html", EXIT_USAGE)
    names = list(facts[0]) if facts else []
    table = [names, *([_cell(fact[name]) for name in names] for fact in facts)]
    file.write_text(svg() if file.suffix == ".svg" else page(svg(), heading, table), encoding="utf-8", newline="\n")


@app.command()
def show(what: What, tables: Tables = DEFAULT_TABLES, picture: Picture = None, as_json: AsJson = False) -> None:
    """Show the story of a message or a transaction: its events, and who sent, consumed or retried it."""
    from keelmq_spark.queries.pictures import story_picture

    with _graph(tables) as graph:
        node_id = _node_of(graph, what)
        story = answers.story(graph, node_id)
        timeline = [_step(event) for event in story["events"]]
        _draw(picture, lambda: story_picture(graph, node_id), node_id, timeline)
        if as_json:
            print_json(_plain(story))
            return
        node = story["node"]
        facts = [{"what": name, "value": _cell(value)} for name, value in node.items() if value is not None]
        print_table(None, ["what", "value"], [[fact["what"], fact["value"]] for fact in facts])
        _print("Events", timeline, False, ["ts", "type", "topic", "queue", "offset", "group", "attempt", "event_id"])
        _print("Edges", story["edges"], False, ["ts", "kind", "src", "dst"])


def _step(event: Fact) -> Fact:
    return {name: event[name] for name in ("ts", "type", "topic", "queue", "offset", "group", "attempt", "event_id")}


_WALK_COLUMNS: Final = ("depth", "node_id", "via", "group", "state", "ts")


@app.command()
def ancestors(
    what: What,
    depth: Depth = DEPTH_MAX,
    tables: Tables = DEFAULT_TABLES,
    picture: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Show the causes of a message: the message whose handler sent it, and so on."""
    _walk(what, depth, tables, picture, as_json, answers.ancestors)


@app.command()
def descendants(
    what: What,
    depth: Depth = DEPTH_MAX,
    tables: Tables = DEFAULT_TABLES,
    picture: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Show the effects of a message: messages sent by its handlers, and so on."""
    _walk(what, depth, tables, picture, as_json, answers.descendants)


def _walk(
    what: str, depth: int, tables: str, picture: Path | None, as_json: bool, answer: Callable[..., list[Fact]]
) -> None:
    from keelmq_spark.queries.pictures import story_picture

    with _graph(tables) as graph:
        node_id = _node_of(graph, what)
        facts = answer(graph, node_id, depth)
        _draw(picture, lambda: story_picture(graph, node_id), node_id, facts)
        _print(f"{answer.__name__} of {node_id}", facts, as_json, _WALK_COLUMNS)


@app.command()
def impact(
    producer_group: Annotated[str, typer.Option("--producer-group", metavar="GROUP", help="Sender of the messages.")],
    begin: Annotated[datetime, typer.Option("--from", formats=_DATE_FORMATS, help="Begin of the time range, UTC.")],
    end: Annotated[
        datetime, typer.Option("--to", formats=_DATE_FORMATS, help="End of the time range (exclusive), UTC.")
    ],
    tables: Tables = DEFAULT_TABLES,
    as_json: AsJson = False,
) -> None:
    """Show the topics and groups that a bad producer reached between two times, directly and through handlers."""
    with _graph(tables) as graph:
        facts = answers.impact(graph, producer_group, begin.replace(tzinfo=UTC), end.replace(tzinfo=UTC))
        _print(f"touched by {producer_group}", facts, as_json)


@app.command()
def unresolved(
    older_than_s: Annotated[float, typer.Option("--older-than", min=0, metavar="SECONDS", help="Minimum age.")] = 60,
    limit: Limit = answers.LIMIT,
    tables: Tables = DEFAULT_TABLES,
    as_json: AsJson = False,
) -> None:
    """List transactions that are neither committed nor rolled back."""
    with _graph(tables) as graph:
        _print("unresolved", answers.unresolved(graph, older_than_s, datetime.now(UTC), limit), as_json)


@app.command()
def orphans(limit: Limit = answers.LIMIT, tables: Tables = DEFAULT_TABLES, as_json: AsJson = False) -> None:
    """List messages that no group has consumed, and causes that are in no table."""
    with _graph(tables) as graph:
        _print("orphans", answers.orphans(graph, limit), as_json)


@app.command()
def redeliveries(limit: Limit = answers.LIMIT, tables: Tables = DEFAULT_TABLES, as_json: AsJson = False) -> None:
    """List messages that were given back, most often first, and which group gave one up."""
    with _graph(tables) as graph:
        _print("redeliveries", answers.redeliveries(graph, limit), as_json)


@app.command("dead-letters")
def dead_letters(
    group: Annotated[str | None, typer.Option("--group", metavar="GROUP", help="Only messages of this group.")] = None,
    limit: Limit = answers.LIMIT,
    tables: Tables = DEFAULT_TABLES,
    as_json: AsJson = False,
) -> None:
    """List open dead letters, oldest first: messages that a group gave up and has not processed since."""
    with _graph(tables) as graph:
        _print("open dead letters", answers.dead_letters(graph, group, limit), as_json)


@app.command()
def resets(limit: Limit = answers.LIMIT, tables: Tables = DEFAULT_TABLES, as_json: AsJson = False) -> None:
    """List resets of groups to other offsets."""
    with _graph(tables) as graph:
        _print("resets", answers.resets(graph, limit), as_json)


@app.command("graph")
def topics(tables: Tables = DEFAULT_TABLES, picture: Picture = None, as_json: AsJson = False) -> None:
    """Show which topics lead to which, through which groups."""
    from keelmq_spark.queries.pictures import topics_picture

    with _graph(tables) as graph:
        facts = answers.topic_graph(graph)
        _draw(picture, lambda: topics_picture(facts), "Topics and groups", facts)
        _print("topics and groups", facts, as_json)


@app.command()
def pages(
    directory: Annotated[Path, typer.Argument(metavar="DIRECTORY", help="Directory of the pages.")],
    stories: Annotated[int, typer.Option("--stories", min=0, max=1000, help="Maximum number for each topic.")] = 3,
    tables: Tables = DEFAULT_TABLES,
) -> None:
    """Draw pages that lead to each other: all topics and groups (index.html), each of them, and stories of messages:
    dead letters first, then messages that were given back, then the latest ones. Pages that an earlier run wrote there
    are removed when they are not drawn again.
    """
    from keelmq_spark.queries import site

    with _graph(tables) as graph:
        directory.mkdir(parents=True, exist_ok=True)
        count = site.write_pages(graph, directory, stories)
    typer.echo(f"{count} pages: {directory / site.INDEX}")


@app.command()
def latency(tables: Tables = DEFAULT_TABLES, as_json: AsJson = False) -> None:
    """Show the time from sending to the commit of the consumer's offset, by topic and group."""
    with _graph(tables) as graph:
        _print("latency", answers.latency(graph), as_json)


@app.command()
def summary(tables: Tables = DEFAULT_TABLES, as_json: AsJson = False) -> None:
    """Show how much is in the tables, and up to which Raft index."""
    with _graph(tables) as graph:
        facts = answers.summary(graph)
        if as_json:
            print_json(_plain(facts))
            return
        _print("events", [facts["events"]], False)
        _print("nodes", facts["nodes"], False)
        _print("edges", facts["edges"], False)


@app.command()
def compact(tables: Tables = DEFAULT_TABLES) -> None:
    """Combine the many small files of the tables into few large ones. No job may write the tables."""
    with _writing(tables) as written:
        before = sum(len(table.files()) for table in written.all.values())
        written.compact()
        after = sum(len(table.files()) for table in written.all.values())
    typer.echo(f"{before} files are {after} now")


@app.command()
def prune(
    older_than_days: Annotated[
        float,
        typer.Option("--older-than", min=0, max=DAYS_MAX, metavar="DAYS", help="Age from which on rows are removed."),
    ],
    tables: Tables = DEFAULT_TABLES,
) -> None:
    """Remove old events, edges and settled nodes from the tables. No job may write the tables: one that runs prunes by
    itself with `run --keep-days`.
    """
    before = datetime.now(UTC) - timedelta(days=older_than_days)
    with _writing(tables) as written:
        removed = written.prune(before)
    typer.echo(
        f"removed what is older than {_cell(before)} UTC: " + ", ".join(f"{n} {of}" for of, n in removed.items())
    )


@contextmanager
def _writing(place: str) -> Iterator[Any]:
    """Hold the lock of existing tables, without what a killed job left; end the command when a job writes them."""
    from keelmq_spark.tables.tables import Tables as AllTables

    try:
        tables = AllTables(place)
        if tables.commit is None:
            _fail(f"there are no lineage tables in {place}: `keelmq-lineage run --tables {place}` makes them")
        with tables.storage.lock():
            written = AllTables(place)
            written.recover()
            yield written
    except TablesError as exc:
        _fail(str(exc))


def main() -> None:
    """Entry point of the `keelmq-lineage` command."""
    app()
