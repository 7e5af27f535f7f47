"""Options of the source: a wrong one is reported before a query starts."""

import pickle
import re

import pytest

from cluster.limits import READER_PATTERN
from keelmq import Tls
from keelmq_spark.options import NAMES, SourceOptions
from keelmq_spark.source import LogRange, split

SERVERS = {"servers": "http://127.0.0.1:7081,http://127.0.0.1:7082"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": "events", "servers": ""}, "servers: the URLs"),
        ({"view": "events", "servers": "nowhere"}, "servers: 'nowhere' is not"),
        ({"view": "rows"}, "view: messages or events"),
        ({}, "subscribe: the view messages needs topics"),
        ({"view": "events", "subscribe": "a", "subscribePattern": "b"}, "subscribe or subscribePattern"),
        ({"view": "events", "topic": "orders"}, "unknown option topic: the options of keelmq are servers, "),
        ({"view": "events", "maxBytesPerTrigger": "0"}, "maxBytesPerTrigger: a number from 1"),
        ({"view": "events", "readerName": "a job"}, "readerName: 1 to 64 characters of"),
        ({"view": "events", "startingOffsets": "now"}, "startingOffsets: a word or a JSON object"),
        ({"view": "events", "startingOffsets": '{"index": 0}'}, "startingOffsets: the index is a number from 1 on"),
        ({"view": "events", "startingOffsets": '{"orders": {"0": 1}}'}, "startingOffsets: earliest, latest or"),
        (
            {"subscribe": "orders", "startingOffsets": '{"points": {"0": 1}}'},
            "startingOffsets: 'points' is not a topic",
        ),
        ({"subscribe": "orders", "startingOffsets": '{"orders": {"0": -3}}'}, "startingOffsets: queue '0' of orders"),
        ({"view": "events", "endingOffsets": "earliest"}, "endingOffsets"),
        ({"view": "events", "endingOffsets": '{"orders": {"0": 1}}'}, "endingOffsets: latest or"),
        ({"subscribe": "orders", "endingOffsets": '{"orders": {"0": -2}}'}, "an offset, or -1 for the latest"),
        ({"subscribe": "orders", "startingOffsets": '{"orders": {"0": true}}'}, "an offset, or -2 for the earliest"),
        ({"subscribe": "orders", "subscribePattern": "or.*"}, "subscribe or subscribePattern, not both"),
        ({"subscribePattern": "("}, "subscribePattern: missing )"),
        (
            {"view": "events", "endingOffsets": '{"cluster": 1, "index": 2}'},
            "endingOffsets: the cluster is the unique id",
        ),
        (
            {
                "view": "events",
                "startingOffsets": '{"cluster": "one", "index": 2}',
                "endingOffsets": '{"cluster": "two", "index": 3}',
            },
            "endingOffsets: of the cluster two, and startingOffsets of one",
        ),
        ({"view": "events", "startingOffsets": "latest", "startingTimestamp": "1"}, "not both"),
        ({"view": "events", "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: a number from 1"),
        ({"view": "events", "minPartitions": "many"}, "minPartitions: a number from 1 to 10000"),
        ({"view": "events", "fetchMaxBytes": "999999999"}, "fetchMaxBytes: a number from 1 to 16777216"),
        ({"view": "events", "failOnDataLoss": "maybe"}, "failOnDataLoss: true or false"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        SourceOptions.parse({**SERVERS, **options})


@pytest.mark.parametrize("name", ["startingOffsets", "endingOffsets"])
def test_an_offset_of_a_checkpoint_names_its_cluster(name: str) -> None:
    options = SourceOptions.parse({**SERVERS, "view": "events", name: '{"cluster": "0b6c", "index": 1200}'})
    assert options.cluster_uid == "0b6c"
    assert 1200 in (options.starting, options.ending)


def test_a_table_of_the_catalog_is_refused_when_it_is_made() -> None:
    plain = {**SERVERS, "subscribe": "orders"}
    of_table = {f"option.{name}": value for name, value in plain.items()} | {"provider": "keelmq", "owner": "me"}
    with pytest.raises(ValueError, match="CREATE TEMPORARY VIEW"):
        SourceOptions.parse({**plain, **of_table})


def test_options_are_taken_in_any_case() -> None:
    given = {
        "subscribe": "orders, points",
        "STARTINGOFFSETS": '{"orders": {"0": 5, "1": -2}}',
        "endingOffsets": '{"points": {"3": 9, "1": -1}}',
        "maxoffsetspertrigger": "10",
        "failOnDataLoss": "FALSE",
    }
    options = SourceOptions.parse({**SERVERS, **given})
    assert (options.view, options.topics, options.starting) == ("messages", ("orders", "points"), "earliest")
    assert options.first_offsets == {("orders", 0): 5}
    assert (options.ending, options.last_offsets) == ("latest", {("points", 3): 9})
    assert (options.max_offsets_per_trigger, options.fail_on_data_loss) == (10, False)
    assert options.servers == ("http://127.0.0.1:7081", "http://127.0.0.1:7082")
    assert len({name.lower() for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize(("start", "end", "parts"), [(1, 1, 0), (5, 4, 0), (1, 60, 1), (1, 200, 3), (7, 100_007, 4)])
def test_a_range_is_split_without_gaps(start: int, end: int, parts: int) -> None:
    ranges = split(start, end, 4)
    assert len(ranges) == parts
    assert [index for each in ranges for index in range(each.start, each.end)] == list(range(start, end))
    assert all(isinstance(each, LogRange) for each in ranges)


def test_a_token_goes_to_the_executors_as_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEELMQ_TOKEN_FILE", "/planner/token")
    assert SourceOptions.parse({**SERVERS, "view": "events"}).token_file == "/planner/token"
    assert SourceOptions.parse({**SERVERS, "view": "events", "tokenFile": "/own"}).token_file == "/own"
    monkeypatch.delenv("KEELMQ_TOKEN_FILE")
    assert SourceOptions.parse({**SERVERS, "view": "events"}).token_file is None


def test_files_of_tls_go_to_the_executors_as_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEELMQ_CA_FILE", "/planner/ca")
    monkeypatch.delenv("KEELMQ_KEY_FILE", raising=False)
    options = SourceOptions.parse({**SERVERS, "view": "events", "certificateFile": "/own"})
    monkeypatch.delenv("KEELMQ_CA_FILE")
    assert pickle.loads(pickle.dumps(options)).tls == Tls("/planner/ca", "/own", None)
    given = {"caFile": "/ca", "certificateFile": "/own", "keyFile": "/key"}
    assert SourceOptions.parse({**SERVERS, "view": "events", **given}).tls == Tls("/ca", "/own", "/key")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"view": "events"}, "spark:events"),
        ({"subscribe": "orders,%RETRY%g"}, "spark:messages:orders,%RETRY%g"),
        ({"subscribePattern": "orders-[0-9]+"}, "spark:messages:orders-_0-9__"),
        ({"subscribe": "x" * 100}, "spark:messages:" + "x" * 49),
        ({"view": "events", "readerName": "billing"}, "billing"),
    ],
)
def test_a_query_has_a_name_that_nodes_take(options: dict[str, str], name: str) -> None:
    assert SourceOptions.parse({**SERVERS, **options}).reader_name == name
    assert re.fullmatch(READER_PATTERN, name)
