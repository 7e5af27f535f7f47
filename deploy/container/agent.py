#!/opt/keelmq/bin/python -I
"""`keelmq-container`, in the image: probes of the node of this container, and what comes before it is stopped.

    keelmq-container healthy --config FILE      exit code 0 while the process serves (/healthz)
    keelmq-container ready --config FILE        exit code 0 while the node should be sent requests (/readyz)
    keelmq-container hand-over --config FILE    returns when the others can do without the node, and another one leads

`hand-over` ends with 1 after --timeout-s; the node still hands over by itself when it is stopped. It stands alone: the
image has nothing of deploy/ but this file.
"""

import argparse
import http.client
import json
import socket
import ssl
import sys
import time
import tomllib
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

PROBE_TIMEOUT_S = 4.0
CALL_TIMEOUT_S = 10.0
"""Longest administrative call; a leader that hands over takes 3 s at most."""
POLL_S = 0.5
BEHIND_ENTRIES_MAX = 1_000
"""Number of entries that a follower may lack and still count as a copy of what is committed."""
ANSWER_BYTES_MAX = 4 << 20


class CallError(Exception):
    """A node did not answer, or not as a node does; the text says which, and why."""


class Server(NamedTuple):
    """A URL of a node, and how it is reached."""

    url: str
    at: tuple[str, int]
    context: ssl.SSLContext | None
    token: str | None

    def call(self, method: str, path: str, timeout_s: float) -> tuple[int, Any]:
        """Return status and document of an answer. Raises CallError."""
        host = urlsplit(self.url).hostname or ""
        try:
            sock = socket.create_connection(self.at, timeout_s)
            if self.context is not None:
                sock = self.context.wrap_socket(sock, server_hostname=host)
            connection = http.client.HTTPConnection(host, timeout=timeout_s)
            connection.sock = sock
            try:
                headers = {"Content-Type": "application/json"} if method == "POST" else {}
                if self.token is not None:
                    headers["Authorization"] = f"Bearer {self.token}"
                connection.request(method, path, headers=headers)
                answer = connection.getresponse()
                content = answer.read(ANSWER_BYTES_MAX)
            finally:
                connection.close()
            return answer.status, json.loads(content) if content else {}
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise CallError(f"{self.url}: {str(error) or repr(error)}") from None


class Agent:
    """Talks to the node that runs with this configuration."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.node_id: int = config.get("node_id", 1)
        urls = {int(each.split("=")[0]): each.split("=")[2] for each in config.get("peers", [])}
        self._url: str = config.get("http_url") or urls.get(self.node_id) or "http://127.0.0.1:7081"
        parts = urlsplit(self._url)
        self._at = _address_here(config.get("http_listen") or f"{parts.hostname}:{parts.port}")
        own = config.get("admin_listen")
        self._administration_at = self._at if own is None else _address_here(own)
        self._administration_url: str = config.get("admin_url") or self._url
        self._serves_tls = config.get("http_tls_cert") is not None
        self._ca = config.get("http_ca")
        token_file = config.get("admin_token_file")
        self._token = Path(token_file).read_text().split()[0] if token_file else None

    def probe(self, path: str) -> None:
        """Return if the answer is 200. Raises CallError."""
        # It asks itself and shows nothing, so it does not matter whom the certificate names.
        context = None
        if self._serves_tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        code, body = Server(self._url, self._at, context, None).call("GET", path, PROBE_TIMEOUT_S)
        if code != HTTPStatus.OK:
            raise CallError(f"{path}: {code} {_detail(body)}")

    def hand_over(self, timeout_s: float) -> None:
        """Return when the node may be stopped. Raises CallError after the longest wait."""
        deadline, said = time.monotonic() + timeout_s, ""
        while (reason := self._attempt()) is not None:
            if reason != said:
                print(f"keelmq-container: waiting: {reason}", file=sys.stderr, flush=True)
                said = reason
            if time.monotonic() > deadline:
                raise CallError(f"after {timeout_s:.0f} s still {reason}")
            time.sleep(POLL_S)

    def _attempt(self) -> str | None:
        """Have another node lead if the others are well. Returns None when that is done, else why not yet."""
        try:
            own = self._status(self._here())
            leads = own["leader_id"] == self.node_id
            view = own if leads or not own["leader_url"] else self._status(self._elsewhere(own["leader_url"]))
            voters = [each for each in view["nodes"] if each["membership"] == "voter"]
            others = [each for each in voters if each["node_id"] != self.node_id]
            if not others or len(others) == len(voters):
                return None  # a cluster of one, or a node that does not vote
            if view["leader_id"] != view["node_id"]:
                return "the nodes have no leader"
            well = [each for each in others if _is_copy(each, view)]
            if len(well) < len(voters) // 2 + 1:
                return f"{len(well)} of {len(voters)} nodes would be left, and {len(voters) // 2 + 1} are needed"
            return self._transfer(well) if leads else None
        except (CallError, KeyError, TypeError) as error:
            return str(error)

    def _transfer(self, candidates: list[dict[str, Any]]) -> str | None:
        """Ask the nodes in the order of their ids: Kubernetes updates pods in the opposite one."""
        reason = "no other node can lead"
        for each in sorted(candidates, key=lambda node: int(node["node_id"])):
            path = f"/v1/cluster/members/{each['node_id']}/lead"
            code, body = self._administration().call("POST", path, CALL_TIMEOUT_S)
            if code in (HTTPStatus.OK, HTTPStatus.TEMPORARY_REDIRECT):
                return "the next leader is not known yet"
            reason = f"node {each['node_id']} cannot lead: {code} {_detail(body)}"
        return reason

    def _status(self, server: Server) -> dict[str, Any]:
        code, body = server.call("GET", "/v1/cluster", PROBE_TIMEOUT_S)
        if code != HTTPStatus.OK or not isinstance(body, dict):
            raise CallError(f"{server.url}/v1/cluster: {code} {_detail(body)}")
        return body

    def _here(self) -> Server:
        return self._server(self._url, self._at)

    def _administration(self) -> Server:
        return self._server(self._administration_url, self._administration_at)

    def _elsewhere(self, url: str) -> Server:
        parts = urlsplit(url)
        return self._server(url, (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)))

    def _server(self, url: str, at: tuple[str, int]) -> Server:
        is_tls = urlsplit(url).scheme == "https"
        context = ssl.create_default_context(cafile=self._ca) if is_tls else None
        return Server(url, at, context, self._token)


def _address_here(listen: str) -> tuple[str, int]:
    """Return where a process of this container reaches what listens there."""
    host, _, port = listen.rpartition(":")
    return {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]")), int(port)  # noqa: S104


def _is_copy(node: Mapping[str, Any], view: Mapping[str, Any]) -> bool:
    return bool(node["connected"]) and view["commit_index"] - node["match_index"] <= BEHIND_ENTRIES_MAX


def _detail(body: Any) -> str:
    return str(body.get("detail", "")) if isinstance(body, dict) else ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="keelmq-container", description=__doc__, allow_abbrev=False)
    parser.add_argument("verb", choices=("healthy", "ready", "hand-over"))
    parser.add_argument("--config", type=Path, required=True, help="Configuration file of the node.")
    parser.add_argument("--timeout-s", type=float, default=60.0, help="hand-over: longest wait, in seconds (60).")
    options = parser.parse_args()
    try:
        agent = Agent(tomllib.loads(options.config.read_text()))
        if options.verb == "hand-over":
            agent.hand_over(options.timeout_s)
        else:
            agent.probe("/healthz" if options.verb == "healthy" else "/readyz")
    except (CallError, OSError, ValueError, LookupError) as error:
        print(f"keelmq-container: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
