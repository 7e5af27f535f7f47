"""Findings of `keelmq doctor` about messages that wait: transactions, dead letters, groups."""

from collections.abc import Iterator, Mapping
from typing import Final

from keelmq.cli.operations.seen import Finding, Seen

PAUSED_S: Final = 86_400.0
OTHERS: Final = "(others)"
NAMES_MAX: Final = 5
"""Maximum number of groups that one finding names."""


def waiting_messages(seen: Seen) -> Iterator[Finding]:
    shown = seen.of_leader()
    undecided_s = shown.value("keelmq_transactions_undecided_age_seconds")
    if undecided_s > seen.waiting_s:
        evidence = f"{shown.value('keelmq_transactions_undecided'):.0f} are, the oldest for {undecided_s:.0f} s"
        step = "keelmq transaction list --state prepared --older-than 5m"
        yield Finding("transactions_undecided", "warning", "transactions are undecided", evidence, step)
    discarded_s = shown.value("keelmq_transactions_discarded_age_seconds")
    if discarded_s:
        evidence = f"nobody answered their checks; the oldest is {discarded_s:.0f} s old"
        step = "keelmq transaction list --state discarded; then keelmq transaction resume ID --reason WHY, or decide it"
        yield Finding("transactions_discarded", "warning", "transactions were given up", evidence, step)
    for each in shown.all("keelmq_dead_letters"):
        group = each.labels["group"]
        if each.value:
            step = "keelmq group list" if group == OTHERS else f"keelmq dlq list {group}"
            evidence = f"{each.value:.0f}, those that were replayed included"
            yield Finding("dead_letters", "warning", f"group {group} has dead letters", evidence, step)


def waiting_groups(seen: Seen) -> dict[str, float]:
    """Return for how many seconds the oldest message of a group waits, by group, where that is long."""
    longest: dict[str, float] = {}
    for each in seen.of_leader().all("keelmq_consumer_lag_seconds"):
        longest[each.labels["group"]] = max(longest.get(each.labels["group"], 0.0), each.value)
    return {group: lag_s for group, lag_s in longest.items() if lag_s > seen.waiting_s}


def paused_groups(seen: Seen) -> dict[str, float]:
    """Return for how many seconds each paused group is paused."""
    return {each.labels["group"]: each.value for each in seen.of_leader().all("keelmq_group_paused_seconds")}


def forgotten_pauses(seen: Seen) -> Iterator[Finding]:
    """Yield a finding for each group that is paused for long, or whose messages wait for long because it is paused."""
    waiting = waiting_groups(seen)
    for group, paused_s in paused_groups(seen).items():
        if paused_s > PAUSED_S or group in waiting:
            behind = f", and {waiting[group]:.0f} s behind" if group in waiting else ""
            step = (
                "keelmq group list"
                if group == OTHERS
                else f"keelmq group show {group}; then keelmq group resume {group}"
            )
            evidence = f"for {paused_s:.0f} s{behind}"
            yield Finding("group_paused", "warning", f"group {group} is paused", evidence, step)


def lagging_groups(seen: Seen) -> Iterator[Finding]:
    """Yield a finding for each group that waits for long, and one for all of those that were not examined: what is
    wrong with a group is unknown as long as nobody knows whether it has consumers.
    """
    paused, unexamined = paused_groups(seen), {}
    for group, lag_s in waiting_groups(seen).items():
        if group in paused and group != OTHERS:
            continue  # that is why
        evidence = f"{lag_s:.0f} s behind"
        if group not in seen.consumed:
            unexamined[group] = lag_s
        elif seen.consumed[group]:
            what = f"group {group} does not keep up"
            yield Finding("group_lags", "warning", what, evidence, f"keelmq group show {group}")
        else:
            step = f"start its consumers; if nobody needs it any more: keelmq group delete {group}"
            yield Finding("group_without_members", "warning", f"group {group} has no members", evidence, step)
    if unexamined:
        yield _unexamined_groups(unexamined)


def _unexamined_groups(lags_s: Mapping[str, float]) -> Finding:
    longest = sorted(lags_s, key=lambda group: (-lags_s[group], group))
    shown = ", ".join(f"{group} {lags_s[group]:.0f} s" for group in longest[:NAMES_MAX])
    more = f" and {len(longest) - NAMES_MAX} more" * (len(longest) > NAMES_MAX)
    what = (
        f"{len(longest)} groups are behind" if len(longest) > 1 else f"group {longest[0]} is behind"
    ) + ", and it was not examined whether anybody consumes"
    evidence = f"behind by: {shown}{more}; examined are those that wait longest, as far as the token may see them"
    step = "keelmq group list shows lag and members" if OTHERS in lags_s else f"keelmq group show {longest[0]}"
    return Finding("groups_not_examined", "warning", what, evidence, step)
