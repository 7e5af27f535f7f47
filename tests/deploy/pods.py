"""Run the manifests of `keelmq-deploy render kubernetes` without Kubernetes: `python -m tests.deploy.pods`.

Each pod is a network namespace and a root of its own, an overlay of this machine's, with the volumes where the
manifests mount them. The commands are those of the manifests: the first container, the node, the hook before a stop.
Probes are called as kubelet calls them. The last line is `RESULT {json}`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.reporting.report import Report
from deploy.rollout.rendering.image import AGENT
from keelmq import Admin, Connection, Producer, Tls
from keelmq.consuming.group_session import first_offset
from tests.chaos.isolation import enter_isolation
from tests.chaos.network import Network, host_of
from tests.e2e.cluster_process import wait_for
from tests.patience import CALL_PATIENCE_MS, PATIENCE_S
from tests.requirements import REPOSITORY

PODS: Final = ("shop-0", "shop-1", "shop-2")
NODE_IDS: Final = {"shop-0": 7, "shop-1": 2, "shop-2": 5}
SUFFIX: Final = "shop-peers.mq.svc"
ADMIN_TOKEN: Final = "administrator-of-the-pods-0123456789abcdef"
NOT_RUN: Final = 2
INVENTORY: Final = """\
[cluster]
id = "shop"
tls = "all"
[containers]
image = "registry.example/keelmq@sha256:{digest}"
[options]
auth = "enforce"
admin_token_file = "admin_token"
election_timeout_ms = 500
heartbeat_ms = 50
segment_bytes = 4194304
min_free_bytes = 0
"""
ROOT: Final = """
set -eu
mount -t tmpfs tmpfs {pod}/root
mkdir {pod}/root/upper {pod}/root/work {pod}/root/all
mount -t overlay overlay -o lowerdir=/,upperdir={pod}/root/upper,workdir={pod}/root/work {pod}/root/all
cd {pod}/root/all
mkdir -p .{repository} .{python} opt/keelmq/bin
mount --rbind /proc proc && mount --rbind /dev dev
mount --bind {repository} .{repository}
mount --bind {python} .{python}
cp {hosts} etc/hosts
ln -s {bin}/python opt/keelmq/bin/python
ln -s {bin}/keelmqd opt/keelmq/bin/keelmqd
install -m 0755 {repository}/deploy/container/agent.py .{agent}
{mounts}
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin POD_NAME={name} chroot . /bin/sh -c {command}
"""
"""Work of a container runtime: a root, volumes, and one command."""


class Pod:
    """One pod of the StatefulSet."""

    def __init__(self, directory: Path, network: Network, number: int, name: str, spec: dict[str, Any]) -> None:
        self.name = name
        self.host = host_of(number)
        self._number = number
        self._network = network
        self._directory = directory
        self._spec = spec
        self._place = directory / name
        self._process: subprocess.Popen[bytes] | None = None
        for volume in ("root", "data", "own-secrets"):
            (self._place / volume).mkdir(parents=True)

    def start(self) -> None:
        """Run the first container to its end, then begin the node."""
        (first,) = self._spec["initContainers"]
        done = self._run(first, shlex.join(first["command"])).wait(PATIENCE_S)
        assert done == 0, f"the first container of {self.name} ended with {done}"
        (main,) = self._spec["containers"]
        arguments = [each.replace("$(POD_NAME)", self.name) for each in main["args"]]
        self._process = self._run(main, shlex.join(["exec", "/opt/keelmq/bin/keelmqd", *arguments]))

    def hook(self, *, timeout_s: int | None = None) -> "subprocess.CompletedProcess[str]":
        """Run the hook before a stop within the running container, with another longest wait if one is given."""
        (main,) = self._spec["containers"]
        command = [*main["lifecycle"]["preStop"]["exec"]["command"]]
        if timeout_s is not None:
            command[-1] = command[-1].rpartition(" ")[0] + f" {timeout_s}"
        assert self._process is not None
        enter = ["nsenter", "--target", str(self._process.pid), "--mount", "--net", "--root", "--wd=/"]
        variables = ["env", "-i", "PATH=/usr/bin:/bin", f"POD_NAME={self.name}"]
        return subprocess.run([*enter, *variables, *command], capture_output=True, text=True, timeout=PATIENCE_S)

    def stop(self) -> int:
        """Stop the node as a runtime does, and return its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE_S)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def own_files(self) -> dict[str, int]:
        """Return the modes of the files that the node has got, by name."""
        return {path.name: path.stat().st_mode & 0o777 for path in (self._place / "own-secrets").iterdir()}

    def is_ready(self) -> bool:
        probe = self._spec["containers"][0]["readinessProbe"]["httpGet"]
        return self._get(probe["scheme"].lower(), probe["path"]) == 200

    def status(self) -> dict[str, Any]:
        request = urllib.request.Request(f"https://{self.host}:7081/v1/cluster")
        request.add_header("Authorization", f"Bearer {ADMIN_TOKEN}")
        with urllib.request.urlopen(request, timeout=PATIENCE_S, context=_unverified()) as answer:
            document: dict[str, Any] = json.load(answer)
            return document

    def _get(self, scheme: str, path: str) -> int:
        try:
            with urllib.request.urlopen(
                f"{scheme}://{self.host}:7081{path}", timeout=5, context=_unverified()
            ) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def _run(self, container: dict[str, Any], command: str) -> "subprocess.Popen[bytes]":
        volumes = {"config": "config", "secrets": "secrets", "data": f"{self.name}/data"}
        volumes["own-secrets"] = f"{self.name}/own-secrets"
        mounts = []
        for mount in container["volumeMounts"]:
            at, source = mount["mountPath"].lstrip("/"), self._directory / volumes[mount["name"]]
            mounts.append(f"mkdir -p {at} && mount --bind {source} {at}")
            if mount.get("readOnly"):
                mounts.append(f"mount -o remount,bind,ro {at}")
        script = ROOT.format(
            pod=self._place,
            repository=REPOSITORY,
            python=sys.base_prefix,
            hosts=self._directory / "hosts",
            bin=Path(sys.executable).parent,
            agent=AGENT,
            mounts="\n".join(mounts),
            name=self.name,
            command=shlex.quote(command),
        )
        isolate = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"]
        return subprocess.Popen([*self._network.prefix(self._number), *isolate, "/bin/sh", "-c", script])


def _unverified() -> ssl.SSLContext:
    """Return what kubelet uses: it does not look at the certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class Trial:
    """One cluster from its first start to an update of a pod. A broken promise raises AssertionError."""

    def __init__(self, directory: Path, stack: contextlib.ExitStack, report: Report) -> None:
        self._directory = directory
        self._report = report
        rendered = self._render()
        documents = list(yaml.safe_load_all((rendered / "keelmq.yaml").read_text()))
        (spec,) = [each["spec"]["template"]["spec"] for each in documents if each["kind"] == "StatefulSet"]
        for name in ("config", "secrets"):
            shutil.copytree(rendered / name, directory / name)
        network = Network((1, 2, 3))
        names = {pod: host_of(number) for number, pod in enumerate(PODS, 1)}
        lines = ["127.0.0.1 localhost", *(f"{host} {pod}.{SUFFIX}" for pod, host in names.items())]
        (directory / "hosts").write_text("".join(f"{line}\n" for line in lines))
        # For the client below; in a mount namespace of this program's own.
        subprocess.run(["mount", "--bind", str(directory / "hosts"), "/etc/hosts"], check=True)
        self._pods = {name: Pod(directory, network, number, name, spec) for number, name in enumerate(PODS, 1)}
        for pod in self._pods.values():
            stack.callback(pod.end)

    def _render(self) -> Path:
        lines = [INVENTORY.format(digest="0" * 64)]
        for pod, node_id in NODE_IDS.items():
            lines.append(
                f'[[node]]\nid = {node_id}\npeer = "{pod}.{SUFFIX}:7091"\nurl = "https://{pod}.{SUFFIX}:7081"\n'
            )
        inventory = self._directory / "cluster.toml"
        inventory.write_text("".join(lines))
        token = self._directory / "admin_token"
        token.touch(0o600)
        token.write_text(ADMIN_TOKEN + "\n")
        output = self._directory / "rendered"
        command = [
            sys.executable,
            "-m",
            "deploy.rollout",
            "render",
            "kubernetes",
            "-i",
            str(inventory),
            "-o",
            str(output),
        ]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return output

    async def run(self) -> dict[str, Any]:
        self._report.step("all pods begin at once")
        for pod in self._pods.values():
            pod.start()
        for pod in self._pods.values():
            wait_for(pod.is_ready, f"{pod.name} to be ready")
            assert pod.status()["node_id"] == NODE_IDS[pod.name]
            own = {"admin_token_file", "ca.crt", "node.crt", "node.key", "peer_secret"}
            assert pod.own_files() == dict.fromkeys(own, 0o600)
        await self._send()
        leader, first = self._leader(), self._leader().name
        self._report.step("the leader is stopped as in an update")
        done = leader.hook()
        assert done.returncode == 0, done.stderr
        assert self._leader() is not leader, "the hook ended before another node led"
        assert leader.stop() == 0
        refused = self._leader().hook(timeout_s=1)
        assert refused.returncode == 1, "the hook of a second pod did not wait for the first one"
        assert "1 of 3 nodes would be left, and 2 are needed" in refused.stderr, refused.stderr
        leader.start()
        wait_for(leader.is_ready, f"{leader.name} to be ready again")
        follower = next(pod for pod in self._pods.values() if pod is not self._leader())
        assert follower.hook().returncode == 0
        self._report.step("the messages are there")
        kept = await self._kept()
        assert kept == 1, f"{kept} messages are there"
        return {"first_leader": first, "leader": self._leader().name, "messages": kept}

    def _leader(self) -> Pod:
        for pod in self._pods.values():
            with contextlib.suppress(OSError):
                status = pod.status()
                if status["role"] == "leader":
                    return pod
        raise AssertionError("no pod leads")

    def _connection(self) -> Connection:
        servers = [f"https://{pod}.{SUFFIX}:7081" for pod in PODS]
        tls = Tls(ca_file=str(self._directory / "cluster.toml.pki" / "ca.crt"))
        return Connection(servers, token=ADMIN_TOKEN, tls=tls)

    async def _send(self) -> None:
        async with Producer(connection=self._connection(), send_timeout_ms=CALL_PATIENCE_MS) as producer:
            connection = self._connection()
            try:
                await Admin(connection).put_topic("orders", queues=1)
            finally:
                connection.close()
            await producer.send("orders", b"first")

    async def _kept(self) -> int:
        connection = self._connection()
        try:
            return int(await first_offset(connection, ("orders", 0), "latest"))
        finally:
            connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.deploy.pods", description=__doc__)
    parser.parse_args()
    if (reason := enter_isolation([], "tests.deploy.pods")) is not None:
        print(f"pods: {reason}", file=sys.stderr)
        return NOT_RUN
    report = Report()
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        os.chmod(directory, 0o755)
        result = asyncio.run(Trial(Path(directory), stack, report).run())
    report.result(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
