"""The needs of each node wherever it runs: its options, and the files that they name."""

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from deploy.rollout.certificates import Certificates
from deploy.rollout.inventory import SECRET_END, Inventory, Node, OptionValue, is_loopback, toml
from deploy.rollout.rendering.files import SECRET_MODE, File, RenderError

FILE_OPTIONS: Final = (
    *("admin_token_file", "peer_secret_file", "webhook_secret_file", "quota_file"),
    *("join_token_file", "oidc_keys"),
    *("tls_ca", "tls_cert", "tls_key", "http_tls_cert", "http_tls_key", "http_tls_client_ca", "http_ca"),
)
"""Options that name a file. Where the inventory gives one, the file is one of this machine."""
UNPRIVILEGED_PORT_MIN: Final = 1024


class Address(NamedTuple):
    """Address at which others reach a node."""

    peer_host: str
    peer_port: int
    url_host: str
    url_port: int
    scheme: str
    admin_port: int = 0
    """Port of the listener for administration that other machines reach; 0 without one."""


class Parts(NamedTuple):
    """One node, with its data and its files in given directories."""

    node: Node
    address: Address
    options: dict[str, OptionValue]
    files: dict[str, bytes]
    """Content by name in the directory of its files."""

    @property
    def config(self) -> File:
        return File(toml(self.options).encode())


def parts_of(inventory: Inventory, data_dir: str, etc: str) -> list[Parts]:
    """Return all nodes, with every file read. Raises RenderError when one is missing."""
    return [_parts(inventory, node, data_dir, etc) for node in inventory.nodes]


def in_containers(all_parts: Sequence[Parts]) -> list[Parts]:
    """Return the nodes as they listen in containers: at all addresses, with the ports by which they are reached.

    Raises RenderError for addresses that do not go with that.
    """
    found = []
    for parts in all_parts:
        address, options = parts.address, dict(parts.options)
        listens = [("http_listen", address.url_port), ("peer_listen", address.peer_port)]
        if address.admin_port:
            listens.append(("admin_listen", address.admin_port))
        for name, port in listens:
            listen = options.setdefault(name, f"0.0.0.0:{port}")
            if str(listen).rpartition(":")[2] != str(port) or port < UNPRIVILEGED_PORT_MIN:
                raise RenderError(
                    f"node {parts.node.id}: {name} {listen}: in a container a node listens on the port of its address, "
                    f"from {UNPRIVILEGED_PORT_MIN} on"
                )
        found.append(parts._replace(options=options))
    return found


def shared_files(all_parts: Sequence[Parts]) -> dict[str, bytes]:
    """Return the files that are the same for all nodes."""
    first, *others = (parts.files for parts in all_parts)
    return {name: content for name, content in first.items() if all(each.get(name) == content for each in others)}


def check(parts: Parts, etc: str) -> None:
    """Have keelmqd itself check the configuration with these files. Raises RenderError with its words.

    So nothing is rendered that would not start, and nothing that is open to others and does not say so.
    """
    with tempfile.TemporaryDirectory() as temporary:
        here = Path(temporary)
        for name, content in parts.files.items():
            path = here / name
            path.touch(SECRET_MODE)
            path.write_bytes(content)
        options = {
            name: value.replace(f"{etc}/", f"{here}/") if isinstance(value, str) else value
            for name, value in parts.options.items()
        }
        (here / "node.toml").write_text(toml(options))
        program = Path(sys.executable).parent / "keelmqd"
        command = [str(program), "--config", str(here / "node.toml"), "--check-config"]
        done = subprocess.run(command, capture_output=True, text=True, env={})  # noqa: S603
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().replace(f"{here}/", f"{etc}/")
            raise RenderError(f"node {parts.node.id}: {said}")


def _parts(inventory: Inventory, node: Node, data_dir: str, etc: str) -> Parts:
    table = next(each for each in inventory.file.node if each.id == node.id)
    given = {**inventory.file.options, **table.options}
    options = inventory.options(node.id, data_dir, etc)
    sources: dict[str, Path] = {}
    if inventory.makes_secret:
        sources["peer_secret"] = inventory.beside(SECRET_END)
    if inventory.cluster.tls:
        sources |= {name: path for name, path, _ in Certificates(inventory).files(node)}
    for name in FILE_OPTIONS:
        if name in given and "://" not in str(given[name]):  # the keys of an issuer may be at a URL
            sources[name] = inventory.path.parent / str(given[name])
            options[name] = f"{etc}/{name}"
    if "join" in options:  # a node that is added to a running cluster: keelmqd takes no peers beside it
        del options["peers"]
        options.setdefault("http_url", node.url)
    files = {name: _content(node, name, path) for name, path in sources.items()}
    return Parts(node, _address(node, options), options, files)


def _content(node: Node, name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RenderError(f"node {node.id}: {name}: {path} of this machine: {error.strerror}") from None


def _address(node: Node, options: Mapping[str, OptionValue]) -> Address:
    peer_host, _, peer_port = node.peer.rpartition(":")
    admin_host, _, admin_port = str(options.get("admin_listen", "")).rpartition(":")
    try:
        parts = urlsplit(node.url)
        at = Address(peer_host.strip("[]"), int(peer_port), parts.hostname or "", parts.port or 0, parts.scheme)
        has_administration = admin_port and not is_loopback(admin_host.strip("[]"))
        return at._replace(admin_port=int(admin_port)) if has_administration else at
    except ValueError as error:
        raise RenderError(f"node {node.id}: {node.peer} or {node.url}: {error}") from None
