"""A leader's view of one follower."""

from raft.replication.progress import WINDOW_BYTES, WINDOW_MESSAGES, Progress


def test_probe_sends_one_append_until_it_is_answered() -> None:
    progress = Progress(next_index=5)
    assert progress.may_send()
    progress.sent(7, 100)
    assert not progress.may_send()
    progress.on_ack(7)
    assert progress.may_send()
    assert (progress.acked, progress.next_index) == (7, 8)


def streaming(acked: int) -> Progress:
    progress = Progress(next_index=acked + 1)
    progress.sent(acked, 0)
    progress.on_ack(acked)
    return progress


def test_window_closes_by_messages_and_opens_with_acks() -> None:
    progress = streaming(4)
    for index in range(5, 5 + WINDOW_MESSAGES):
        assert progress.may_send()
        progress.sent(index, 1)
    assert not progress.may_send()
    progress.on_ack(5)
    assert progress.may_send()


def test_window_closes_by_bytes() -> None:
    progress = streaming(4)
    progress.sent(5, WINDOW_BYTES)
    assert not progress.may_send()
    progress.on_ack(5)
    assert progress.may_send()


def test_late_ack_of_less_moves_nothing_back() -> None:
    progress = streaming(9)
    progress.sent(12, 10)
    progress.on_ack(12)
    progress.on_ack(10)
    assert (progress.acked, progress.next_index) == (12, 13)


def test_refusal_goes_to_the_hint_but_never_below_what_is_acknowledged() -> None:
    progress = streaming(9)
    progress.sent(20, 10)
    assert progress.on_reject(rejected_prev=20, hint=3)
    assert progress.next_index == 10
    assert progress.probing


def test_stale_refusals_are_ignored() -> None:
    progress = streaming(9)
    assert not progress.on_reject(rejected_prev=9, hint=2)
    progress.sent(20, 10)
    assert progress.on_reject(rejected_prev=15, hint=12)
    assert not progress.on_reject(rejected_prev=20, hint=18), "an answer to what was sent before the probe"
    assert progress.next_index == 12


def test_hundreds_of_refusals_of_what_was_sent_before_the_probe_bring_one_probe_between_heartbeats() -> None:
    """Heartbeats pile up at a follower that stands. It refuses each: all were sent before the leader knew."""
    progress = streaming(9)
    for last in (20, 30, 40):
        progress.sent(last, 10)
    sent = 0
    for _ in range(600):
        if progress.on_reject(rejected_prev=20, hint=10):
            progress.sent(50, 10)
            sent += 1
    assert sent == 2, "one for the first news, one in case that this probe was lost"
    progress.on_heartbeat()
    assert progress.on_reject(rejected_prev=20, hint=10)


def test_the_refusal_of_a_probe_counts_at_once() -> None:
    progress = streaming(9)
    progress.sent(20, 10)
    progress.sent(90, 10)
    assert progress.on_reject(rejected_prev=80, hint=70)
    for hint in (60, 50, 40):
        rejected_prev = progress.next_index - 1
        progress.sent(90, 10)
        assert progress.on_reject(rejected_prev=rejected_prev, hint=hint)
        assert progress.next_index == hint


def test_lost_connection_sends_again_from_what_is_acknowledged() -> None:
    progress = streaming(9)
    progress.sent(12, 10)
    progress.restart()
    assert progress.next_index == 10
    assert progress.may_send()


def test_a_follower_that_takes_nothing_is_tried_again_with_the_heartbeats_only() -> None:
    """Found by simulation (seed 100111): a follower with a full disk and its leader filled the network with the same
    append, since the refusal of each that came behind it sent it again at once."""
    progress = streaming(9)
    progress.sent(20, 10)
    progress.sent(30, 10)
    assert progress.on_reject(rejected_prev=20, hint=10)
    for _ in range(3):
        assert progress.may_send()
        progress.sent(20, 10)
        progress.on_ack(9)
        assert not progress.may_send()
        assert progress.next_index == 10
        progress.on_heartbeat()
    progress.sent(20, 10)
    progress.on_ack(20)
    assert progress.may_send()
    assert not progress.probing


def test_a_follower_that_takes_a_part_is_sent_the_rest_at_once() -> None:
    progress = Progress(next_index=10)
    progress.sent(20, 10)
    progress.on_ack(15)
    assert progress.may_send()
    assert (progress.probing, progress.next_index) == (True, 16)


def test_answers_to_older_messages_open_no_window_for_a_follower_that_takes_nothing() -> None:
    """Found by simulation (seed 400877): each of them opened it, and every window brought more of them."""
    progress = streaming(9)
    progress.restart()
    progress.sent(20, 10)
    progress.on_ack(9)  # it took nothing of the probe
    progress.on_ack(9)  # an answer to a heartbeat, or to what was sent before
    assert not progress.may_send()
    assert not progress.on_reject(rejected_prev=10, hint=10), "that was behind the probe, so it was sent before"
    assert not progress.may_send()
    progress.on_heartbeat()
    assert progress.may_send()
    progress.sent(20, 10)
    progress.on_ack(20)
    assert not progress.probing


def test_a_heartbeat_finds_out_that_there_is_nothing_to_send() -> None:
    progress = Progress(next_index=5)
    progress.on_ack(4, heartbeat=True)
    assert not progress.probing


def test_a_copy_counts_as_far_as_its_node_said_so_of_it_whatever_is_heard_late() -> None:
    progress = Progress(next_index=1)
    progress.on_ack(20, counts=False)
    progress.on_ack(10, counts=True)
    assert (progress.acked, progress.counted) == (20, 10)
    progress.on_ack(20, counts=True)
    assert progress.counted == 20


def test_the_answer_to_a_heartbeat_says_nothing_of_a_probe_that_is_on_its_way() -> None:
    """A heartbeat overtakes large entries. If its answer counted for them, they would be sent again with every
    heartbeat.
    """
    progress = Progress(next_index=5)
    progress.sent(5, 11_000_000)
    for _ in range(20):
        progress.on_heartbeat()
        progress.on_ack(0, heartbeat=True)
        assert not progress.may_send()
        assert progress.is_in_flight
    assert not progress.take_restarted()
    progress.on_ack(5)
    assert (progress.probing, progress.is_in_flight, progress.acked) == (False, False, 5)


def test_who_begins_anew_says_so_once() -> None:
    progress = streaming(9)
    progress.sent(12, 10)
    assert not progress.take_restarted()
    progress.restart()
    assert progress.take_restarted()
    assert not progress.take_restarted()


def test_a_heartbeat_behind_a_probe_stands_in_for_its_answer() -> None:
    """The probe's own answer was lost because the follower was not connected back yet. No append would follow
    otherwise.
    """
    progress = Progress(next_index=5)
    progress.sent(7, 100)
    progress.on_ack(7, heartbeat=True)
    assert (progress.probing, progress.acked) == (False, 7)
    assert progress.may_send()


def test_a_heartbeat_opens_no_window_for_a_follower_that_takes_nothing() -> None:
    progress = streaming(9)
    progress.restart()
    progress.sent(20, 10)
    progress.on_ack(9)  # its disk is full
    progress.on_ack(9, heartbeat=True)
    assert not progress.may_send()
