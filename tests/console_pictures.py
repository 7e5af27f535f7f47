"""Takes the pictures of docs/console.md: `python -m tests.console_pictures` starts three nodes, fills them, and looks.

It needs Chromium (Debian: chromium, chromium-driver).
"""

import asyncio
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from deploy.local_nodes import LocalNode, nodes_on_free_ports, wait_ready
from keelmq import Admin, Connection, Decision, Message, Producer, Transaction, TransactionProducer
from tests.requirements import REPOSITORY, path_of

PICTURES: Final = REPOSITORY / "docs" / "images"
SIZE: Final = "900,900"
LOOK_S: Final = 60.0
LOAD_ROUNDS: Final = 80
VIEWS: Final = {
    "console-overview": ("/", "a second"),
    "console-transaction": ("/transactions/order-17", "Decide it"),
    "console-message": ("/messages/order-16-0-0", "What became of it"),
}


@contextmanager
def _nodes() -> Iterator[list[LocalNode]]:
    with tempfile.TemporaryDirectory() as directory:
        nodes = nodes_on_free_ports(Path(directory), 3, {"check_immunity_ms": "600000"})
        try:
            for node in nodes:
                node.start()
            wait_ready(nodes)
            yield nodes
        finally:
            for node in nodes:
                node.kill()


def _decide(decision: Decision, _: Transaction) -> Decision:
    return decision


async def _load(urls: list[str]) -> None:
    """Send and pull some messages, more and more of them, so that there are rates to show."""
    async with Producer(urls) as producer, aiohttp.ClientSession() as http:
        for round_number in range(LOAD_ROUNDS):
            sends = (producer.send("greetings", b"hello", queue=0) for _ in range(20 + 5 * round_number))
            last = max([sent.offset or 0 for sent in await asyncio.gather(*sends)])
            page = f"{urls[0]}/v1/topics/greetings/queues/0/messages?offset={max(0, last - 50)}&max_messages=50"
            async with http.get(page) as answer:
                await answer.read()
            await asyncio.sleep(0.5)


async def _fill(urls: list[str]) -> str:
    """Place two orders, of which one is undecided, and return the leader's URL."""
    connection = Connection(urls)
    admin = Admin(connection)
    await admin.put_topic("orders", queues=4, type="transaction")
    await admin.put_topic("greetings", queues=2)

    async def answer(_: Transaction) -> Decision:
        return Decision.UNKNOWN

    async with TransactionProducer(urls, "shop", check=answer) as shop:
        for number, decision in ((16, Decision.COMMIT), (17, Decision.UNKNOWN)):
            body = json.dumps({"order": number, "account": "ann", "yuan": 30}).encode()
            message = Message(topic="orders", body=body, keys=[f"order-{number}"])
            await shop.execute(message, partial(_decide, decision), transaction_id=f"order-{number}")
    status = await admin.cluster()
    connection.close()
    return str(status.leader_url)


def _shows(text: str, driver: webdriver.Chrome) -> bool:
    return text in driver.execute_script("return document.body.innerText")


def _look(url: str) -> None:
    options = webdriver.ChromeOptions()
    for option in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"):
        options.add_argument(option)
    options.add_argument(f"--window-size={SIZE}")
    options.binary_location = path_of("chromium")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(path_of("chromedriver")))
    try:
        for name, (view, text) in VIEWS.items():
            driver.get("about:blank")
            driver.get(f"{url}/console#{view}")
            if name == "console-overview":
                asyncio.run(_load([url]))
            WebDriverWait(driver, LOOK_S).until(partial(_shows, text))
            driver.save_screenshot(str(PICTURES / f"{name}.png"))
            print(f"{name}.png")
    finally:
        driver.quit()


if __name__ == "__main__":
    with _nodes() as running:
        _look(asyncio.run(_fill([node.url for node in running])))
