"""Totals, coverage and exit statuses of many seeds."""

import io
import tracemalloc

from deploy.reporting.report import Report
from deploy.reporting.result import result_of

from .coverage import EXPECTED, RARE_SEEDS_MIN, SEEDS_MIN, coverage_table, not_met
from .outcome import Outcome
from .plan import FAULT_KINDS
from .report import EXIT_BLIND, EXIT_COVERAGE, EXIT_VIOLATION, FAILURES_KEPT_MAX, Totals, conclude

EVERYTHING = {f"{area}: {name}": 1 for area, names in EXPECTED.items() for name in names}


def totals(*outcomes: Outcome) -> Totals:
    found = Totals()
    for outcome in outcomes:
        found.add(outcome)
    return found


def test_exit_statuses() -> None:
    innocent, guilty = totals(Outcome(0)), totals(Outcome(0, violation="acknowledged_lost"))
    assert conclude(Report(io.StringIO()), innocent, innocent, 0) == EXIT_BLIND
    assert conclude(Report(io.StringIO()), innocent, guilty, 0) == 0
    assert conclude(Report(io.StringIO()), guilty, guilty, 0) == EXIT_VIOLATION


def test_what_many_seeds_never_met_is_named() -> None:
    whole, lacking = dict(EVERYTHING), dict(EVERYTHING)
    lacking["fault: wipe"] = 0
    del lacking["recovery: torn_tail"]
    rare = dict(EVERYTHING)
    del rare["recovery: zero_filled_tail"]
    guilty = totals(Outcome(0, violation="acknowledged_lost"))
    for met, seeds, status, missing in (
        (whole, SEEDS_MIN, 0, []),
        (lacking, SEEDS_MIN, EXIT_COVERAGE, ["fault: wipe", "recovery: torn_tail"]),
        (lacking, SEEDS_MIN - 1, 0, ["fault: wipe", "recovery: torn_tail"]),
        (rare, RARE_SEEDS_MIN - 1, 0, ["recovery: zero_filled_tail"]),
        (rare, RARE_SEEDS_MIN, EXIT_COVERAGE, ["recovery: zero_filled_tail"]),
    ):
        ours = totals(*(Outcome(seed, met=met) for seed in range(seeds)))
        output = io.StringIO()
        assert conclude(Report(output), ours, guilty, 0) == status
        result = result_of(output.getvalue())
        assert result["not_met"] == missing
        assert result["coverage"]["fault"].keys() == set(FAULT_KINDS)
        named = f"never met in {seeds:,} seeds: {'; '.join(missing)}\n"
        assert (named in output.getvalue()) == bool(missing)


def test_coverage_has_a_place_for_what_was_not_expected() -> None:
    table = coverage_table({"recovery: torn_tail": 3, "refused: brand_new": 1})
    assert table["recovery"]["torn_tail"] == 3
    assert table["recovery"]["clean_end"] == 0
    assert table["refused"]["brand_new"] == 1
    assert "recovery: torn_tail" not in not_met({"recovery: torn_tail": 3})


def test_totals_do_not_depend_on_the_order_of_seeds() -> None:
    outcomes = [Outcome(seed, trace=f"{seed:032x}", acknowledged=seed) for seed in (1, 2, 3)]
    assert totals(*outcomes) == totals(*reversed(outcomes))
    assert totals(*outcomes).trace != totals(*outcomes[:2]).trace


def test_totals_take_the_same_room_for_any_number_of_seeds() -> None:
    found = totals(*(Outcome(seed, violation="x", trace="ff", met=EVERYTHING) for seed in range(FAILURES_KEPT_MAX)))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for seed in range(5_000):
            found.add(Outcome(seed, violation="x", trace="ff", met=dict(EVERYTHING)))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (found.violations, len(found.failures)) == (5_000 + FAILURES_KEPT_MAX, FAILURES_KEPT_MAX)
    assert after - before < 100_000
