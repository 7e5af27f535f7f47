"""A leader that was not sure of the time stamped these entries: nothing irreversible follows from them."""

import msgspec
import pytest

from store.commands.entry import Command
from store.commands.messages import BatchPlaced, FireTimers, Produced
from store.commands.retention import ExpireMessages, SweepIndex
from store.commands.topics import PutTopic
from store.commands.transactions import Discard
from store.errors import Refused
from store.limits import DEDUPE_WINDOW_MS
from tests.unit.store.replica import Replica, header, prepare, produce

YEAR_MS = 365 * 86_400_000


@pytest.mark.parametrize(
    "command", [ExpireMessages((("orders", 0),), 10), FireTimers(10), Discard(("tx",), (0,)), SweepIndex(10)]
)
def test_what_is_irreversible_is_refused_and_changes_nothing(replica: Replica, command: Command) -> None:
    replica.one(PutTopic("orders", 1, retention_ms=1_000))
    replica.one(produce(header(batch_id="b1")))
    replica.one(produce(msgspec.structs.replace(header(batch_id="b2"), delay_ms=500)))
    replica.one(prepare("tx", header(batch_id="b3")))
    replica.now_ms += YEAR_MS
    replica.in_doubt = True
    assert replica.refusal(command).code == "clock_in_doubt"
    replica.in_doubt = False
    assert not isinstance(replica.one(command), Refused)


def test_messages_are_stored_and_ids_are_not_forgotten_for_their_age(replica: Replica) -> None:
    replica.one(PutTopic("orders", 1))
    replica.one(produce(header(batch_id="b1")))
    replica.in_doubt = True
    replica.now_ms += 2 * DEDUPE_WINDOW_MS
    for number in range(5):
        assert isinstance(replica.one(produce(header(batch_id=f"c{number}"))), Produced)
    again = replica.one(produce(header(batch_id="b1")))
    assert isinstance(again, Produced)
    assert again.results == (BatchPlaced("orders", 0, 0, 1, True),)
    replica.in_doubt = False
    replica.one(produce(header(batch_id="d")))
    forgotten = replica.one(produce(header(batch_id="b1")))
    assert isinstance(forgotten, Produced)
    assert forgotten.results[0].duplicate is False
