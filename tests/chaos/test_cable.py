"""Tests bad cables: the relay's decisions, frame by frame, and its effect on real interfaces."""

import json
import random
import subprocess
import sys
from typing import Any

import pytest

from tests.chaos.relay import ETHERNET_HEADER_BYTES, Departures, Trouble
from tests.patience import RUN_PATIENCE_S
from tests.requirements import NAMESPACES

IP_HEADER = bytes(12) + b"\x08\x00"
ARP_HEADER = bytes(12) + b"\x08\x06"


def frame(number: int, header: bytes = IP_HEADER) -> bytes:
    return header + number.to_bytes(4) * 10


def through(trouble: Trouble, frames: list[bytes], gap_s: float = 0.001, seed: int = 1) -> list[tuple[float, bytes]]:
    """Return each frame with the time at which it leaves, if one arrives every `gap_s`."""
    departures = Departures(trouble, random.Random(seed))
    left: list[tuple[float, bytes]] = []
    for position, each in enumerate(frames):
        departures.take(each, 1, position * gap_s)
    now_s = len(frames) * gap_s
    while (wait_s := departures.wait_s(now_s)) is not None:
        now_s += wait_s
        left += [(now_s, each) for _, each in departures.due(now_s)]
    return left


FRAMES = [frame(number) for number in range(200)]


class TestDepartures:
    def test_without_trouble_everything_passes_in_order(self) -> None:
        assert [each for _, each in through(Trouble(), FRAMES)] == FRAMES

    def test_a_delay_is_within_its_span_and_keeps_the_order(self) -> None:
        left = through(Trouble(delay_ms=(300.0, 400.0)), FRAMES)
        assert [each for _, each in left] == FRAMES
        late_s = [at_s - position * 0.001 for position, (at_s, _) in enumerate(left)]
        assert min(late_s) >= 0.3
        assert max(late_s) <= 0.4 + 1e-9

    def test_held_frames_are_overtaken_and_none_is_lost(self) -> None:
        left = [each for _, each in through(Trouble(held_percent=20.0, held_ms=(5.0, 20.0)), FRAMES)]
        assert left != FRAMES
        assert sorted(left) == FRAMES

    def test_frames_come_twice(self) -> None:
        left = [each for _, each in through(Trouble(twice_percent=100.0, twice_ms=(1.0, 2.0)), FRAMES)]
        assert sorted(left) == sorted(FRAMES * 2)

    def test_one_bit_of_an_ip_packet_is_wrong(self) -> None:
        left = [each for _, each in through(Trouble(flipped_percent=100.0), FRAMES)]
        for sent, received in zip(FRAMES, left, strict=True):
            assert received[:ETHERNET_HEADER_BYTES] == sent[:ETHERNET_HEADER_BYTES]
            assert (int.from_bytes(sent) ^ int.from_bytes(received)).bit_count() == 1

    def test_address_resolution_is_left_alone(self) -> None:
        frames = [frame(number, ARP_HEADER) for number in range(50)]
        assert [each for _, each in through(Trouble(flipped_percent=100.0), frames)] == frames

    def test_directions_do_not_wait_for_each_other(self) -> None:
        departures = Departures(Trouble(), random.Random(1))
        departures.take(frame(1), 1, 5.0)
        departures.take(frame(2), 2, 1.0)
        assert list(departures.due(1.0)) == [(2, frame(2))]

    def test_the_seed_decides(self) -> None:
        trouble = Trouble(held_percent=20.0, held_ms=(5.0, 20.0), twice_percent=10.0, flipped_percent=10.0)
        assert through(trouble, FRAMES, seed=3) == through(trouble, FRAMES, seed=3)
        assert through(trouble, FRAMES, seed=3) != through(trouble, FRAMES, seed=4)


@pytest.fixture(scope="module")
def trial() -> dict[str, dict[str, Any]]:
    """Return the measurements of `tests.chaos.cable_trial`, by trouble."""
    NAMESPACES.require()
    command = [sys.executable, "-m", "tests.chaos.cable_trial"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_PATIENCE_S)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stdout + done.stderr
    return {each["trouble"]: each for each in found}


@pytest.mark.process
class TestRealInterfaces:
    """Datagrams and a TCP stream go to an echo in another network namespace and back, through the relay both ways."""

    def test_the_relay_alone_changes_nothing(self, trial: dict[str, dict[str, Any]]) -> None:
        for name in ("none", "relay"):
            assert (trial[name]["answered"], trial[name]["copies"]) == (40, 40)
            assert trial[name]["stream_ms"] is not None
        assert trial["relay"]["relay"]["frames"] > 80
        assert trial["relay"]["relay"]["refused"] == 0

    def test_delay(self, trial: dict[str, dict[str, Any]]) -> None:
        assert trial["delay"]["round_trip_ms"] >= 80.0, "40 ms each way"
        assert trial["delay"]["copies"] == 40
        assert trial["delay"]["late"] == 0
        assert trial["delay"]["stream_ms"] is not None

    def test_reorder(self, trial: dict[str, dict[str, Any]]) -> None:
        assert trial["reorder"]["late"] > 0
        assert trial["reorder"]["copies"] == 40
        assert trial["reorder"]["stream_ms"] is not None

    def test_duplicate(self, trial: dict[str, dict[str, Any]]) -> None:
        assert trial["duplicate"]["copies"] == 160, "twice there, and each answer twice back"
        assert trial["duplicate"]["stream_ms"] is not None

    def test_a_wrong_bit_is_never_taken_for_data(self, trial: dict[str, dict[str, Any]]) -> None:
        assert trial["corrupt"]["answered"] == 0
        assert trial["corrupt"]["relay"]["flipped"] >= 40
        assert trial["corrupt-some"]["relay"]["flipped"] > 0
        assert trial["corrupt-some"]["stream_ms"] is not None
        assert not any(each["damaged"] for each in trial.values())
