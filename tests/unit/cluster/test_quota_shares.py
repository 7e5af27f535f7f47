"""Ten principals that send flat out get a tenth each, and a node whose quotas are broken on purpose is found guilty."""

from collections.abc import Callable

import pytest

from cluster.budgets.quotas import Quota, Quotas, _Principals
from cluster.budgets.token_bucket import TokenBucket
from cluster.problems import Problem
from cluster.process.quota_file import Rates
from tests.sim.variant import Swap, Variant, mutant
from tests.unit.cluster.quota_load import KINDS, Kind, judge, run

SEEDS = (1, 2, 3)

_begin, _refusal, _wait_s, _take, _of_user = (
    Quota.begin,
    Quota._refusal,
    TokenBucket.wait_s,
    TokenBucket.take,
    Quotas.of_user,
)


def takes_nothing(bucket: TokenBucket, now_s: float, tokens: int) -> None:
    """A request costs nothing."""


def forgives_debts(bucket: TokenBucket, now_s: float, tokens: int) -> None:
    """A mutant forgets the bytes that a body or an answer takes beyond a full bucket."""
    _take(bucket, now_s, tokens)
    bucket._full_s = min(bucket._full_s, now_s + 1)


def takes_twice(bucket: TokenBucket, now_s: float, tokens: int) -> None:
    """Everything costs double."""
    _take(bucket, now_s, 2 * tokens)


def fills_for_ever(bucket: TokenBucket, now_s: float, tokens: int) -> None:
    """A bucket has no bottom: who was silent may take what he has not taken before, however long ago."""
    begun_s = bucket._full_s if bucket._full_s != float("-inf") else now_s
    bucket._full_s = begun_s + tokens * bucket._token_s - 0.2 / bucket.rate


def answers_are_free(quota: Quota, now_s: float, out_bytes: int) -> None:
    """Bytes of answers are not charged."""


def bodies_are_free(quota: Quota, now_s: float, in_bytes: int, *, keeps_session: bool = False) -> None:
    """Bytes of bodies are not charged."""
    _begin(quota, now_s, 0, keeps_session=keeps_session)


def charges_what_it_refuses(quota: Quota, now_s: float, in_bytes: int, *, keeps_session: bool = False) -> None:
    """A refused request costs as much as one that is served."""
    try:
        _begin(quota, now_s, in_bytes, keeps_session=keeps_session)
    except Problem:
        for bucket in (quota._requests, quota._in_bytes):
            if bucket is not None:
                bucket.take(now_s, 1)
        raise


def refuses_heartbeats_like_others(quota: Quota, now_s: float, in_bytes: int, *, keeps_session: bool = False) -> None:
    """A consumer that asks for too much loses its session."""
    _begin(quota, now_s, in_bytes)


def all_users_are_one(quotas: Quotas, name: str) -> Quota:
    """All users share one quota."""
    return _of_user(quotas, "everybody")


def forgets_whoever_comes(principals: _Principals, name: str, now_s: float) -> Quota:
    """Nobody is remembered: every request finds full buckets."""
    return principals._make(name)


def begins_anew_at_every_look(principals: _Principals, rates_of: Callable[[str], Rates]) -> None:
    """Reading the file again makes all debts forgotten."""
    principals.known = {}


def tells_half_the_wait(quota: Quota, limit: str, bucket: TokenBucket, wait_s: float) -> Problem:
    """A mutant refuses a client again that has waited as long as it was told."""
    return _refusal(quota, limit, bucket, wait_s / 2)


def tells_all_the_same_time(bucket: TokenBucket, now_s: float, wait_s: float) -> float:
    """All who were refused come back at once, for what is enough for one."""
    return wait_s


def counts_nobody(quotas: Quotas, name: str) -> None:
    """Refused requests are not counted."""


MUTANTS = (
    mutant(0, Swap(TokenBucket, "take", takes_nothing)),
    mutant(0, Swap(TokenBucket, "take", forgives_debts)),
    mutant(0, Swap(TokenBucket, "take", takes_twice)),
    mutant(0, Swap(TokenBucket, "take", fills_for_ever)),
    mutant(0, Swap(Quota, "sent", answers_are_free)),
    mutant(0, Swap(Quota, "begin", bodies_are_free)),
    mutant(0, Swap(Quota, "begin", charges_what_it_refuses)),
    mutant(0, Swap(Quota, "begin", refuses_heartbeats_like_others)),
    mutant(0, Swap(Quotas, "of_user", all_users_are_one)),
    mutant(0, Swap(_Principals, "add", forgets_whoever_comes)),
    mutant(0, Swap(_Principals, "go_by", begins_anew_at_every_look)),
    mutant(0, Swap(Quota, "_refusal", tells_half_the_wait)),
    mutant(0, Swap(TokenBucket, "turn_s", tells_all_the_same_time)),
    mutant(0, Swap(Quotas, "_note", counts_nobody)),
)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.tight)
def test_ten_principals_that_send_flat_out_get_a_tenth_each(kind: Kind, seed: int) -> None:
    assert judge(run(kind, seed)) is None


@pytest.mark.parametrize("variant", MUTANTS, ids=lambda variant: variant.name)
def test_broken_quotas_are_found_guilty(variant: Variant) -> None:
    with variant.installed():
        assert any(judge(run(kind, SEEDS[0])) for kind in KINDS), variant.breaks
