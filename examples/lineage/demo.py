"""`make lineage`: a cluster, a workload, and the lineage job that follows it while leader and job are killed.

The exit status is 0 only if the tables equal the workload's own record. The last line is `RESULT {json}`.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from deploy.local_nodes import LocalNode, NodeError, nodes_on_free_ports, wait_ready
from deploy.reporting.report import Report
from examples.lineage.truth import compare
from examples.lineage.workload import Workload
from keelmq_spark.queries import answers, pictures, site
from keelmq_spark.queries.graph import Graph, NoTables

NODE_OPTIONS: Final = {
    "check_immunity_ms": "1000",
    "check_interval_ms": "2000",
    "check_max": "1000",
    "cluster_id": "lineage",
}
TIMEOUT_S: Final = 600.0
POLL_S: Final = 0.2


class DemoError(Exception):
    """Raised when the run could not be carried out; the message says why."""


class Job:
    """Runs `keelmq-lineage run` as a process group of its own: Python, and the Java that it starts."""

    def __init__(self, directory: Path, servers: str, format: str) -> None:
        self.tables = directory / "tables"
        self.log_file = directory / "lineage.log"
        keelmq_lineage = str(Path(sys.executable).parent / "keelmq-lineage")
        self._command = [keelmq_lineage, "run", "--servers", servers, "--tables", str(self.tables), "--format", format]
        self._command += ["--openlineage", str(directory / "openlineage.json"), "--cluster", "lineage"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the job of this checkout
                [*self._command, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """Send SIGKILL to all its processes."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """End the job after its current batch."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(TIMEOUT_S)

    def wait(self) -> None:
        assert self._process is not None
        if self._process.wait(TIMEOUT_S) != 0:
            raise DemoError(f"the lineage job failed:\n{self.log_tail()}")

    def check(self) -> None:
        """Raise DemoError when the job has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise DemoError(f"the lineage job ended by itself:\n{self.log_tail()}")

    def events(self) -> int:
        """Return the number of events in the tables."""
        try:
            with Graph(self.tables) as graph:
                return int(graph.rows("SELECT count(*) AS n FROM events")[0]["n"])
        except NoTables:
            return 0

    def log_tail(self) -> str:
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-30:])


class Run:
    """One run: owns its processes and records the faults."""

    def __init__(self, directory: Path, orders: int, orders_per_s: float, format: str, report: Report) -> None:
        self.directory = directory
        self.orders = orders
        self.nodes = nodes_on_free_ports(directory, 3, NODE_OPTIONS)
        self.workload = Workload([node.url for node in self.nodes], orders_per_s)
        self.job = Job(directory, ",".join(node.url for node in self.nodes), format)
        self.restarts = 0
        self._faults_over = False
        self._report = report

    def state(self) -> str:
        """Return the line of progress."""
        return f"{self.workload.placed:,} orders placed"

    async def run(self) -> dict[str, Any]:
        self._report.step("starting three nodes and the lineage job")
        for node in self.nodes:
            node.start()
        await asyncio.to_thread(wait_ready, self.nodes)
        await self.workload.prepare()
        self.job.start()
        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(self.workload.run(self._enough))
            tasks.create_task(self._faults())
        self._report.step(f"{self.workload.placed} orders are placed and everything is processed")
        await asyncio.to_thread(self.job.stop)
        self.job.start("--once")
        await asyncio.to_thread(self.job.wait)
        self._report.step("the tables are up to date; comparing them with what the workload did")
        with Graph(self.job.tables) as graph:
            found = compare(self.workload.truth, graph)
            self._draw(graph)
        return {**found, "restarts": self.restarts}

    def _enough(self) -> bool:
        return self._faults_over and self.workload.placed >= self.orders

    async def _faults(self) -> None:
        await self._until(lambda: self.job.events() > self.orders // 2)
        await asyncio.to_thread(self.job.kill)
        self._report.event(f"kill -9: the lineage job, with {self.job.events()} events in its tables", "fault")
        self.job.start()
        self.restarts += 1
        before = self.job.events()
        await self._until(lambda: self.job.events() > before)
        self._report.event("the lineage job goes on", "recovery")
        leader = await self._leader()
        await asyncio.to_thread(leader.kill)
        self.restarts += 1
        self._report.event(f"kill -9: node {leader.node_id}, the leader", "fault")
        before = self.job.events()
        await self._until(lambda: self.job.events() > before + self.orders // 4)
        self._report.event("the lineage job reads from another node; the killed one starts again", "recovery")
        leader.start()
        await asyncio.to_thread(wait_ready, [leader])
        self._faults_over = True

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not await asyncio.to_thread(condition):
            self.job.check()
            await asyncio.sleep(POLL_S)

    async def _leader(self) -> LocalNode:
        import aiohttp

        async with aiohttp.ClientSession() as http:
            while True:
                for node in self.nodes:
                    with contextlib.suppress(aiohttp.ClientError):
                        async with http.get(f"{node.url}/v1/cluster") as answer:
                            if (await answer.json()).get("role") == "leader":
                                return node
                await asyncio.sleep(POLL_S)

    def _draw(self, graph: Graph) -> None:
        """Draw the story of an order that was retried and shipped, the graph of the topics, and pages of all of it."""
        chosen = graph.rows(
            """SELECT c.dst AS node_id FROM edges c JOIN edges r ON r.kind = 'RETRY_OF' AND r.dst = c.dst
               WHERE c.kind = 'CAUSED_BY' ORDER BY c.dst LIMIT 1"""
        )
        if chosen:
            (self.directory / "story.svg").write_text(pictures.story_picture(graph, chosen[0]["node_id"]))
        (self.directory / "topics.svg").write_text(pictures.topics_picture(answers.topic_graph(graph)))
        (self.directory / "pages").mkdir(exist_ok=True)
        for name, text in site.pages(graph, stories=3):
            (self.directory / "pages" / name).write_text(text)

    def end(self) -> None:
        self.job.kill()
        for node in self.nodes:
            with contextlib.suppress(NodeError):
                node.stop()


def main() -> int:
    """Run the demo and return the exit status."""
    parser = argparse.ArgumentParser(prog="make lineage", description=__doc__)
    parser.add_argument("--orders", type=int, default=3_000, help="minimum number of orders (%(default)s)")
    parser.add_argument("--rate", type=float, default=100, help="orders per second (%(default)s)")
    parser.add_argument(
        "--format", choices=["delta", "parquet"], default="delta", help="format of the tables (%(default)s)"
    )
    parser.add_argument(
        "--directory", type=Path, default=Path(".data/lineage"), help="directory of the run (%(default)s)"
    )
    options = parser.parse_args()
    directory = options.directory.absolute()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    report = Report()
    run = Run(directory, options.orders, options.rate, options.format, report)
    try:
        with report.live(run.state):
            result = asyncio.run(run.run())
    except (DemoError, NodeError, TimeoutError) as exc:
        print(f"lineage: {exc}", file=sys.stderr)
        return 1
    except ExceptionGroup as group:
        for each in group.exceptions:
            print(f"lineage: {each}", file=sys.stderr)
        return 1
    finally:
        run.end()
    for example in result.pop("examples"):
        report.text(example)
    report.table("lineage tables and the workload", ("figure", "count"), result.items())
    report.text(f"tables and pictures: {directory}; ask them: keelmq-lineage summary --tables {directory / 'tables'}")
    report.result(result)
    return 1 if any(result[name] for name in ("missing", "extra", "wrong_state", "wrong_answers")) else 0


if __name__ == "__main__":
    sys.exit(main())
