"""Takes the pictures of docs/console.md: `python -m tests.console_pictures` starts three nodes, fills them, and looks;
with names, such as `console-reset`, it takes only these.

It needs Chromium (Debian: chromium, chromium-driver).
"""

import asyncio
import base64
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import aiohttp
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from deploy.local_nodes import LocalNode, nodes_on_free_ports, wait_ready
from keelmq import Admin, Connection, Decision, Message, Producer, Transaction, TransactionProducer
from store.messages.topics import RETRY_PREFIX
from tests.png_palette import indexed
from tests.requirements import REPOSITORY, path_of

PICTURES: Final = REPOSITORY / "docs" / "images"
WIDTH_PX: Final = 900
NARROW_PX: Final = 380
HEIGHT_MAX_PX: Final = 1_500
MARGIN_PX: Final = 8
LOOK_S: Final = 60.0
RESET: Final = """
document.querySelector("#reset summary").click();
document.querySelector("#reset-to").value = "latest";
document.querySelector("#reset button[type=button]").click();
"""
SEND: Final = """
document.querySelector("#send summary").click();
document.querySelector("#send-body").value = '{"order": 29}';
document.querySelector("#send-form").value = "json";
document.querySelector("#send-keys").value = "order-29";
document.querySelector("#send-delay").value = "3600";
"""
UNFOLD: Final = "document.querySelector('td summary').click()"


DARK: Final = "console-dark"


class Load(NamedTuple):
    """Messages that are sent to a topic and acknowledged by a group while a view is shown."""

    topic: str
    group: str
    rounds: int


class View(NamedTuple):
    """A view to take a picture of: its address, a text that it shows, and what is done in it before."""

    address: str
    text: str
    script: str = ""
    done: str = ""
    """Text that is shown once that is done."""
    begins: str = "body"
    """Selector of the element with which the picture begins."""
    ends: str = "main"
    load: Load | None = None


VIEWS: Final = {
    "console-overview": View("/", "a second", load=Load("greetings", "mailing", 80)),
    "console-topics": View("/topics", "Topics by name", "0", "\t0\t"),
    "console-queue": View("/topics/parcels/queues/0", "parcel-23"),
    "console-send": View("/topics/parcels", "Send a message", SEND, "Seconds to delay it", "#send", "#send"),
    "console-delayed": View("/topics/reminders/delayed", "reminder-3"),
    "console-find": View("/find?topic=orders&key=order-16", "order-16-0-0"),
    "console-message": View("/messages/order-16-0-0?topic=orders", "What became of it"),
    "console-transactions": View("/transactions?state=all", "order-17"),
    "console-transaction": View("/transactions/order-17", "Decide it"),
    "console-groups": View("/groups", "shipping"),
    "console-members": View("/groups/newsletter/members", "greetings/1"),
    "console-reset": View("/groups/shipping", "no such address", RESET, "9 messages skipped", "#reset", "#reset"),
    "console-settings": View("/settings", "voter"),
    "console-audit": View("/audit", "ticket 17"),
    "console-topic": View("/topics/parcels", "Groups that read it", load=Load("parcels", "shipping", 40)),
    "console-group": View(
        "/groups/shipping", "no such address", UNFOLD, "the map is down", load=Load("parcels", "shipping", 40)
    ),
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


async def _apply(url: str, load: Load) -> None:
    """Send and acknowledge some messages, more and more of them, so that there are rates to show."""
    async with Producer([url]) as producer, aiohttp.ClientSession() as http:
        for round_number in range(load.rounds):
            sends = (producer.send(load.topic, b"hello", queue=0) for _ in range(20 + 5 * round_number))
            last = max([sent.offset or 0 for sent in await asyncio.gather(*sends)])
            offsets = {"offsets": [{"topic": load.topic, "queue": 0, "offset": last * 3 // 4}]}
            async with http.put(f"{url}/v1/groups/{load.group}/offsets", json=offsets) as answer:
                answer.raise_for_status()
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
    await _fall_behind(str(status.leader_url))
    await _wait_for_later(str(status.leader_url))
    connection.close()
    return str(status.leader_url)


async def _fall_behind(leader: str) -> None:
    """Let a group commit a part of what there is, and give a message back until it is a dead letter."""
    async with aiohttp.ClientSession(f"{leader}/", raise_for_status=True) as http:

        async def call(method: str, path: str, body: Any = None) -> Any:
            async with http.request(method, f"v1/{path}", json=body) as answer:
                return await answer.json()

        messages = [
            {
                "body": json.dumps({"order": number}),
                "keys": [f"order-{number}"],
                "message_id": f"parcel-{number}",
                "queue": (number - 20) % 3,
            }
            for number in range(20, 29)
        ]
        await call("PUT", "topics/parcels", {"queues": 3, "operator": "ann", "reason": "ticket 17"})
        await call("POST", "topics/parcels/messages", {"messages": messages})
        await call("PUT", "groups/shipping", {"retry_max_attempts": 1, "retry_delays_ms": [0]})
        ends = (await call("GET", "topics/parcels"))["queue_offsets"]
        first = next(each["queue"] for each in ends if each["max_offset"])
        offsets = [{"topic": "parcels", "queue": each["queue"], "offset": 0} for each in ends]
        await call("PUT", "groups/shipping/offsets", {"offsets": offsets})
        given = {"topic": "parcels", "queue": first, "offset": 0, "reason": "the map is down"}
        await call("POST", "groups/shipping/retries", {"messages": [given]})
        topic = RETRY_PREFIX + "shipping"
        again = {"topic": topic, "queue": 0, "offset": 0, "reason": "no such address"}
        while not (await call("GET", f"topics/{quote(topic)}"))["queue_offsets"][0]["max_offset"]:
            await asyncio.sleep(0.1)
        await call("POST", "groups/shipping/retries", {"messages": [again]})
        reset = {"topic": "parcels", "to": "latest", "operator": "ann", "reason": "ticket 17"}
        await call(
            "POST", "groups/billing/clone-offsets", {"source": "shipping", "operator": "ann", "reason": "ticket 17"}
        )
        await call("POST", "groups/billing/reset", reset)


async def _wait_for_later(leader: str) -> None:
    """Send delayed messages, and let members join a group."""
    async with aiohttp.ClientSession(f"{leader}/", raise_for_status=True) as http:
        await http.put("v1/topics/reminders", json={"queues": 1, "type": "any"})
        messages = [
            {"body": "pay the bill", "message_id": f"reminder-{number}", "delay_ms": number * 86_400_000}
            for number in range(1, 4)
        ]
        await http.post("v1/topics/reminders/messages", json={"messages": messages})
        for member in ("mailer-1", "mailer-2"):
            joining = {"topics": ["greetings"], "member_id": member, "client_id": member, "session_timeout_ms": 600_000}
            await http.post("v1/groups/newsletter/members", json=joining)


def _shows(text: str, driver: webdriver.Chrome) -> bool:
    return text in driver.execute_script("return document.body.innerText")


def _picture(driver: webdriver.Chrome, name: str, begins: str = "body", ends: str = "main") -> None:
    """Take a picture of the page from one element to another, as far as it is not too long."""
    place = f"document.querySelector('{begins}').getBoundingClientRect()"
    top, bottom, width = driver.execute_script(
        f"return [{place}.top + scrollY, document.querySelector('{ends}').getBoundingClientRect().bottom + scrollY, "
        "innerWidth]"
    )
    if begins != "body":
        top, bottom = max(0, top - MARGIN_PX), bottom + MARGIN_PX
    clip = {"x": 0, "y": top, "width": width, "height": min(bottom - top, HEIGHT_MAX_PX), "scale": 1}
    taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    file = PICTURES / f"{name}.png"
    file.write_bytes(indexed(base64.b64decode(taken["data"])))
    print(f"{file.name}: {file.stat().st_size:,} bytes")


def _narrow_and_dark(driver: webdriver.Chrome, url: str) -> None:
    size = {"width": NARROW_PX, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = [{"name": "prefers-color-scheme", "value": "dark"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": feature})
    driver.get("about:blank")
    driver.get(f"{url}/console#/messages/order-16-0-0?topic=orders")
    WebDriverWait(driver, LOOK_S).until(partial(_shows, "What became of it"))
    _picture(driver, DARK)


def _look(url: str, wanted: list[str]) -> None:
    """Take the pictures with the wanted names, or all of them."""
    options = webdriver.ChromeOptions()
    for option in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"):
        options.add_argument(option)
    options.add_argument(f"--window-size={WIDTH_PX},{WIDTH_PX}")
    options.binary_location = path_of("chromium")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(path_of("chromedriver")))
    try:
        for name, view in VIEWS.items():
            if wanted and name not in wanted:
                continue
            driver.get("about:blank")
            driver.get(f"{url}/console#{view.address}")
            if view.load is not None:
                asyncio.run(_apply(url, view.load))
            WebDriverWait(driver, LOOK_S).until(partial(_shows, view.text))
            if view.script:
                driver.execute_script(view.script)
                WebDriverWait(driver, LOOK_S).until(partial(_shows, view.done))
            _picture(driver, name, view.begins, view.ends)
        if not wanted or DARK in wanted:
            _narrow_and_dark(driver, url)
    finally:
        driver.quit()


if __name__ == "__main__":
    with _nodes() as running:
        _look(asyncio.run(_fill([node.url for node in running])), sys.argv[1:])
