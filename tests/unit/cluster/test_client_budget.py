"""One client address may hold only a share of the resources that all addresses use."""

import pytest

from cluster.budgets.client_budget import ByteBudget, ClientBudget, address_of
from cluster.problems import Problem


def fill(budget: ClientBudget, address: str) -> int:
    """Take all units that the address can get and return their number."""
    while budget.has_room(address, 1):
        budget.take(address, 1)
    return budget.held_by(address)


@pytest.mark.parametrize("addresses", [1, 2, 3, 7, 50])
def test_something_is_always_left_for_the_address_that_comes_next(addresses: int) -> None:
    budget = ClientBudget(1_000, 50)
    for number in range(addresses):
        fill(budget, f"10.0.0.{number}")
    assert budget.held < 1_000 or addresses == 50
    if addresses == 1:
        assert budget.held == 500


def test_a_share_of_all_is_the_whole_limit_and_no_more() -> None:
    budget = ClientBudget(1_000, 100)
    assert fill(budget, "10.0.0.1") == 1_000
    assert not budget.has_room("10.0.0.2", 1)


def test_the_reserve_is_for_administration() -> None:
    budget = ClientBudget(1_000, 100, reserved=10)
    assert fill(budget, "10.0.0.1") == 990
    assert budget.has_room("10.0.0.2", 10, administers=True)
    assert not budget.has_room("10.0.0.2", 11, administers=True)


def test_what_is_given_back_is_forgotten() -> None:
    budget = ByteBudget(10, 50, "tests")
    with budget.holding("10.0.0.1", 5):
        budget.require_room()
        with pytest.raises(Problem, match=r"5 bytes of tests of your address") as raised:
            budget.require_room("10.0.0.1", 1)
        assert raised.value.code == "overloaded"
        budget.require_room("10.0.0.2", 2)
    assert budget.held == budget.held_by("10.0.0.1") == 0
    assert budget.largest_holder() == ""
    with budget.holding("10.0.0.1", 10), pytest.raises(Problem):
        budget.require_room()


@pytest.mark.parametrize(
    ("peername", "address"),
    [
        (("192.0.2.7", 40_000), "192.0.2.7"),
        (("::ffff:192.0.2.7", 40_000, 0, 0), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 40_000, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2::9", 1, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::/64"),
        (("::1", 1, 0, 0), "::1"),
        (None, ""),
        ("", ""),
    ],
)
def test_addresses_of_one_subscriber_are_one(peername: object, address: str) -> None:
    assert address_of(peername) == address
