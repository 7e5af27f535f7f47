"""`make cluster` and `make cluster-stop`: three nodes on this machine that outlive the command that started them.
`make cluster-add` adds another node while they run.

Override these on make's command line or in the environment: CLUSTER_NODES (3), CLUSTER_HTTP_PORT (7081, counting up),
CLUSTER_PEER_PORT (7091, counting up), CLUSTER_DATA (.data/local). Options of keelmqd pass through as KEELMQ_<OPTION>.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from deploy.local_nodes import HOST, LocalNode, NodeError, local_nodes, wait_ready

ADDED_PORTS: Final = 20  # port offset of added nodes, beyond the ports of the first nodes
DEFAULT_URL: Final = "http://127.0.0.1:7081"  # default server of the keelmq command


def main() -> int:
    settings = parse_arguments()
    nodes = local_nodes(
        settings.data,
        range(settings.http_port, settings.http_port + settings.nodes),
        range(settings.peer_port, settings.peer_port + settings.nodes),
    )
    try:
        added = added_nodes(settings, nodes)
        if settings.action == "start":
            start(nodes + added)
        elif settings.action == "add":
            add(nodes, added, new_node(settings, nodes + added))
        else:
            stop(nodes + added)
    except NodeError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


def new_node(settings: argparse.Namespace, nodes: list[LocalNode]) -> LocalNode:
    """Return the node after `nodes`; its ports follow theirs."""
    number = len(nodes) + 1
    directory = settings.data / f"node{number}"
    ports = settings.http_port + ADDED_PORTS + number, settings.peer_port + ADDED_PORTS + number
    node = LocalNode(number, directory, *ports, nodes[0].options)
    node.join_url = next((each for each in nodes if each.running_pid() is not None), nodes[0]).url
    return node


def added_nodes(settings: argparse.Namespace, nodes: list[LocalNode]) -> list[LocalNode]:
    """Return the nodes that were added earlier, found by their directories."""
    added: list[LocalNode] = []
    while (settings.data / f"node{len(nodes) + len(added) + 1}").is_dir():
        added.append(new_node(settings, nodes + added))
    return added


def add(nodes: list[LocalNode], added: list[LocalNode], node: LocalNode) -> None:
    """Start the node and make it a voter while the other nodes run.

    Raises NodeError. If the node was not added, nothing is left of it. If it was added but not promoted, or is not
    ready, it stays a member and keeps running."""
    servers = ("--servers", ",".join(each.url for each in nodes + added))
    if node.directory.exists():
        raise NodeError(f"{shown(node.directory)} is there already")
    try:
        node.start()
        if not succeeds("add-node", str(node.node_id), f"{HOST}:{node.peer_port}", node.url, *servers):
            raise NodeError(f"node {node.node_id} was not added; if the cluster has it all the same, add it again")
    except BaseException:
        node.kill()
        if node.directory.exists():
            shutil.rmtree(node.directory)  # otherwise `make cluster` would wait for a node that was not added
            print(f"cluster: {shown(node.directory)} is removed again", file=sys.stderr)
        raise
    if not succeeds("promote", str(node.node_id), "--wait", *servers):
        raise NodeError(
            f"node {node.node_id} runs and is no voter yet; go on with: keelmq cluster promote {node.node_id} --wait"
        )
    wait_ready([node])


def succeeds(*command: str) -> bool:
    """Return whether `keelmq cluster` succeeds with `command`; it prints its own errors."""
    keelmq = str(Path(sys.executable).parent / "keelmq")
    return subprocess.run([keelmq, "cluster", *command], check=False).returncode == 0  # noqa: S603


def start(nodes: list[LocalNode]) -> None:
    """Start the nodes that do not run, and return when every node is ready; on an error, stop the started nodes."""
    missing = [node for node in nodes if node.running_pid() is None]
    if not missing:
        print("cluster: already running")
    started: list[LocalNode] = []
    try:
        for node in missing:
            node.start()
            started.append(node)
        ready = wait_ready(nodes)
    except BaseException:
        for node in started:
            node.kill()
        raise
    for node in nodes:
        if node not in ready:
            node.stop()
            print(
                f"cluster: node {node.node_id} was removed from the cluster, and stops; {shown(node.directory)} stays"
            )
    print_guide(ready)


def stop(nodes: list[LocalNode]) -> None:
    running = [node for node in nodes if node.running_pid() is not None]
    for node in running:
        node.stop()
        print(f"cluster: node {node.node_id} stopped")
    if not running:
        print("cluster: not running")
    print(f"cluster: data kept in {shown(nodes[0].directory.parent)}")


def print_guide(nodes: list[LocalNode]) -> None:
    for node in nodes:
        print(f"  node {node.node_id}  {node.url}  pid {node.running_pid()}  log {shown(node.log_path)}")
    url = nodes[0].url
    keelmq = shown(Path(sys.executable).parent / "keelmq")
    print("ready. Try:")
    if url != DEFAULT_URL:
        print(f"  export KEELMQ_SERVERS={','.join(node.url for node in nodes)}")
    print(
        f"""  {keelmq} topic create greetings
  {keelmq} send greetings hello
  {keelmq} consume greetings --from earliest --max 1
  {keelmq} cluster status
the same by hand:
  curl -sL -X PUT {url}/v1/topics/greetings -H 'Content-Type: application/json' -d '{{"queues": 4}}'
  curl -sL {url}/v1/topics/greetings/messages -H 'Content-Type: application/json' \\
       -d '{{"messages": [{{"body": "hello", "queue": 0}}]}}'
  curl -s '{url}/v1/topics/greetings/queues/0/messages?offset=0&wait_ms=1000'
  curl -s {url}/v1/cluster
stop with: make cluster-stop"""
    )


def shown(path: Path) -> str:
    """Return the path as shown to people: relative to the working directory if it is inside."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.local_cluster", description=__doc__)
    parser.add_argument("action", choices=("start", "stop", "add"))
    for flag, variable, kind, default in (
        ("--nodes", "CLUSTER_NODES", int, "3"),
        ("--http-port", "CLUSTER_HTTP_PORT", port_number, "7081"),
        ("--peer-port", "CLUSTER_PEER_PORT", port_number, "7091"),
        ("--data", "CLUSTER_DATA", Path, ".data/local"),
    ):
        value = os.environ.get(variable) or default
        parser.add_argument(flag, type=kind, default=value, help=f"default: ${variable} or {default}")
    settings = parser.parse_args()
    ports = range(settings.http_port, settings.http_port + settings.nodes)
    if not 1 <= settings.nodes <= 9:
        parser.error(f"--nodes: {settings.nodes} is not between 1 and 9")
    if settings.peer_port in ports or settings.http_port in range(settings.peer_port, settings.peer_port + len(ports)):
        parser.error(f"the ranges of {len(ports)} ports from --http-port and --peer-port overlap")
    return settings


def port_number(text: str) -> int:
    port = int(text)
    if not 1 <= port <= 65535 - 9:
        raise argparse.ArgumentTypeError(f"{text} is not a port between 1 and {65535 - 9}")
    return port


if __name__ == "__main__":
    sys.exit(main())
