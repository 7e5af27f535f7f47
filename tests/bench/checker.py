"""Runs a producer that answers every check with "unknown" in its own process: `python -m tests.bench.checker URLS`."""

import argparse
import asyncio

import keelmq

GROUP = "bench-storm"


async def unknown(transaction: keelmq.Transaction) -> keelmq.Decision:
    return keelmq.Decision.UNKNOWN


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("urls", help="URLs of all nodes, separated by commas")
    settings = parser.parse_args()
    async with keelmq.TransactionProducer(settings.urls, GROUP, check=unknown):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
