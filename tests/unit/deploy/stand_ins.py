"""Nodes of a cluster that answer `keelmq-deploy` as it wants, without hosts."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from deploy.local_nodes import free_ports

Run = Callable[..., tuple[int, str]]
"""Runs a verb with its arguments; returns the exit code and the output."""


class Cluster:
    """Three nodes, of which node 1 leads. `down` do not answer; a DELETE takes a member away."""

    def __init__(self) -> None:
        self.members = [1, 2, 3]
        self.down: set[int] = set()
        self.drained: set[int] = set()
        self.commits: dict[int, str] = {}
        self.cluster_ids = dict.fromkeys((1, 2, 3), "shop")
        self.asked: list[str] = []
        self.before_answer: Callable[[], object] = lambda: None
        """Called before each answer to a GET."""
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), self._handler(number)) for number in (1, 2, 3)]
        self._threads = [threading.Thread(target=each.serve_forever, args=(0.01,)) for each in self._servers]
        for thread in self._threads:
            thread.start()

    def urls(self) -> dict[int, str]:
        """Return the URLs by node; those of nodes that are down are closed."""
        ports = {number: self._servers[number - 1].server_address[1] for number in (1, 2, 3)}
        ports |= dict(zip(self.down, free_ports(len(self.down)), strict=True))
        return {number: f"http://127.0.0.1:{port}" for number, port in ports.items()}

    def inventory(self, directory: Path, ssh: str = "") -> Path:
        """Write the inventory of the cluster `shop` with these nodes."""
        path = directory / "cluster.toml"
        text = f'[cluster]\nid = "shop"\nroot = "{directory}/hosts"\n'
        for number, url in self.urls().items():
            text += f'[[node]]\nid = {number}\nssh = "{ssh}"\npeer = "127.0.0.1:{7090 + number}"\nurl = "{url}"\n'
        path.write_text(text)
        return path

    def status(self, number: int) -> dict[str, Any]:
        nodes = [
            {"node_id": each, "membership": "voter", "connected": each not in self.down, "match_index": 9}
            | {"drained": each in self.drained}
            for each in self.members
        ]
        told = {"cluster_id": self.cluster_ids[number], "node_id": number, "term": 2, "leader_id": 1, "nodes": nodes}
        told |= {"role": "leader" if number == 1 else "follower", "alarms": [], "hash_index": 1, "state_hash": "a"}
        told |= {"version": "0.3.0", "commit": self.commits.get(number)}
        return {**told, "commit_index": 9, "applied_index": 9, "admin_url": None, "feature_level": 1}

    def end(self) -> None:
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()

    def _handler(self, number: int) -> Callable[..., BaseHTTPRequestHandler]:
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                cluster.before_answer()
                self._answer(cluster.status(number))

            def do_POST(self) -> None:
                cluster.asked.append(f"{self.command} {self.path}")
                self._answer({})

            def do_DELETE(self) -> None:
                cluster.members.remove(int(self.path.rpartition("/")[2]))
                self.do_POST()

            def _answer(self, document: dict[str, Any]) -> None:
                body = json.dumps(document).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        return Handler
