"""The latencies that the trials of `make deploy-test` report, and whether they meet the goal."""

from tests.deploy.trial import P99_GOAL_MS, latency_figures


def test_the_99th_percentile_is_held_to_the_goal() -> None:
    """One slow call of two hundred is no 99th percentile; three are."""
    goal_s = P99_GOAL_MS / 1_000
    met = latency_figures("verbs", [5.0, *199 * [goal_s]])
    assert met == {
        "verbs_sends": 200,
        "verbs_p99_ms": 1_000.0,
        "verbs_slowest_ms": 5_000.0,
        "verbs_p99_goal_met": True,
    }
    missed = latency_figures("versions", [*3 * [2.0], *197 * [0.01]])
    assert (missed["versions_p99_ms"], missed["versions_p99_goal_met"]) == (2_000.0, False)
