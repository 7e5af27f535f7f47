"""An impossible message costs its sender the connection. The receiver stops only when such messages go on."""

import pytest

from raft.distrust import CONTRADICTIONS_MAX, TERM_LEAP_MAX, Distrust, check_term
from raft.errors import ProtocolError, SafetyViolation


def test_a_term_that_no_election_led_to_is_not_adopted() -> None:
    for told in (0, 7, 7 + TERM_LEAP_MAX):
        check_term(7, told)
    with pytest.raises(ProtocolError, match="this node knows term 7"):
        check_term(7, 8 + TERM_LEAP_MAX)


def test_a_node_doubts_itself_when_it_is_contradicted_again_and_again() -> None:
    distrust = Distrust()
    for _ in range(CONTRADICTIONS_MAX - 1):
        with pytest.raises(ProtocolError, match="another entry at 5"):
            distrust.contradicted("another entry at 5")
    with pytest.raises(SafetyViolation, match="another entry at 5"):
        distrust.contradicted("another entry at 5")
