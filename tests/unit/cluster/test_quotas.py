"""Quotas by a clock of our own: each principal gets its rates, a burst, and no more, whatever the others do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.budgets import quotas as quotas_module
from cluster.budgets.quotas import ANONYMOUS, SERIES_MAX, Quota, Quotas
from cluster.budgets.token_bucket import BURST_S, TokenBucket
from cluster.problems import Problem
from cluster.process.quota_file import QuotaSettings, Rates
from tests.unit.cluster.quota_load import Clock

MIB = 1 << 20


def quotas_of(clock: Clock, **sections: Rates) -> Quotas:
    users = {name: rates for name, rates in sections.items() if name not in ("default", "anonymous")}
    fixed = {name: rates for name, rates in sections.items() if name in ("default", "anonymous")}
    return Quotas(QuotaSettings(**fixed, users=users), clock)


def refusal(quota: Quota, clock: Clock, in_bytes: int = 0, *, keeps_session: bool = False) -> Problem | None:
    try:
        quota.begin(clock(), in_bytes, keeps_session=keeps_session)
    except Problem as problem:
        return problem
    return None


def wait_ms(problem: Problem | None) -> int:
    assert problem is not None
    assert problem.code == "quota_exceeded"
    assert isinstance(problem.extra["retry_after_ms"], int)
    return problem.extra["retry_after_ms"]


def counted(quotas: Quotas) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels.get("principal", "")): sample.value
        for metric in quotas.counters()
        for sample in metric.samples
    }


@given(rate=st.integers(1, 100_000), takes=st.lists(st.tuples(st.floats(0, 3), st.integers(1, 3)), max_size=60))
def test_a_bucket_gives_its_rate_and_one_burst_in_every_span(rate: int, takes: list[tuple[float, int]]) -> None:
    """Nobody who asks for what the bucket holds ever gets more than rate x time and one burst, from any moment on."""
    bucket, now_s, given_at = TokenBucket(rate), 1_000.0, list[tuple[float, int]]()
    for pause_s, tokens in takes:
        now_s += pause_s
        if tokens <= rate and bucket.wait_s(now_s, tokens) <= 0:
            bucket.take(now_s, tokens)
            given_at.append((now_s, tokens))
    for first, (from_s, _) in enumerate(given_at):
        total = 0
        for until_s, tokens in given_at[first:]:
            total += tokens
            assert total <= rate * (until_s - from_s + BURST_S) * (1 + 1e-6) + 1e-3


@pytest.mark.parametrize("rate", [1, 3, 7, 1_000, 99_991])
def test_a_silent_principal_may_use_one_burst_at_once_and_then_its_rate(rate: int) -> None:
    clock = Clock()
    quota = quotas_of(clock, default=Rates(requests_per_s=rate)).of_user("shop")
    for _ in range(rate):
        assert refusal(quota, clock) is None
    after_ms = wait_ms(refusal(quota, clock))
    assert after_ms == pytest.approx(1_000 / rate, abs=1.1)
    clock.now_s += after_ms / 1000
    assert refusal(quota, clock) is None, "a client that waits as it was told is served"


def test_bytes_beyond_the_quota_are_served_and_delay_the_next_request() -> None:
    clock = Clock()
    quota = quotas_of(clock, default=Rates(in_bytes_per_s=MIB, out_bytes_per_s=MIB)).of_user("shop")
    assert refusal(quota, clock, 8 * MIB) is None
    problem = refusal(quota, clock, 1)
    assert wait_ms(problem) == 7_000
    assert problem is not None
    assert problem.extra | {"retry_after_ms": 0} == {"quota": "in_bytes_per_s", "limit": MIB, "retry_after_ms": 0}
    assert problem.response().headers["Retry-After"] == "7"
    clock.now_s += 7
    assert refusal(quota, clock) is None
    quota.sent(clock(), 3 * MIB)
    assert wait_ms(refusal(quota, clock)) == 2_000
    quota.received(clock(), 4 * MIB)
    clock.now_s += 2
    assert wait_ms(refusal(quota, clock)) == 2_000, "the body that announced no length counts too"


def test_what_is_refused_is_not_charged() -> None:
    clock = Clock()
    quota = quotas_of(clock, default=Rates(requests_per_s=10, in_bytes_per_s=MIB)).of_user("shop")
    assert refusal(quota, clock, 2 * MIB) is None
    for _ in range(1_000):
        assert 1_000 <= wait_ms(refusal(quota, clock, 16 * MIB)) <= 2_000
    clock.now_s += 1
    assert [refusal(quota, clock) for _ in range(10)] == [None] * 10


def test_those_who_are_refused_come_again_one_after_the_other() -> None:
    clock = Clock()
    quota = quotas_of(clock, default=Rates(requests_per_s=10)).of_user("shop")
    for _ in range(10):
        assert refusal(quota, clock) is None
    told_ms = [wait_ms(refusal(quota, clock)) for _ in range(30)]
    assert told_ms == pytest.approx([min(100 * turn, 1_100) for turn in range(1, 31)], abs=1)
    for turn in range(1, 11):
        clock.now_s = 1_000 + turn / 10 + 0.001
        assert refusal(quota, clock) is None, "each finds what it was told to wait for"


def test_sessions_are_kept_beyond_the_quota_but_not_without_end() -> None:
    clock = Clock()
    quota = quotas_of(clock, default=Rates(requests_per_s=10, out_bytes_per_s=MIB)).of_user("shop")
    quota.sent(clock(), 100 * MIB)
    assert wait_ms(refusal(quota, clock)) == 99_000
    assert [refusal(quota, clock, keeps_session=True) for _ in range(20)] == [None] * 20
    assert wait_ms(refusal(quota, clock, keeps_session=True)) == 100


def test_a_section_of_a_user_counts_instead_of_the_default_and_addresses_have_their_own() -> None:
    clock = Clock()
    quotas = quotas_of(
        clock, default=Rates(requests_per_s=2), anonymous=Rates(requests_per_s=1), shop=Rates(requests_per_s=3)
    )
    allowed = {
        quota: sum(refusal(quota, clock) is None for _ in range(10))
        for quota in (
            quotas.of_user("shop"),
            quotas.of_user("other"),
            quotas.of_address("10.0.0.1"),
            quotas.of_address("10.0.0.2"),
        )
    }
    assert list(allowed.values()) == [3, 2, 1, 1]
    assert quotas.of_user("10.0.0.1") is not quotas.of_address("10.0.0.1"), "a user may be called like an address"
    throttled = "keelmq_quota_throttled_total"
    assert counted(quotas)[throttled, ANONYMOUS] == 18
    assert counted(quotas)[throttled, "shop"] == 7


def test_new_settings_hold_at_once_and_free_those_whose_rates_changed() -> None:
    clock = Clock()
    quotas = quotas_of(clock, default=Rates(in_bytes_per_s=MIB), kept=Rates(in_bytes_per_s=2 * MIB))
    for name in ("kept", "changed"):
        assert refusal(quotas.of_user(name), clock, 100 * MIB) is None
    quotas.use(QuotaSettings(default=Rates(in_bytes_per_s=4 * MIB), users={"kept": Rates(in_bytes_per_s=2 * MIB)}))
    assert wait_ms(refusal(quotas.of_user("kept"), clock)) == 49_000
    assert refusal(quotas.of_user("changed"), clock, 8 * MIB) is None
    assert wait_ms(refusal(quotas.of_user("changed"), clock)) == 1_000
    quotas.use(QuotaSettings())
    assert refusal(quotas.of_user("kept"), clock) is None


def test_senders_have_the_weights_of_their_sections() -> None:
    quotas = quotas_of(Clock(), default=Rates(weight=2), anonymous=Rates(weight=5), shop=Rates(weight=7))
    senders = ("principal shop", "principal other", "10.0.0.1", "shop", "principal 10.0.0.1")
    assert [quotas.weight_of(sender) for sender in senders] == [7, 2, 5, 5, 2]
    assert not quotas.is_unlimited, "who is shown has been looked up"
    quotas.use(QuotaSettings(default=Rates(weight=1), users={"shop": Rates(requests_per_s=1)}))
    assert {quotas.weight_of(sender) for sender in senders} == {1}
    quotas.use(QuotaSettings(default=Rates(weight=1)))
    assert quotas.is_unlimited


@pytest.mark.parametrize("section", ["default", "anonymous", "shop"])
def test_settings_are_unlimited_while_no_section_limits_anything(section: str) -> None:
    assert quotas_of(Clock(), **{section: Rates(in_bytes_per_s=0)}).is_unlimited
    assert not quotas_of(Clock(), **{section: Rates(in_bytes_per_s=MIB)}).is_unlimited


def test_addresses_without_number_take_bounded_memory_and_no_debt_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas_module, "PRINCIPALS_MAX", 100)
    clock = Clock()
    quotas = quotas_of(clock, anonymous=Rates(in_bytes_per_s=MIB))
    for number in range(50):
        assert refusal(quotas.of_address(f"owes-{number}"), clock, 3_600 * MIB) is None
    for number in range(5_000):
        clock.now_s += 0.01
        assert refusal(quotas.of_address(f"passes-{number}"), clock) is None
        assert len(quotas._addresses.known) <= 100
    for number in range(50):
        assert refusal(quotas.of_address(f"owes-{number}"), clock) is not None
    for number in range(50):
        assert refusal(quotas.of_address(f"owes-too-{number}"), clock, 3_600 * MIB) is None
    clock.now_s += 2
    assert refusal(quotas.of_address("shares"), clock, 2 * MIB) is None
    assert refusal(quotas.of_address("shares-too"), clock) is not None, "those without room share one quota"


def test_the_metrics_are_bounded() -> None:
    clock = Clock()
    quotas = quotas_of(clock, default=Rates(requests_per_s=1))
    for number in range(3 * SERIES_MAX):
        quota = quotas.of_user(f"user-{number}")
        for _ in range(3):
            refusal(quota, clock)
    shown = counted(quotas)
    series = [value for (name, _), value in shown.items() if name == "keelmq_quota_throttled_total"]
    assert series == [2] * SERIES_MAX
    assert shown["keelmq_quota_throttled_others_total", ""] == 2 * 2 * SERIES_MAX
    assert shown["keelmq_quota_throttled_other_principals", ""] == 2 * SERIES_MAX
