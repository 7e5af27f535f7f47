"""Errors that the services log are violations, apart from alarms, which are told to operators and counted."""

import logging
from unittest import mock

import pytest

from .logged_errors import logged_errors_are_violations
from .observer import Observer
from .replica import Replica
from .threads import Running
from .world import World


@pytest.fixture
def observer(monkeypatch: pytest.MonkeyPatch) -> Observer:
    made = Observer(World(0), 1_000, (1,), 1_000)
    monkeypatch.setattr(Running, "node", mock.Mock(spec=Replica, alive=True, node_id=1, observer=made))
    return made


def test_an_alarm_is_counted(observer: Observer) -> None:
    """The coverage of a run names alarms that were never raised: their logger was silenced, and none could be."""
    with logged_errors_are_violations():
        logging.getLogger("cluster.health.alarms").error("alarm %s%s: %s", "clock_in_doubt", "", "set the clocks")
    assert observer.met["alarm: clock_in_doubt"] == 1
    assert observer.found is None


@pytest.mark.parametrize("name", ["cluster.core.core", "aiohttp.server"])
def test_an_error_is_a_violation(observer: Observer, name: str) -> None:
    with logged_errors_are_violations():
        logging.getLogger(name).error("it failed")
    assert observer.found is not None
    assert observer.found.invariant == "error_logged"
