"""The models keep to their rules about messages and transactions that go with time; each rule is kept and broken."""

import pytest

from store.commands.groups import GiveBack, GivenBack
from store.commands.messages import BatchHeader
from store.commands.pops import (
    ChangeInvisible,
    ExpirePopped,
    InvisibleChanged,
    InvisibleOutcome,
    Pop,
    PopHandle,
    Popped,
    PoppedMessages,
    PopsExpired,
)
from store.commands.retention import Expired, ExpireMessages
from store.commands.transactions import (
    ChecksRecorded,
    Decide,
    Decided,
    Decision,
    Discard,
    Discarded,
    Prepare,
    Prepared,
    RecordChecks,
    Resumed,
    ResumeTransaction,
)
from store.errors import OFFSET_OUT_OF_RANGE, Refused

from .broken import broken
from .checkers.group_model import GroupModel
from .checkers.pop_model import PopModel
from .checkers.redelivery_model import RedeliveryModel
from .checkers.retention import Retention
from .checkers.transaction_model import TransactionModel

PLACE = ("orders", 0)
KEPT_MS = 500


class Begins(Retention):
    """Queues that begin where the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.begin = 0

    def start(self, place: tuple[str, int]) -> int:
        return self.begin if place == PLACE else 0


def pop(model: PopModel, raft_index: int, *offsets: int) -> None:
    given = (PoppedMessages("orders", 0, raft_index, 0, offsets),)
    model.pop(Pop("g", "orders", "w", 8, 100), Popped("g", given, 1_100), 1_000)


def test_what_is_gone_is_not_popped_and_does_not_come_again() -> None:
    retention = Begins()
    model = PopModel(GroupModel(retention), retention)
    pop(model, 7, 0, 1, 2)
    retention.begin = 2
    handles = [PopHandle(7, 0, offset) for offset in range(3)]

    def given_back(offset: int, outcome: InvisibleOutcome) -> None:
        model.change(ChangeInvisible("g", handles[offset], 0), InvisibleChanged("g", outcome, None), 1_000)

    broken("popped_lost", lambda: given_back(0, "scheduled"))
    broken("popped_lost", lambda: given_back(2, "gone"))
    given_back(0, "gone")
    over = (("g", PoppedMessages("orders", 0, 7, 0, (1, 2))),)
    broken("popped_lost", lambda: model.expire(ExpirePopped(9), PopsExpired(over, 2, 0, 1), 1_100))
    assert model.known["g"].given == [(PLACE, 2)]
    retention.begin = 5
    assert model.next("g", PLACE) == 5
    broken("pop_order", lambda: pop(model, 8, 3))
    pop(model, 8, 5)


def test_only_what_is_gone_cannot_be_given_back() -> None:
    retention = Begins()
    model = RedeliveryModel(GroupModel(retention), retention)
    command = GiveBack("g", None, None, (GivenBack("orders", 0, 3),))
    refused = Refused(OFFSET_OUT_OF_RANGE, "")
    broken("given_back", lambda: model.give_back(command, refused))
    retention.begin = 4
    model.give_back(command, refused)


def prepare(model: TransactionModel, *, duplicate: bool = False) -> None:
    command = Prepare("t", "pay", "c", 100, (BatchHeader("orders", 0, 1, "b", None, 0, 1),))
    model.prepare(command, Prepared("t", "prepared", duplicate, 1_000), 1_000)


def decide(model: TransactionModel, decision: Decision, at_ms: int) -> None:
    state = "committed" if decision == "commit" else "rolled_back"
    model.decide(Decide("t", decision, "producer", "c", "pay"), Decided("t", state), at_ms)  # type: ignore[arg-type]


def expire(model: TransactionModel, at_ms: int, transactions: int) -> None:
    model.expire(ExpireMessages((), 10), Expired((), 0, transactions), at_ms)


@pytest.fixture
def model() -> TransactionModel:
    """Return a model in which one transaction is prepared."""
    made = TransactionModel()
    made.retention_ms = KEPT_MS
    prepare(made)
    return made


def test_an_undecided_transaction_is_never_forgotten(model: TransactionModel) -> None:
    broken("forgotten", lambda: expire(model, 1 << 40, 1))
    expire(model, 1 << 40, 0)
    assert model.state_of("t") == "prepared"


def test_a_decided_transaction_is_forgotten_in_time_and_not_before(model: TransactionModel) -> None:
    decide(model, "commit", 2_000)
    broken("forgotten", lambda: expire(model, 2_000 + KEPT_MS - 1, 1))
    broken("forgotten", lambda: expire(model, 2_000 + KEPT_MS, 0))
    expire(model, 2_000 + KEPT_MS, 1)
    assert (model.state_of("t"), "t" in model.known, model.was_committed("t")) == ("committed", False, True)
    broken("idempotent_prepare", lambda: prepare(model, duplicate=True))


def test_one_that_was_forgotten_and_is_prepared_again_is_another(model: TransactionModel) -> None:
    decide(model, "commit", 2_000)
    expire(model, 2_000 + KEPT_MS, 1)
    prepare(model)
    decide(model, "rollback", 3_000)
    assert model.reborn == {"t"}
    assert (model.state_of("t"), model.was_committed("t")) == ("rolled_back", True)


def test_a_check_of_one_that_was_forgotten_may_reach_the_one_that_is_prepared_again(model: TransactionModel) -> None:
    """Seed 1610141: the check was on its way when the earlier transaction was decided."""
    model.left["t"] = 2
    check = RecordChecks(("t",), "c", "poll", 50)
    broken("immunity", lambda: model.record(check, ChecksRecorded(("t",)), 1_000))
    decide(model, "commit", 2_000)
    expire(model, 2_000 + KEPT_MS, 1)
    prepare(model)
    model.record(check, ChecksRecorded(("t",)), 1_000)


def test_what_was_resumed_is_kept_by_its_last_decision(model: TransactionModel) -> None:
    model.check_max = 0
    model.discard(Discard(("t",)), Discarded(("t",)), 2_000)
    model.resume(ResumeTransaction("t", "ann", "by phone", 50), Resumed("t", "prepared", 2_150), 2_100)
    expire(model, 2_000 + KEPT_MS, 1)  # its first discard, which was undone
    assert model.state_of("t") == "prepared"
    decide(model, "commit", 3_000)
    expire(model, 3_000 + KEPT_MS, 1)
    assert model.forgotten == {"t": "committed"}
