"""URLs and addresses that webhook_allow allows."""

import pytest

from cluster.process.addresses import ConfigError
from cluster.process.allowed_urls import AllowedUrls, UrlInvalid, UrlNotAllowed, require_address
from cluster.process.config_loading import load

HOOKS = "https://hooks.example:8443/keelmq"


def is_allowed(allowed: AllowedUrls, url: str) -> bool:
    try:
        allowed.require(url)
    except (UrlInvalid, UrlNotAllowed):
        return False
    return True


@pytest.mark.parametrize(
    "url",
    [
        HOOKS,
        f"{HOOKS}/",
        f"{HOOKS}/shop",
        f"{HOOKS}?group=shop",
        f"{HOOKS}/shop?x=/../",
        f"{HOOKS}/shop;v=1/50%25/a..b",
        "HTTPS://Hooks.Example:8443/keelmq",
        "https://hooks.example.:8443/keelmq",
        "http://10.1.2.3/",
        "http://10.1.2.3:80/any",
        "http://169.254.10.1:80/x",
        "http://[::1]:8080/",
    ],
)
def test_a_listed_url_and_all_below_it_are_allowed(url: str) -> None:
    entries = (HOOKS, "http://10.1.2.3", "http://169.254.10.1/", "http://[::1]:8080")
    assert is_allowed(AllowedUrls(entries, loopback=False), url)


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example:8443/keelmq",
        "https://hooks.example/keelmq",
        "https://hooks.example:8444/keelmq",
        "https://hooks.example:8443/",
        "https://hooks.example:8443/keelmq2",
        "https://hooks.example:8443/keelmq/../admin",
        "https://hooks.example:8443/keelmq/%2e%2e/admin",
        "https://hooks.example:8443/keelmq/%2E./admin",
        "https://hooks.example:8443/keelmq/..%2fadmin",
        "https://hooks.example:8443/keelmq/..;/admin",
        "https://hooks.example:8443/keelmq/..;x=1/admin",
        "https://hooks.example:8443/keelmq/.;/admin",
        "https://hooks.example:8443/keelmq/..%3b/admin",
        "https://hooks.example:8443/keelmq/%252e%252e/admin",
        "https://hooks.example:8443/keelmq/%25252e./admin",
        "https://hooks.example:8443/keelmq/..%252fadmin",
        "https://hooks.example:8443/keelmq/%" + "25" * 50 + "2e./admin",
        "https://hooks.example:8443/keelmq/..%255cadmin",
        "https://hooks.example:8443/keelmq%2fx",
        "https://hooks.example:8443\\@evil.example/keelmq",
        "https://hooks.example:8443@evil.example/keelmq",
        "https://user:" + "word" + "@hooks.example:8443/keelmq",
        "https://@hooks.example:8443/keelmq",
        "https://hooks.example:8443/keelmq#x",
        "https://hooks.example.evil.example:8443/keelmq",
        "https://evil.example/hooks.example:8443/keelmq",
        "https://hooks.example:8443\n/keelmq",
        "https://hooks.examplе:8443/keelmq",
        "//hooks.example:8443/keelmq",
        "http://127.0.0.1/",
        "http://localhost/",
    ],
)
def test_nothing_else_is_allowed(url: str) -> None:
    assert not is_allowed(AllowedUrls((HOOKS,), loopback=False), url)
    assert not is_allowed(AllowedUrls((HOOKS,), loopback=True), url), "a list stands instead of the default"


SPECIAL = [
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "0.1.2.3",
    "169.254.169.254",
    "224.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "fe80::1",
    "fe80::1%eth0",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "::127.0.0.1",
    "::169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::",
    "fd00:ec2::254",
    "fd00:ec2::254%eth0",
]


@pytest.mark.parametrize("address", SPECIAL)
def test_a_name_stands_for_no_special_address(address: str) -> None:
    with pytest.raises(UrlNotAllowed, match=r"hooks\.example is "):
        require_address("hooks.example", address)
    host = f"[{address.partition('%')[0]}]" if ":" in address else address
    assert not is_allowed(AllowedUrls(("*",), loopback=False), f"http://{host}/")


@pytest.mark.parametrize("address", ["10.1.2.3", "192.0.2.1", "2001:db8::1", "fd00::1", "64:ff9b::a01:203"])
def test_other_addresses_are_allowed(address: str) -> None:
    require_address("hooks.example", address)


def test_a_loopback_name_is_this_machine_and_nothing_else() -> None:
    require_address("localhost", "127.0.0.1")
    require_address("localhost", "::1")
    with pytest.raises(UrlNotAllowed):
        require_address("localhost", "169.254.169.254")


def test_every_host_but_this_machine() -> None:
    allowed = AllowedUrls(("*", "http://localhost:8080"), loopback=False)
    assert is_allowed(allowed, "http://anywhere.example/x")
    assert is_allowed(allowed, "http://localhost:8080/x")
    assert not is_allowed(allowed, "http://localhost:8081/x")
    assert not is_allowed(allowed, "http://localhost.:8081/x")


def test_without_entries_a_node_on_loopback_allows_its_own_machine_and_another_nothing() -> None:
    on_loopback = AllowedUrls.of(load(None, {}, {}))
    reachable = AllowedUrls.of(load(None, {}, {"http_listen": "10.0.0.1:7081", "insecure_http": "true"}))
    for url in ("http://127.0.0.1:8080/", "http://localhost/", "http://[::1]/x"):
        assert is_allowed(on_loopback, url)
        assert not is_allowed(reachable, url)
    for url in ("http://10.0.0.1:7081/", "https://hooks.example/", "http://169.254.169.254/"):
        assert not is_allowed(on_loopback, url)
        assert not is_allowed(reachable, url)


@pytest.mark.parametrize(
    "entry",
    ["", "hooks.example", "hooks.example:443", "ftp://hooks.example", "https://a@b/", "https://a/?x", "https://a/../b"],
)
def test_an_entry_must_be_a_url(entry: str) -> None:
    with pytest.raises(ConfigError, match="webhook_allow: "):
        load(None, {}, {"webhook_allow": [entry]})
