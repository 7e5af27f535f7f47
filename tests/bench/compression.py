"""Measures the costs and savings of compressing whole batches: the same JSON orders, sent and consumed as zstd and
plain.
"""

import json
import random
import statistics
from collections.abc import Sequence
from typing import Final

from keelmq.blocks.batch import encode_messages
from tests.bench import load
from tests.bench.figures import Figure, Figures

BATCH: Final = 256
ORDER_BYTES: Final = 1024
ROUNDS: Final = 3
SEED: Final = 1


def orders(count: int) -> list[bytes]:
    """Return orders of about 1 KiB each: names repeat from one to the next, ids, amounts and times do not."""
    rng = random.Random(SEED)
    made = []
    for number in range(count):
        items: list[dict[str, object]] = []
        order = {
            "order_id": f"{rng.getrandbits(96):024x}",
            "account": rng.randrange(1_000_000),
            "sequence": number,
            "created_at_ms": 1_700_000_000_000 + rng.randrange(1_000_000_000),
            "currency": rng.choice(("CNY", "EUR", "USD")),
            "note": "".join(rng.choices("abcdefghijklmnopqrstuvwxyz     ", k=80)),
            "items": items,
        }
        while len(json.dumps(order)) < ORDER_BYTES - 100:
            items.append(
                {
                    "sku": f"SKU-{rng.randrange(100_000):05}",
                    "quantity": rng.randrange(1, 10),
                    "price_cents": rng.randrange(100, 100_000),
                    "warehouse": rng.choice(("north", "south", "east", "west")),
                }
            )
        made.append(json.dumps(order).encode())
    return made


async def compare(urls: Sequence[str], topic: str, seconds: float, figures: Figures) -> None:
    """Measure both forms in alternate rounds, so that other load on the machine affects both; the median of each
    counts.
    """
    batch = orders(BATCH)

    def make_batch() -> list[bytes]:
        """Return the same orders each time: each batch is compressed by itself, so this saves the time to make them."""
        return batch

    sent: dict[bool, list[float]] = {True: [], False: []}
    consumed: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(ROUNDS):
        for compress in (True, False):
            sent[compress].append(await load.batch_sends(urls, topic, make_batch, seconds, compress=compress))
            consumed[compress].append(
                await load.produce_and_consume(urls, topic, make_batch, seconds, compress=compress)
            )
    plain, packed = encode_messages(batch), encode_messages(batch, compressed=True)
    share = 100 * len(packed.data) / len(plain.data)
    figures.add(Figure("compressed_share", "orders as JSON: what zstd leaves of them", share, "%"))
    for compress, name, what in ((True, "zstd", "as zstd"), (False, "plain", "not compressed")):
        figures.add(
            Figure(
                f"orders_sent_{name}", f"… {BATCH} a batch, sent {what}", statistics.median(sent[compress]), "msg/s"
            ),
            Figure(
                f"orders_end_to_end_{name}",
                f"… produced and consumed at once, {what}",
                statistics.median(consumed[compress]),
                "msg/s",
            ),
        )
