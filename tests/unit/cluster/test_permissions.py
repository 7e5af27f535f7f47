"""An action that no rule allows is denied, deny wins, networks bind, and rules that could never match are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.security.permissions import (
    ACTIONS,
    CLUSTER,
    LOG,
    Action,
    Permissions,
    Resource,
    check_rule,
    group,
    resource_of,
    topic,
)
from store.commands.users import Rule

HERE = "10.1.2.3"
ORDERS = Resource("topic", "orders")


def allow(*actions: str, on: str, networks: tuple[str, ...] = ()) -> Rule:
    return Rule("allow", actions, on, networks)


def deny(*actions: str, on: str, networks: tuple[str, ...] = ()) -> Rule:
    return Rule("deny", actions, on, networks)


def may(rules: list[Rule], action: Action, resource: Resource = ORDERS, address: str = HERE) -> bool:
    return Permissions(rules, address).verdict(action, resource).allowed


def test_what_no_rule_allows_is_denied() -> None:
    assert not any(may([], action) for action in ACTIONS)
    assert not may([allow("read", on="topic:orders")], "send")
    assert not may([allow("send", on="topic:points")], "send")
    assert not may([allow("send", on="group:orders")], "send")


@pytest.mark.parametrize("pattern", ["topic:orders", "topic:ord*", "topic:*", "*"])
def test_names_match_as_a_whole_by_prefix_or_all(pattern: str) -> None:
    assert may([allow("send", on=pattern)], "send")


def test_a_name_is_no_prefix() -> None:
    assert not may([allow("send", on="topic:ord")], "send")
    assert not may([allow("send", on="topic:orders")], "send", Resource("topic", "orders2"))


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ([], False),
        ([allow("read", on="topic:*")], True),
        ([allow("*", on="*")], True),
        ([allow("read", on="topic:ord*"), allow("read", on="group:*")], False),
        ([allow("send", on="topic:*")], False),
        ([allow("*", on="*"), deny("read", on="topic:secret")], False),
        ([allow("*", on="*"), deny("send", on="topic:*"), deny("read", on="group:*")], True),
        ([allow("read", on="*", networks=("192.168.0.0/16",))], False),
    ],
)
def test_all_is_allowed_by_a_rule_for_all_and_no_exception(rules: list[Rule], allowed: bool) -> None:
    assert Permissions(rules, HERE).allow_all("read", "topic") is allowed


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ([allow("describe", on="topic:*")], True),
        ([allow("send", on="topic:*")], True),
        ([allow("send", on="topic:ord*")], False),
        ([allow("read", on="group:*")], False),
        ([allow("*", on="*"), deny("read", on="topic:secret")], True),
        ([allow("*", on="*"), deny("describe", on="topic:secret")], False),
        ([deny("read", on="topic:*")], False),
    ],
)
def test_all_is_described_by_whom_anything_is_allowed_with_all(rules: list[Rule], allowed: bool) -> None:
    assert Permissions(rules, HERE).allow_all("describe", "topic") is allowed


def test_deny_wins_wherever_it_stands() -> None:
    for rules in (
        [allow("*", on="*"), deny("send", on="topic:orders")],
        [deny("send", on="topic:o*"), allow("*", on="*")],
    ):
        assert not may(rules, "send")
        assert may(rules, "read")


def test_every_allowed_action_implies_describe_unless_it_is_denied() -> None:
    assert may([allow("send", on="topic:orders")], "describe")
    assert not may([allow("send", on="topic:orders"), deny("describe", on="topic:*")], "describe")
    assert not may([deny("send", on="topic:orders")], "describe"), "a denial implies nothing"


def test_a_rule_with_networks_holds_inside_them_only() -> None:
    rules = [allow("send", on="topic:orders", networks=("10.1.0.0/16", "2001:db8::/32"))]
    assert may(rules, "send")
    assert may(rules, "send", address="2001:db8::7")
    assert may(rules, "send", address="::ffff:10.1.9.9"), "an IPv4 client of an IPv6 socket"
    assert not may(rules, "send", address="10.2.0.1")
    assert not may(rules, "send", address="nonsense")
    assert not may([allow("*", on="*"), deny("send", on="*", networks=("10.1.0.0/16",))], "send", address="nonsense")


def test_topics_of_groups_and_of_transactions_belong_to_them() -> None:
    assert topic("%RETRY%billing") == topic("%DLQ%billing") == group("billing")
    assert topic("RMQ_SYS_TRANS_HALF_TOPIC") == LOG
    assert topic("orders") == ORDERS
    assert not may([allow("read", on="topic:*")], "read", topic("%DLQ%billing"))


def test_resources_are_parsed() -> None:
    assert resource_of("topic:a:b") == Resource("topic", "a:b")
    assert resource_of("cluster") == CLUSTER
    assert resource_of("topic:%DLQ%billing") == group("billing"), "as a request uses it"
    assert str(CLUSTER) == "cluster"
    assert str(ORDERS) == "topic:orders"
    for text in ("", "topic", "topic:", "queue:x", "cluster:other"):
        with pytest.raises(ValueError, match="is not a resource"):
            resource_of(text)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (allow("fly", on="topic:x"), "actions: give at least one of"),
        (allow(on="topic:x"), "actions: give at least one of"),
        (allow("decide", on="topic:x"), "decide does not exist for a topic"),
        (allow("send", on="cluster"), "send does not exist for a cluster"),
        (allow("send", on="queue:x"), "is not a resource"),
        (allow("send", on="topic:a*b"), "stands at the end only"),
        (allow("send", on="topic:" + "x" * 300), "at most 300 characters"),
        (allow("send", on="topic:x", networks=("10.0.0.1/8",)), "host bits set"),
        (deny("send", on="topic:x", networks=("::ffff:10.0.0.0/104",)), "give them as such"),
        (deny("read", on="topic:%RETRY%g"), "belongs to group:g"),
        (deny("read", on="topic:%DLQ%*"), "belongs to group"),
        (deny("read", on="topic:RMQ_SYS_TRANS_HALF_TOPIC"), "belongs to log"),
        (allow("send", on="topic:x", networks=("10.0.0.0/8",) * 33), "at most 32"),
    ],
)
def test_a_rule_that_is_not_valid_is_refused_in_a_sentence(rule: Rule, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_rule(rule)


_names = st.sampled_from(("a", "ab", "abc", "b"))
_patterns = st.one_of(
    st.just("*"),
    st.builds(
        "{}:{}{}".format,
        st.sampled_from(("topic", "group")),
        st.sampled_from(("a", "ab", "")),
        st.sampled_from(("", "*")),
    ).filter(lambda pattern: not pattern.endswith(":")),
)
_rules = st.lists(
    st.builds(
        Rule,
        st.sampled_from(("allow", "deny")),
        st.lists(st.sampled_from(("read", "alter", "describe", "*")), min_size=1, max_size=2).map(tuple),
        _patterns,
        st.sampled_from(((), ("10.0.0.0/8",), ("192.168.0.0/16",))),
    ),
    max_size=5,
)


def _matches(rule: Rule, resource: Resource) -> bool:
    text = f"{resource.kind}:{resource.name}"
    return text.startswith(rule.resource[:-1]) if rule.resource.endswith("*") else text == rule.resource


@given(_rules, st.sampled_from(("read", "alter", "describe")), st.sampled_from(("topic", "group")), _names)
def test_verdicts_are_those_of_the_sentence(rules: list[Rule], action: Action, kind: str, name: str) -> None:
    """The definition, word by word: some rule allows it, and none denies it."""
    resource = Resource(kind, name)  # type: ignore[arg-type]
    valid = [rule for rule in rules if rule.networks != ("192.168.0.0/16",) and _matches(rule, resource)]
    denied = any(rule.effect == "deny" and {action, "*"} & {*rule.actions} for rule in valid)
    allowed = any(
        rule.effect == "allow" and (action == "describe" or {action, "*"} & {*rule.actions}) for rule in valid
    )
    verdict = Permissions(rules, HERE).verdict(action, resource)
    assert verdict.allowed == (allowed and not denied)
    assert (verdict.rule is not None) == (allowed or denied)
