"""The configuration: its sources and their order, its validation, and the documentation, which must agree."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import msgspec
import pytest

from cluster.main import main
from cluster.process.addresses import Address, ConfigError
from cluster.process.config import HEARTBEATS_PER_ELECTION_TIMEOUT_MIN, options
from cluster.process.config_description import described
from cluster.process.config_loading import LoadedConfig, load
from cluster.process.exit_codes import ExitCode
from cluster.process.option import Option
from cluster.run_command import run_parser
from raft.config import NODE_ID_MAX
from raft.library import library_configuration
from store.limits import CHECK_AFTER_MAX_MS
from store.log.commit_log import CommitLog
from store.log.errors import DiskFull
from store.log.segment import SEGMENT_BYTES_MAX
from tests.simdisk import SimDisk

DOCUMENT = Path(__file__).parents[3] / "docs" / "configuration.md"
PEERS = [f"{i}=10.0.0.{i}:7091=http://10.0.0.{i}:7081" for i in (1, 2, 3)]
SECRET_FILE = "/etc/keelmq/peer_secret"
PLAIN = {"peer_secret_file": SECRET_FILE, "insecure_peers": "true", "insecure_http": "true"}
"""Options of a node without TLS that other machines can reach."""

BAD_URLS = [
    "http://node4..example:7081",
    "http://.example",
    "http://no de:7081",
    "http://node4\r\n:7081",
    "http://node4:7081\n",
    " http://node4",
    "http://node4\t",
    "http://-node:7081",
    "http://node/4:7081",
    "http://a:b@node4:7081",
    "http://node4:7081?",
    "http://node4:7081#",
    "http://node4\\:7081",
    "http://[fe80::1%a b]:7081",
    "http://1.2.3:7081",
    "http://10.0.0.256:7081",
    f"http://{'a' * 64}.example",
    f"http://{'a.' * 127}a",
    "http://knotenö.example",
]


def write(path: Path, text: str) -> str:
    file = path / "keelmq.toml"
    file.write_text(text)
    return str(file)


def test_later_sources_win(tmp_path: Path) -> None:
    file = write(tmp_path, 'node_id = 2\nheartbeat_ms = 50\ncluster_id = "shop"\n')
    config = load(file, {"KEELMQ_HEARTBEAT_MS": "60", "KEELMQ_NODE_ID": "3", "PATH": "/bin"}, {"node_id": "4"})
    assert (config.cluster_id, config.heartbeat_ms, config.node_id) == ("shop", 60, 4)


def test_peers_come_from_every_source(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        f"peers = {PEERS!r}\npeer_secret_file = {SECRET_FILE!r}\ninsecure_peers = true\ninsecure_http = true\n",
    )
    from_file = load(file, {}, {})
    variables = {"KEELMQ_PEERS": ", ".join(PEERS), "KEELMQ_PEER_SECRET_FILE": SECRET_FILE}
    variables |= {"KEELMQ_INSECURE_PEERS": "true", "KEELMQ_INSECURE_HTTP": "true"}
    from_environment = load(None, variables, {})
    from_flags = load(None, {}, {"peers": PEERS, **PLAIN})
    assert described(from_file) == described(from_environment) == described(from_flags)
    assert from_file.nodes()[2].address == Address("10.0.0.2", 7091)
    assert from_file.http_address() == Address("10.0.0.1", 7081)
    assert from_file.peer_address() == Address("10.0.0.1", 7091)
    assert from_file.advertised_url() == "http://10.0.0.1:7081"


def test_listening_elsewhere_than_advertised() -> None:
    listen = {"http_listen": "0.0.0.0:8000", "peer_listen": "[::]:9000"}
    config = load(None, {}, {"peers": PEERS, **PLAIN, **listen})
    assert config.http_address() == Address("0.0.0.0", 8000)
    assert config.peer_address() == Address("::", 9000)
    assert config.advertised_url() == "http://10.0.0.1:7081"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"heartbeat_ms": "0"}, "--heartbeat-ms"),
        ({"heartbeat_ms": "fast"}, "--heartbeat-ms"),
        ({"election_timeout_ms": "200"}, "election_timeout_ms"),
        (
            {"election_timeout_ms": "300", "heartbeat_ms": "100"},
            "election_timeout_ms: 300 is not more than 3 heartbeats",
        ),
        ({"segment_bytes": str(SEGMENT_BYTES_MAX + 1)}, "--segment-bytes: Expected `int` <= 2147483648"),
        ({"segment_bytes": "65535"}, "--segment-bytes: Expected `int` >= 65536"),
        ({"cluster_id": "a b"}, "--cluster-id"),
        ({"peers": ["1=10.0.0.1=http://10.0.0.1:7081"]}, "peers"),
        ({"peers": ["x=10.0.0.1:7091=http://10.0.0.1:7081"]}, "peers"),
        ({"peers": [f"{NODE_ID_MAX + 1}=10.0.0.1:7091=http://10.0.0.1:7081"]}, "an ID from 1 to 2147483648"),
        ({"peers": ["0=10.0.0.1:7091=http://10.0.0.1:7081"]}, "an ID from 1 to 2147483648"),
        ({"node_id": str(NODE_ID_MAX + 1)}, "--node-id: Expected `int` <= 2147483648"),
        ({"peers": ["1=10.0.0.1:7091=ftp://10.0.0.1:7081"]}, "peers"),
        ({"peers": ["1=10.0.0.1:7091=http://10.0.0.1:7081/api"]}, "peers"),
        ({"peers": [PEERS[0], PEERS[0]]}, "appears twice"),
        ({"peers": [PEERS[0], PEERS[1].replace("10.0.0.2:7091", "10.0.0.1:7091")]}, "address 10.0.0.1:7091"),
        ({"peers": PEERS, "node_id": "9"}, "node_id 9"),
        ({"http_listen": "127.0.0.1"}, "http_listen"),
        ({"peer_listen": "127.0.0.1:99999"}, "peer_listen"),
        ({"peer_listen": "h h:1"}, "peer_listen"),
        ({"http_url": "127.0.0.1:80"}, "http_url"),
        *(({"http_url": url}, "http_url: .* is not a URL of the form http://host:port") for url in BAD_URLS),
        *(({"join": url}, "join: .* is not a URL of the form http://host:port") for url in BAD_URLS),
        ({"max_in_flight_bytes": "100000"}, "max_in_flight_bytes"),
        ({"tls_cert": "/etc/hostname"}, "tls_key"),
        ({"tls_cert": "/none", "tls_key": "/none", "tls_ca": "/none"}, "tls_cert"),
        (
            {"peers": PEERS, "peer_secret_file": SECRET_FILE},
            "tls_cert: required with tls_key and tls_ca, since other machines can reach 10.0.0.1:7091; .*insecure",
        ),
        ({"peers": PEERS, "peer_listen": "127.0.0.1:7091", "peer_secret_file": SECRET_FILE}, "can reach 10.0.0.1:7091"),
        ({"peer_listen": "0.0.0.0:7091", "insecure_peers": "false"}, "tls_cert: required .* can reach 0.0.0.0:7091"),
        ({"insecure_peers": "perhaps"}, "--insecure-peers"),
        (
            {"peers": PEERS, "insecure_peers": "true"},
            "peer_secret_file: required, since other machines can reach 10.0.0.1:7091; make one",
        ),
        ({"peer_listen": "0.0.0.0:7091", "insecure_peers": "true"}, "peer_secret_file: required"),
        ({"peer_listen": "[::]:7091", "insecure_peers": "true"}, "peer_secret_file: required"),
        ({"peers_without_tls": "true"}, "peers_without_tls: only a node with tls_cert"),
        ({"http_listen": "0.0.0.0:7081"}, "requires http_tls_cert and http_tls_key and auth enforce; .*insecure-http"),
        ({"http_listen": "[::]:7081", "auth": "enforce"}, "requires http_tls_cert and http_tls_key; "),
        ({"http_listen": "10.0.0.1:7081", "auth": "permissive"}, "and auth enforce"),
        ({"auth": "maybe"}, "--auth"),
        ({"cluster_id": "shop\n"}, "--cluster-id"),
        ({"admin_token_file": "/none"}, "admin_token_file /none: No such file"),
        ({"log_level": "loud"}, "--log-level"),
    ],
)
def test_what_is_wrong_is_named(flags: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load(None, {}, flags)


def test_a_file_that_the_user_of_the_node_may_not_reach_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file below /etc/letsencrypt/live is such a one, which only root may enter."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "stat", refuse)
    for names in (("http_ca",), ("http_tls_cert", "http_tls_key"), ("tls_cert", "tls_key", "tls_ca")):
        with pytest.raises(ConfigError, match=rf"{names[0]}: /closed/file cannot be read: Permission denied"):
            load(None, {}, dict.fromkeys(names, "/closed/file"))


def test_an_argument_that_is_no_text_is_named_by_its_option() -> None:
    with pytest.raises(ConfigError, match=r"^--log-level: "):
        load(None, {}, {"log_level": "\udcff"})


@pytest.mark.parametrize(
    "url",
    ["http://a", "https://node-4.shop_1.example.:7081/", "http://10.0.0.4:7081", "http://[fd00::4]:7081", "HTTP://A:1"],
)
def test_urls_of_host_names_and_addresses_are_taken(url: str) -> None:
    assert load(None, {}, {"http_url": url, "join": url, "insecure_http": "true"}).http_url == url


def test_the_largest_node_id_is_taken() -> None:
    peer = PEERS[0].replace("1=", f"{NODE_ID_MAX}=", 1)
    config = load(None, {}, {"peers": [peer], "node_id": str(NODE_ID_MAX), **PLAIN})
    assert config.nodes()[NODE_ID_MAX].node_id == NODE_ID_MAX


@pytest.mark.parametrize("heartbeat_ms", [1, 7, 100, 333, 9_999])
def test_the_least_election_timeout_is_one_that_the_raft_library_takes(heartbeat_ms: int) -> None:
    least_ms = HEARTBEATS_PER_ELECTION_TIMEOUT_MIN * heartbeat_ms + 1
    config = load(None, {}, {"heartbeat_ms": str(heartbeat_ms), "election_timeout_ms": str(least_ms)})
    library_configuration(
        election_timeout_ms=config.election_timeout_ms, heartbeat_ms=config.heartbeat_ms, max_message_bytes=1 << 20
    ).validate()


def test_the_largest_segment_is_one_that_the_store_takes(tmp_path: Path) -> None:
    config = load(None, {}, {"segment_bytes": str(SEGMENT_BYTES_MAX), "data_dir": str(tmp_path)})
    with pytest.raises(DiskFull):  # and not a ValueError: there is no such space
        CommitLog.open(
            SimDisk(Random(1), capacity_bytes=10), "/log", segment_bytes=config.segment_bytes, cache_bytes=1 << 16
        )


def test_unknown_options_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown option 'heartbeat'"):
        load(write(tmp_path, "heartbeat = 5\n"), {}, {})
    with pytest.raises(ConfigError, match="KEELMQ_HEARTBEAT"):
        load(None, {"KEELMQ_HEARTBEAT": "5"}, {})
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(write(tmp_path, "node_id = \n"), {}, {})
    with pytest.raises(ConfigError, match="cannot be read"):
        load(str(tmp_path / "none.toml"), {}, {})
    with pytest.raises(ConfigError, match="node_id"):
        load(write(tmp_path, 'node_id = "1"\n'), {}, {})


def test_variables_of_the_client_are_left_alone() -> None:
    assert load(None, {"KEELMQ_SERVERS": "http://127.0.0.1:7081"}, {}) == LoadedConfig()


def test_the_configuration_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        load(None, {}, {}).node_id = 2  # type: ignore[misc]


def test_every_option_is_documented_as_it_is() -> None:
    text = DOCUMENT.read_text()
    for option in options():
        assert document_row(option) in text, f"docs/configuration.md lacks: {document_row(option)}"
    rows = [line for line in text.splitlines() if line.startswith("| `--")]
    assert len(rows) == len(options())


def test_every_exit_code_is_documented() -> None:
    text = DOCUMENT.read_text()
    assert all(f"| {code.value} | {code.name} |" in text for code in ExitCode)


def test_help_lists_every_option() -> None:
    text = run_parser().format_help()
    assert all(option.flag in text for option in options())


def test_check_config_reports_without_starting(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    assert main(["--check-config", "--data-dir", str(data_dir), "--node-id", "7"]) == ExitCode.STOPPED
    assert "node 7" in capsys.readouterr().out
    assert not data_dir.exists()
    reachable = ["--check-config", "--peer-listen", "10.0.0.1:7091", "--peer-secret-file", SECRET_FILE]
    assert main(reachable) == ExitCode.BAD_CONFIG
    assert "If the network keeps everybody else away" in capsys.readouterr().err
    assert main([*reachable, "--insecure-peers"]) == ExitCode.STOPPED
    assert main(["run", "--check-config", "--heartbeat-ms", "x"]) == ExitCode.BAD_CONFIG
    error = capsys.readouterr().err
    assert "--heartbeat-ms" in error
    assert len(error.splitlines()) == 1


def document_row(option: Option) -> str:
    """Return the row of docs/configuration.md for an option."""
    default = "" if option.default in (None, ()) else f"`{msgspec.json.encode(option.default).decode().strip(chr(34))}`"
    return f"| `{option.flag}` | `{option.variable}` | {default} | {option.description} |"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("segment_bytes", "1G", 1 << 30),
        ("segment_bytes", "512MiB", 512 << 20),
        ("cache_bytes", "64K", 64 << 10),
        ("min_free_bytes", "1T", 1 << 40),
        ("scrub_bytes_per_s", "8M", 8 << 20),
        ("scrub_bytes_per_s", "8", 8),
        ("retention_check_ms", "90s", 90_000),
        ("retention_check_ms", "90000", 90_000),
        ("retention_check_ms", " 15m ", 900_000),
        ("request_timeout_ms", "2min", 120_000),
        ("check_interval_ms", "7d", 7 * 86_400_000),
        ("heartbeat_ms", "50ms", 50),
        ("check_immunity_ms", "2h", 7_200_000),
    ],
)
def test_sizes_and_times_take_units(name: str, text: str, value: int, tmp_path: Path) -> None:
    flag, variable = load(None, {}, {name: text}), load(None, {f"KEELMQ_{name.upper()}": text}, {})
    assert getattr(flag, name) == getattr(variable, name) == value
    if not text.isdigit():  # a file has numbers for numbers
        assert getattr(load(write(tmp_path, f'{name} = "{text}"'), {}, {}), name) == value


@pytest.mark.parametrize("name", ["check_immunity_ms", "check_interval_ms"])
def test_checks_are_no_further_apart_than_the_state_machine_takes(name: str) -> None:
    """Each half, or the record of each check, would be refused, and each check be handed out again at once."""
    longest_ms = CHECK_AFTER_MAX_MS
    assert getattr(load(None, {}, {name: str(longest_ms)}), name) == longest_ms
    with pytest.raises(ConfigError, match=f"{name}: 604800001 is more than 7 days"):
        load(None, {}, {name: str(longest_ms + 1)})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("segment_bytes", "1GB"),
        ("segment_bytes", "1g"),
        ("segment_bytes", "90s"),
        ("segment_bytes", "1.5G"),
        ("segment_bytes", "-1G"),
        ("segment_bytes", "8T"),  # more than a segment may have
        ("segment_bytes", "9" * 30 + "G"),
        ("heartbeat_ms", "1G"),
        ("heartbeat_ms", "1w"),
        ("heartbeat_ms", "1 s"),
        ("check_max", "1K"),  # neither a size nor a time
        ("heartbeat_ms", ""),
    ],
)
def test_other_quantities_are_refused_with_the_option_and_the_units(name: str, text: str, tmp_path: Path) -> None:
    named = f"(?i){name.replace('_', '[_-]')}"
    with pytest.raises(ConfigError, match=named):
        load(None, {f"KEELMQ_{name.upper()}": text}, {})
    with pytest.raises(ConfigError, match=named):
        load(None, {}, {name: text})
    with pytest.raises(ConfigError, match=name):
        load(write(tmp_path, f'{name} = "{text}"'), {}, {})


def test_an_unknown_unit_is_told_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="'1GB' is no size such as 1G, 512M or 64K; the units are K, M, G, T, KiB"):
        load(None, {}, {"segment_bytes": "1GB"})
    with pytest.raises(ConfigError, match="'1w' is no time such as 90s, 15m, 2h or 7d; the units are ms, s, m, min, h"):
        load(None, {}, {"heartbeat_ms": "1w"})


def test_every_option_is_shown_with_the_source_that_wins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, 'cluster_id = "shop"\nheartbeat_ms = 50\nmax_connections = 9\n')
    monkeypatch.setenv("KEELMQ_HEARTBEAT_MS", "60")
    monkeypatch.setenv("KEELMQ_NODE_ID", "3")
    assert main(["--config", file, "--node-id", "4", "--show-config"]) == ExitCode.STOPPED
    shown = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in shown] == [option.name for option in options()]
    for line in (
        f'cluster_id = "shop"  # {file}',
        "heartbeat_ms = 60  # KEELMQ_HEARTBEAT_MS",
        f"max_connections = 9  # {file}",
        "node_id = 4  # --node-id",
        "election_timeout_ms = 1000  # default",
    ):
        assert line in shown


def test_defaults_are_valid() -> None:
    assert load(None, {}, {}) == LoadedConfig()


def test_only_nodes_and_checks_of_their_configuration_import_the_broker() -> None:
    """Importing the broker takes thrice as long as all that `keelmqd log` needs. A check shows that it is possible.
    Nothing is collected meanwhile, as what is imported stays.
    """
    program = "import gc, sys, cluster.main as it; before = set(sys.modules); collected = []; "
    program += "gc.callbacks.append(lambda *_: collected.append(1)); it.main(sys.argv[1:]); gc.callbacks.clear(); "
    program += "sys.exit(10 * ('cluster.broker' in before) + ('cluster.broker' in sys.modules) "
    program += "+ 2 * bool(collected) + 4 * (not gc.isenabled()))"
    log = ["log", "verify", "--data-dir", "/nowhere"]
    for arguments, codes in ((log, (0, 2)), (["--check-config"], (1,))):
        assert subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True).returncode in codes


def test_a_supervisor_is_there_before_any_part_of_the_broker_is_imported() -> None:
    """The node starts after its supervisor, and imports all of it."""
    program = "import sys, cluster.main as it; sys.argv[1:] and it.main(sys.argv[1:]); "
    program += "print([name for name in sys.modules if name in ('store.state.machine', 'raft.membership', 'aiohttp')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
