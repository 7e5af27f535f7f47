"""The console in a real browser, for tests: a page that they use, and the browser that a module shares."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support import expected_conditions
from selenium.webdriver.support.ui import Select, WebDriverWait

from tests.e2e.cluster_process import NodeProcess
from tests.patience import PATIENCE_S
from tests.requirements import CHROMIUM, path_of

CHROMIUM_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-sync", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)
REFUSED: Final = re.compile(r"\S+/v1/\S+ .*Failed to load resource: the server responded with a status of 4")


class Page:
    """The console in a browser."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, node: NodeProcess, view: str = "/") -> None:
        self.driver.get("about:blank")  # otherwise only the part behind the # changes, and the page stays
        self.driver.get(f"{node.url}/console#{view}")

    def main(self) -> str:
        """Return what the view shows; it is empty between two pages."""
        return str(self.driver.execute_script("return document.querySelector('main')?.innerText ?? ''"))

    def until(self, *texts: str) -> str:
        """Wait until the view shows all texts; return what it shows."""
        WebDriverWait(self.driver, PATIENCE_S).until(
            lambda _: all(text in self.main() for text in texts), f"{texts} are not shown, but:\n{self.main()}"
        )
        return self.main()

    def follow(self, text: str) -> None:
        self.element(By.LINK_TEXT, text).click()

    def element(self, by: str, value: str) -> WebElement:
        return WebDriverWait(self.driver, PATIENCE_S).until(lambda driver: driver.find_element(by, value))

    def fill(self, form: str, /, **values: str) -> None:
        """Open the form with this id, and write into its fields."""
        if self.element(By.ID, form).get_attribute("open") is None:
            self.element(By.CSS_SELECTOR, f"#{form} summary").click()
        for name, value in values.items():
            field = self.element(By.ID, f"{form}-{name}")
            if field.tag_name == "select":
                Select(field).select_by_value(value)
            else:
                field.clear()
                field.send_keys(value)

    def press(self, label: str, form: str = "main") -> None:
        """Press the button in the form with this id."""
        place = "//main" if form == "main" else f"//*[@id='{form}']"
        self.element(By.XPATH, f"{place}//button[.='{label}']").click()

    def confirm(self, *, wanted: bool = True, reason: str = "") -> str:
        """Answer the question that the page asks, with the reason if it asks for one, and return the question."""
        WebDriverWait(self.driver, PATIENCE_S).until(expected_conditions.alert_is_present())
        alert = self.driver.switch_to.alert
        asked = alert.text
        if reason:
            alert.send_keys(reason)
        if wanted:
            alert.accept()
        else:
            alert.dismiss()
        return asked

    def said(self, text: str) -> str:
        """Wait until the page says that something was done; return all that it says."""
        WebDriverWait(self.driver, PATIENCE_S).until(
            lambda driver: text in driver.find_element(By.ID, "said").text, f"{text} is not said; shown:\n{self.main()}"
        )
        return self.driver.find_element(By.ID, "said").text

    def until_stale(self, *texts: str) -> None:
        """Wait until the page says with all texts why what it shows is old."""

        def shown() -> str:
            return self.driver.find_element(By.ID, "stale").text

        WebDriverWait(self.driver, PATIENCE_S).until(
            lambda _: all(text in shown() for text in texts), f"{texts} are not said"
        )

    def complaints(self) -> list[dict[str, Any]]:
        """Return what the browser says about the page, such as a violation of its security policy. That the API refused
        a request is for the page to show.
        """
        found = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [each for each in found if "favicon" not in each["message"] and not REFUSED.match(each["message"])]


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[webdriver.Chrome]:
    """Run a browser that keeps its files at `profile`."""
    options = webdriver.ChromeOptions()
    for option in (*CHROMIUM_OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.binary_location = path_of("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(path_of("chromedriver")))
    yield made
    made.quit()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    CHROMIUM.require()
    with browser(tmp_path_factory.mktemp("browser")) as made:
        yield made


@pytest.fixture
def page(driver: webdriver.Chrome) -> Iterator[Page]:
    """Return a page that nobody has used. The browser must have nothing to complain of in the end."""
    driver.set_window_size(1200, 900)
    made = Page(driver)
    made.complaints()
    yield made
    found = made.complaints()
    assert not found, found
