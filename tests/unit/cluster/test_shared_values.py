"""Names and formats that the broker, the SDK, the Spark package and the deploying tool each write out for themselves,
because they share no code. Limits of requests are compared in tests/unit/cluster/test_sdk_contract.py.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, get_args

import pytest

import cluster.limits
import store.version
from cluster.audit import record as broker_audit
from cluster.budgets import quotas, request_deadline
from cluster.filters import numeric, parser, tokens
from cluster.health import alarms
from cluster.http import routes
from cluster.operations import log_events as broker_events
from cluster.process import addresses, data_directory, logging_setup, option, quota_file, request_scope
from cluster.process.offline import restore_command
from cluster.security import permissions, principals, webhook_signer
from cluster.telemetry import topic_counters
from deploy.rollout import host_data, ways_back
from keelmq import causation, outbox, webhooks, wire
from keelmq import limits as sdk_limits
from keelmq import version as sdk_version
from keelmq.admin import audit as sdk_audit
from keelmq.admin import definitions
from keelmq.cli import contexts
from keelmq.cli.messages import topic as topic_commands
from keelmq.cli.messages import transaction as transaction_commands
from keelmq.cli.operations import group_findings, seen
from keelmq.cli.operations import node as node_commands
from keelmq.cli.security import auth, authority_directory, certificates
from keelmq.log import backup_frames as sdk_backup
from keelmq.log import log_events as sdk_events
from keelmq.log import log_records as sdk_records
from keelmq.transport import connection
from keelmq_spark.folding import filters as spark_filters
from keelmq_spark.tables import schema as spark_schema
from keelmq_spark.views import event_types
from raft.peers import tls
from store.commands import messages as message_commands
from store.commands import topics as topic_commands_of_log
from store.log import record
from store.messages import outcomes, topics
from store.snapshots import backup_frames
from store.transactions import table
from tests.unit.cluster.conftest import Node


class Pair(NamedTuple):
    """A value of the broker, and the same value elsewhere."""

    name: str
    broker: Any
    other: Any


def names(values: Iterable[str]) -> list[str]:
    return sorted(values)


PAIRS: Final = (
    Pair("version", store.version.VERSION, sdk_version.VERSION),
    Pair("users that nobody may have", principals.RESERVED_NAMES, definitions.RESERVED_USERS),
    Pair("users without quotas", principals.RESERVED_NAMES, frozenset(quota_file.NOT_USERS)),
    Pair("name of strangers", principals.ANONYMOUS_NAME, quotas.ANONYMOUS),
    Pair("prefix of join tokens", cluster.limits.JOIN_PREFIX, definitions.JOIN_PREFIX),
    Pair("properties of a request", cluster.limits.REQUEST_PROPERTIES_MAX, sdk_limits.REQUEST_PROPERTIES_MAX),
    Pair("system topics", frozenset(topics.SYSTEM_TOPICS), sdk_limits.SYSTEM_TOPICS),
    Pair("topics of groups", (topics.RETRY_PREFIX, topics.DLQ_PREFIX), sdk_limits.GROUP_TOPIC_PREFIXES),
    Pair("topics of groups for Spark", (topics.RETRY_PREFIX, topics.DLQ_PREFIX), spark_schema.GROUP_TOPICS),
    Pair("topic types", names(get_args(topic_commands_of_log.TopicType)), names(get_args(topic_commands.TopicType))),
    Pair(
        "topic types of definitions",
        names(get_args(topic_commands_of_log.TopicType)),
        names(get_args(definitions.TopicDefinition.__annotations__["type"])),
    ),
    Pair("states of transactions", names(table.STATES), names(get_args(transaction_commands.State))),
    Pair("states in the outbox", ["committed", "rolled_back"], [outbox.COMMITTED, outbox.ROLLED_BACK]),
    Pair("states for Spark", ["committed", "rolled_back"], [spark_schema.COMMITTED, spark_schema.ROLLED_BACK]),
    Pair("encodings of blocks", names(get_args(message_commands.BlockEncoding)), names(get_args(wire.BlockEncoding))),
    Pair("actions of permissions", names(permissions.ACTIONS), names(get_args(auth.Action))),
    Pair("outcomes in the audit", names(get_args(broker_audit.Outcome)), names(sdk_audit.OUTCOMES)),
    Pair("levels of the log", names((*get_args(logging_setup.Level), "reset")), names(get_args(node_commands.Level))),
    Pair("variables of clients", option.CLIENT_VARIABLES, {contexts.VARIABLE, *contexts.CLIENT_VARIABLES}),
    Pair("types of events for Spark", names(get_args(outcomes.EventType)), names(event_types.TYPES)),
    Pair("severities of alarms", names(get_args(alarms.Severity)), names(get_args(seen.Severity))),
    Pair("sum of other topics", topic_counters.OTHERS, group_findings.OTHERS),
    Pair("sum of other principals", topic_counters.OTHERS, quotas.OTHERS),
    Pair("media types", (routes.JSON, routes.MSGPACK), (wire.JSON, wire.MSGPACK)),
    Pair("header of the deadline", request_deadline.TIMEOUT_HEADER, connection.TIMEOUT_HEADER),
    Pair("header of the signature", webhook_signer.HEADER, webhooks.HEADER),
    Pair("header of the trace", request_scope.TRACEPARENT_HEADER, causation.TRACEPARENT),
    Pair("property of the sender", causation.PRODUCER_GROUP, spark_schema.PRODUCER_GROUP),
    Pair("names in certificates", tls.SCHEME, authority_directory.NODE_SCHEME),
    Pair("length of host names", addresses.HOST_LENGTH_MAX, certificates._HOST_LENGTH_MAX),
    Pair("records of the log", record.MAGIC, sdk_records.MAGIC),
    Pair("layout of records", record._HEADER.format, sdk_records.HEADER.format),
    Pair("version of records", record.VERSION, sdk_records.VERSION),
    Pair("frames of events", broker_events._FRAME.format, sdk_events._FRAME.format),
    Pair("frames of backups", backup_frames._MAGIC, sdk_backup.MAGIC),
    Pair("layout of backups", backup_frames._HEAD.format, sdk_backup.HEAD.format),
    Pair("kinds of frames", backup_frames.KIND_NAMES, sdk_backup.KIND_NAMES),
    Pair("size of frames", backup_frames.FRAME_BYTES_MAX, sdk_backup.FRAME_BYTES_MAX),
    Pair("keywords of filters", tokens.KEYWORDS, spark_filters._KEYWORDS),
    Pair("numbers of filters", numeric.NUMBER_PATTERN, spark_filters._NUMBER),
    Pair("length of numbers", cluster.limits.FILTER_NUMBER_LENGTH_MAX, spark_filters.NUMBER_LENGTH_MAX),
    Pair("comparisons of filters", names(parser._OPERATORS), names(spark_filters._COMPARE)),
    Pair("searches of filters", names(parser._SEARCHES), names(spark_filters._FIND)),
    Pair("mark of an unfinished directory", data_directory.UNFINISHED_FILE, host_data.UNFINISHED),
    Pair("work on an unfinished restore", restore_command.COMMAND, host_data.RESTORE),
    Pair("backup on a host", host_data.BACKUP, ways_back.BACKUP_ON_HOST),
)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_a_value_is_the_same_wherever_it_is_written(pair: Pair) -> None:
    assert pair.other == pair.broker


async def test_the_headers_that_the_sdk_reads_are_sent_and_described(node: Node) -> None:
    """A header that is missing is no error for the SDK: it would begin at the same place again."""
    queue, log, events = "/v1/topics/{topic}/queues/{queue}/messages", "/v1/log", "/v1/log/events"
    every = wire.APPLIED_INDEX_HEADER
    read = {
        queue: {every, wire.DISK_BYTES_HEADER},
        log: {every, wire.NEXT_INDEX_HEADER, wire.CLUSTER_UID_HEADER},
        events: {
            *(every, wire.NEXT_INDEX_HEADER, wire.NEXT_EVENT_HEADER, wire.SPAN_INDEX_HEADER, wire.CLUSTER_UID_HEADER)
        },
    }
    assert {name for of_call in read.values() for name in of_call} == {
        value for name, value in vars(wire).items() if name.endswith("_HEADER")
    }
    paths = (await node.call("GET", "/openapi.json")).body["paths"]
    await node.call("PUT", "/v1/topics/a", {})
    for path, sought in read.items():
        described = paths[path]["get"]["responses"]["200"]["headers"]
        assert sought <= {name.lower() for name in described}, path
    for path, asked_for in ((log, ""), (events, "&span_bytes=1")):
        answer = await node.call("GET", f"{path}?from_index=1{asked_for}")
        sent = {name.lower() for name in answer.headers}
        assert {name.lower() for name in paths[path]["get"]["responses"]["200"]["headers"]} <= sent
    assert routes.APPLIED_INDEX_HEADER.lower() == every
