"""Five ways in which stock PySyncObj 0.3.17 breaks its promises, and that the repaired handlers do not.

Each scenario runs twice. A scenario that stops hurting the stock library has lost its point, so that fails too.
"""

from collections.abc import Callable

import pytest

from tests.sim import scenarios
from tests.sim.bench import MakeMember
from tests.sim.bench_members import SafeMember, StockMember
from tests.sim.checkers import Violation

Scenario = Callable[[MakeMember], None]

SCENARIOS = [
    pytest.param(scenarios.resent_batch_cuts_acknowledged_entries, "leader_completeness", id="row-1"),
    pytest.param(scenarios.snapshot_message_commits_a_divergent_tail, "state_machine_safety", id="row-2"),
    pytest.param(scenarios.acknowledgement_of_an_earlier_leadership, "leader_completeness", id="row-4"),
    pytest.param(scenarios.duplicated_vote_is_counted_twice, "election_safety", id="row-5"),
    pytest.param(scenarios.failing_callback_applies_twice, "applied_once", id="row-10-callback"),
    pytest.param(scenarios.failing_apply_leaves_a_mute_leader, "progress", id="row-10-apply"),
]


@pytest.mark.parametrize(("scenario", "invariant"), SCENARIOS)
def test_stock_is_guilty(scenario: Scenario, invariant: str) -> None:
    with pytest.raises(Violation) as caught:
        scenario(StockMember)
    assert caught.value.invariant == invariant


@pytest.mark.parametrize(("scenario", "invariant"), SCENARIOS)
def test_repaired_handlers_are_not(scenario: Scenario, invariant: str) -> None:
    scenario(SafeMember)
