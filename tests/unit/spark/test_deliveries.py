"""Deliveries in retry topics are found by the message that is delivered."""

import random
from collections.abc import ItemsView

import pytest

from keelmq_spark.folding import deliveries as module
from keelmq_spark.folding.deliveries import Deliveries
from keelmq_spark.folding.fold import Fold
from keelmq_spark.folding.fold_state import Delivery, FoldState, decode_state, encode_state
from keelmq_spark.folding.places import Places
from tests.unit.spark.folded import no_table
from tests.unit.spark.history import History

TOPIC = "%RETRY%g"


class Walked(dict[int, Delivery]):
    """Counts how often all deliveries are walked."""

    walks = 0

    def items(self) -> ItemsView[int, Delivery]:  # type: ignore[override]
        self.walks += 1
        return super().items()


def test_messages_that_are_given_back_again_cost_one_walk_of_the_deliveries() -> None:
    waiting = Walked({at: Delivery(f"message:orders/m-{at}", "", "orders", 0, at) for at in range(100)})
    fold = Fold(FoldState(group_places={TOPIC: waiting}), Places(no_table))
    log = History()
    for offset in range(100):
        log.retry("g", "orders", offset, f"m-{offset}", attempt=2)
    fold.fold(log.table())
    assert fold.state.given_back[f"g\n{TOPIC}\n0"] == list(range(100))
    assert waiting.walks == 1


@pytest.mark.parametrize("seed", range(20))
def test_the_last_delivery_of_a_message_is_the_one_that_a_walk_finds(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is made again at times, so that its offsets come again, and the job begins again from its state."""
    monkeypatch.setattr(module, "GROUP_PLACES_MAX", 20)
    chance, state, offset = random.Random(seed), FoldState(), 0
    known = Deliveries(state.group_places)
    for _ in range(500):
        action = chance.random()
        if action < 0.6:
            known.add(TOPIC, offset, Delivery(f"m-{chance.randrange(10)}", ""))
            offset += 1
        elif action < 0.9 and known.of(TOPIC):
            known.forget(TOPIC, chance.choice(list(known.of(TOPIC))))
        elif action < 0.92:
            offset = max(0, offset - 5)
        elif action < 0.94:
            state = decode_state(encode_state(state))
            known = Deliveries(state.group_places)
        for origin in (f"m-{number}" for number in range(10)):
            walked = [at for at, delivery in known.of(TOPIC).items() if delivery.origin == origin]
            assert known.last(TOPIC, origin) == (walked[-1] if walked else None)
        assert len(known.of(TOPIC)) <= 20
