"""The durability gate keeps order, waits for the disk, and takes promises back."""

from raft.gate import DurabilityGate


def make_gate() -> tuple[DurabilityGate, list[tuple[int, str]]]:
    sent: list[tuple[int, str]] = []
    return DurabilityGate(lambda peer, message: sent.append((peer, message))), sent


def test_durable_promise_leaves_at_once() -> None:
    gate, sent = make_gate()
    gate.submit(2, "ack 5", needs_index=5, synced_index=5)
    assert sent == [(2, "ack 5")]


def test_promise_waits_for_its_own_index() -> None:
    gate, sent = make_gate()
    gate.submit(2, "ack 5", 5, 3)
    gate.submit(3, "ack 6", 6, 3)
    gate.release(4)
    assert sent == []
    gate.release(5)
    assert sent == [(2, "ack 5")]
    gate.release(6)
    assert sent == [(2, "ack 5"), (3, "ack 6")]


def test_no_promise_overtakes_another() -> None:
    gate, sent = make_gate()
    gate.submit(2, "ack 5", 5, 3)
    gate.submit(2, "vote", 3, 3)
    assert sent == []
    gate.release(5)
    assert sent == [(2, "ack 5"), (2, "vote")]


def test_discarded_promises_are_never_made() -> None:
    gate, sent = make_gate()
    gate.submit(2, "ack 5", 5, 3)
    gate.discard()
    gate.release(9)
    assert sent == []
    assert len(gate) == 0
