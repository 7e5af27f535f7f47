"""The script of the pages of the lineage in a real browser: search, selection and folding, within the page's policy."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from keelmq_spark.queries.graph import Graph
from keelmq_spark.queries.site import INDEX, file_of, pages
from tests.e2e.console_page import browser
from tests.lineage_stories import order_history
from tests.requirements import CHROMIUM

KEYS = (
    "const keys = [...document.querySelectorAll('[data-key]')].filter(e => %s).map(e => e.dataset.key);"
    "return [...new Set(keys)].sort()"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables, directory = tmp_path_factory.mktemp("tables"), tmp_path_factory.mktemp("pages")
    order_history(14).write(tables)
    with Graph(tables) as graph:
        for name, text in pages(graph, 3):
            (directory / name).write_text(text, encoding="utf-8")
    return directory


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    CHROMIUM.require()
    with browser(tmp_path) as made:
        made.set_window_size(1200, 900)
        yield made


def keys(driver: webdriver.Chrome, condition: str) -> list[str]:
    return list(driver.execute_script(KEYS % condition))


def bright(driver: webdriver.Chrome) -> list[str]:
    return keys(driver, "getComputedStyle(e).opacity === '1'")


def there(driver: webdriver.Chrome) -> list[str]:
    return keys(driver, "getComputedStyle(e).display !== 'none'")


def test_a_page_is_searched_folded_and_followed(site: Path, driver: webdriver.Chrome) -> None:
    driver.get((site / INDEX).as_uri())
    everything = there(driver)
    assert bright(driver) == everything
    search = driver.find_element(By.ID, "search")
    search.send_keys("Ship")
    assert bright(driver) == ["consumer_group:shipping", "topic:shipments"]
    assert driver.find_element(By.ID, "found").text == f"2 of {len(everything)}"
    search.send_keys(Keys.ENTER, Keys.ESCAPE)
    assert bright(driver) == everything
    # selection: what leads to a box, and what it leads to
    driver.find_element(By.CSS_SELECTOR, '[data-key="topic:bills"]').send_keys(Keys.ENTER)
    assert {"producer_group:web", "consumer_group:ledger", "topic:mails"} <= set(bright(driver))
    assert "topic:picks" not in bright(driver)
    # folding: what only this box leads to
    control = driver.find_element(By.CSS_SELECTOR, '[data-key="consumer_group:stock"] .fold')
    control.send_keys(Keys.ENTER)
    assert set(everything) - set(there(driver)) >= {"topic:picks", "consumer_group:shipping", "topic:shipments"}
    assert {"topic:mails", "consumer_group:audit"} <= set(there(driver)), "others lead there, too"
    assert (control.text, control.get_attribute("aria-expanded")) == ("+4", "false")
    driver.find_element(By.CSS_SELECTOR, '[data-all="fold"]').click()
    assert there(driver) == ["producer_group:web"]
    driver.find_element(By.CSS_SELECTOR, '[data-all="unfold"]').click()
    assert there(driver) == everything
    # the way to a story, whose names stay in sight
    driver.find_element(By.LINK_TEXT, "order-17").click()
    assert driver.current_url.endswith(file_of("message:orders/order-17"))
    frame = driver.find_element(By.CSS_SELECTOR, ".picture")
    driver.execute_async_script(
        "const [frame, done] = arguments; frame.addEventListener('scroll', () => requestAnimationFrame(done));"
        "frame.scrollLeft = 300",
        frame,
    )
    assert driver.find_element(By.ID, "side").get_attribute("transform") == "translate(300)"
    driver.find_element(By.ID, "search").send_keys("bill-8 mail")
    assert bright(driver) == ["message:bills/bill-8@mail"]
    assert (
        driver.execute_script(
            "const s = document.createElement('script'); s.text = 'window.ran = 1';"
            "document.body.append(s); return window.ran"
        )
        is None
    )
    (complaint,) = driver.get_log("browser")  # type: ignore[no-untyped-call]
    assert "Content Security Policy" in complaint["message"], "of the script that does not belong to the page"
