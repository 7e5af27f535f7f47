"""Manifests for Kubernetes with a kustomization: a StatefulSet whose pods are the nodes of the inventory.

The addresses of the inventory are those of the pods, NAME-ORDINAL.SERVICE.NAMESPACE.svc, and say how everything is
called. Which node a pod is follows from its name: it reads the configuration file of that name.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from deploy.rollout.inventory import Inventory
from deploy.rollout.rendering import restricted
from deploy.rollout.rendering.backups import check_backups, cron_job, source_of
from deploy.rollout.rendering.files import SECRET_MODE, File, Files, RenderError, yaml_file
from deploy.rollout.rendering.image import AGENT, CONFIG_DIR, DATA_ROOT, HAND_OVER_S, STOP_S
from deploy.rollout.rendering.parts import Parts, shared_files

ETC: Final = "/run/keelmq"
START_S: Final = 600
"""Time until a node serves; it opens a long log, or waits for others, within it."""
PROBE_INTERVAL_S: Final = 5
CLIENT_LABEL: Final = "keelmq-client"
"""Pods and namespaces with this label, "true", may reach the HTTP API."""
ADMINISTRATOR_LABEL: Final = "keelmq-administrator"
"""Pods and namespaces with this label, "true", may reach the listeners for administration."""
_LABEL: Final = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_HOST: Final = re.compile(
    rf"(?P<name>{_LABEL})-(?P<ordinal>0|[1-9][0-9]*)\.(?P<service>{_LABEL})\.(?P<namespace>{_LABEL})\.svc(?:\.[-a-z0-9.]+)?"
)
_NAME_CHARACTERS_MAX: Final = 52
"""Longest name of a StatefulSet: Kubernetes appends to it in a label of 63 characters."""
_COMMENT: Final = """\
KeelMQ cluster {id}: written by `keelmq-deploy render kubernetes`, which replaces this directory. docs/kubernetes.md
Apply it with `kubectl apply -k`: configuration and secrets come from kustomization.yaml."""
_TAKE_SECRETS: Final = """\
umask 077
for owner in all "$POD_NAME"; do
    for file in /secrets/"$owner".*; do
        [ ! -e "$file" ] || cp "$file" "/run/keelmq/${file#/secrets/"$owner".}"
    done
done
"""
"""Kubernetes owns mounted secrets as root, and lets the group read them; a node takes only files of its own user. What
is of the other nodes stays in this first container.
"""


class Names(NamedTuple):
    """The parts of the pods' addresses."""

    name: str
    service: str
    namespace: str
    http_port: int
    peer_port: int
    scheme: str
    admin_port: int

    @property
    def labels(self) -> dict[str, str]:
        return {"app.kubernetes.io/name": "keelmq", "app.kubernetes.io/instance": self.name}

    def meta(self, name: str) -> dict[str, Any]:
        return {"name": name, "namespace": self.namespace, "labels": self.labels}


def kubernetes(inventory: Inventory, nodes: Sequence[Parts]) -> Files:
    """Return the files. Raises RenderError for addresses that are not those of pods of one StatefulSet."""
    names = _names(nodes)
    files: dict[str, File] = {}
    shared, pods = shared_files(nodes), {}
    for name, content in shared.items():
        files[f"secrets/all.{name}"] = File(content, SECRET_MODE)
    for parts in nodes:
        pod = parts.address.peer_host.split(".")[0]
        pods[pod] = parts
        files[f"config/{pod}.toml"] = parts.config
        for name, content in parts.files.items():
            if name not in shared:
                files[f"secrets/{pod}.{name}"] = File(content, SECRET_MODE)
    kept = [name for name in files if name.startswith("secrets/")]
    documents = [
        _service_account(names),
        _peers_service(names),
        *_clients_services(names, nodes),
        _stateful_set(inventory, names, len(nodes), has_secrets=bool(kept)),
        _disruption_budget(names),
        _network_policy(names, nodes),
    ]
    if inventory.file.backup.target:
        check_backups(inventory, "kubernetes")
        source = source_of(inventory, nodes)
        for name, content in source.files.items():
            files[f"secrets/backup.{name}"] = File(content, SECRET_MODE)
        let_through = {ADMINISTRATOR_LABEL if names.admin_port else CLIENT_LABEL: "true"}
        documents += cron_job(inventory, source, names.name, names.meta, let_through)
    comment = _COMMENT.format(id=inventory.cluster.id)
    files["keelmq.yaml"] = yaml_file(comment, *documents)
    of_backups = [name for name in files if name.startswith("secrets/backup.")]
    files["kustomization.yaml"] = yaml_file(comment, _kustomization(names, list(pods), kept, of_backups))
    files[".gitignore"] = File(b"/secrets/\n")
    return files


def _names(nodes: Sequence[Parts]) -> Names:
    """Return what all addresses agree on."""
    found: set[Names] = set()
    ordinals = []
    for parts in nodes:
        address = parts.address
        match = _HOST.fullmatch(address.peer_host)
        if match is None or address.url_host != address.peer_host or len(match["name"]) > _NAME_CHARACTERS_MAX:
            raise RenderError(
                f"node {parts.node.id}: peer and url have to name its pod, as in "
                'peer = "shop-0.shop-peers.default.svc:7091" and url = "https://shop-0.shop-peers.default.svc:7081" '
                "(StatefulSet shop with at most 52 characters, headless Service shop-peers, namespace default)"
            )
        ordinals.append(int(match["ordinal"]))
        parts_of_name = match["name"], match["service"], match["namespace"]
        found.add(Names(*parts_of_name, address.url_port, address.peer_port, address.scheme, address.admin_port))
    if len(found) != 1:
        raise RenderError("the nodes differ in StatefulSet, Service, namespace, ports or scheme of their addresses")
    if sorted(ordinals) != list(range(len(nodes))):
        raise RenderError(f"the pods of the nodes have the ordinals {sorted(ordinals)}, not 0 to {len(nodes) - 1}")
    return found.pop()


def _service_account(names: Names) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": names.meta(names.name),
        "automountServiceAccountToken": False,
    }


def _ports(names: Names) -> list[dict[str, Any]]:
    own = [{"name": "admin", "port": names.admin_port, "targetPort": "admin"}] if names.admin_port else []
    return [
        {"name": names.scheme, "port": names.http_port, "targetPort": "http"},
        {"name": "peer", "port": names.peer_port, "targetPort": "peer"},
        *own,
    ]


def _peers_service(names: Names) -> dict[str, Any]:
    """Return the names of the pods. Nodes have to find each other before any of them is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": names.meta(names.service),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.labels,
            "ports": _ports(names),
        },
    }


def _clients_services(names: Names, nodes: Sequence[Parts]) -> list[dict[str, Any]]:
    """Return a Service of the ready pods for each name of this namespace under which all nodes may be reached."""
    end = re.compile(rf"({_LABEL})\.{names.namespace}(?:\.svc(?:\.[-a-z0-9.]+)?)?")
    common = set.intersection(*(set(parts.node.names) for parts in nodes))
    found = {match[1] for each in common if (match := end.fullmatch(each)) is not None}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": names.meta(each),
            "spec": {"selector": names.labels, "ports": _ports(names)[:1]},
        }
        for each in sorted(found - {names.service})
    ]


def _stateful_set(inventory: Inventory, names: Names, replicas: int, *, has_secrets: bool) -> dict[str, Any]:
    containers = inventory.file.containers
    claim: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": str(containers.storage_bytes)}},
    }
    if containers.storage_class:
        claim["storageClassName"] = containers.storage_class
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": names.meta(names.name),
        "spec": {
            "replicas": replicas,
            "serviceName": names.service,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "minReadySeconds": 10,
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "selector": {"matchLabels": names.labels},
            "template": {
                "metadata": {"labels": names.labels},
                "spec": _pod(inventory, names, has_secrets=has_secrets),
            },
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": claim}],
        },
    }


def _pod(inventory: Inventory, names: Names, *, has_secrets: bool) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [
        {"name": "config", "configMap": {"name": f"{names.name}-config", "defaultMode": 0o444}}
    ]
    spec: dict[str, Any] = {
        "serviceAccountName": names.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": HAND_OVER_S + STOP_S,
        "securityContext": restricted.POD,
        "affinity": _one_per_host(names),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": names.labels},
            }
        ],
    }
    if has_secrets:
        spec["initContainers"] = [_secrets_container(inventory)]
        volumes += [
            {"name": "secrets", "secret": {"secretName": f"{names.name}-secrets", "defaultMode": 0o440}},
            {"name": "own-secrets", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        ]
    return {**spec, "containers": [_container(inventory, names, has_secrets=has_secrets)], "volumes": volumes}


def _one_per_host(names: Names) -> dict[str, Any]:
    """Two nodes on one host would be lost together, and the quorum with them."""
    term = {"labelSelector": {"matchLabels": names.labels}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


_POD_NAME: Final = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}


def _secrets_container(inventory: Inventory) -> dict[str, Any]:
    few = {"cpu": "100m", "memory": "64Mi"}
    return {
        "name": "secrets",
        "image": inventory.file.containers.image,
        "command": ["/bin/sh", "-eu", "-c", _TAKE_SECRETS],
        "env": [_POD_NAME],
        "resources": {"requests": few, "limits": few},
        "securityContext": restricted.CONTAINER,
        "volumeMounts": [
            {"name": "secrets", "mountPath": "/secrets", "readOnly": True},
            {"name": "own-secrets", "mountPath": ETC},
        ],
    }


def _container(inventory: Inventory, names: Names, *, has_secrets: bool) -> dict[str, Any]:
    containers = inventory.file.containers
    memory = str(containers.memory_bytes)
    config = f"{CONFIG_DIR}/$(POD_NAME).toml"
    mounts: list[dict[str, Any]] = [
        {"name": "data", "mountPath": DATA_ROOT},
        {"name": "config", "mountPath": CONFIG_DIR, "readOnly": True},
    ]
    if has_secrets:
        mounts.append({"name": "own-secrets", "mountPath": ETC, "readOnly": True})
    own = [{"name": "admin", "containerPort": names.admin_port}] if names.admin_port else []
    hand_over = f'exec {AGENT} hand-over --config "{CONFIG_DIR}/$POD_NAME.toml" --timeout-s {HAND_OVER_S}'
    return {
        "name": "keelmqd",
        "image": containers.image,
        "args": ["--config", config],
        "env": [_POD_NAME],
        "ports": [
            {"name": "http", "containerPort": names.http_port},
            {"name": "peer", "containerPort": names.peer_port},
            *own,
        ],
        "resources": {
            "requests": {"cpu": _cpus(containers.cpus / 2), "memory": memory},
            "limits": {"cpu": _cpus(containers.cpus), "memory": memory},
        },
        "securityContext": restricted.CONTAINER,
        "startupProbe": _probe(names, "/healthz", failures=START_S // PROBE_INTERVAL_S),
        "livenessProbe": _probe(names, "/healthz", failures=6),
        # For reads: with "for=writes" one pod at most is ready, and neither updates nor evictions would go on.
        "readinessProbe": _probe(names, "/readyz", failures=2),
        # A handler of a hook gets no $(POD_NAME); a shell has the variable.
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", hand_over]}}},
        "volumeMounts": mounts,
    }


def _cpus(number: float) -> str:
    return f"{round(number * 1000)}m"


def _probe(names: Names, path: str, *, failures: int) -> dict[str, Any]:
    get = {"path": path, "port": "http", "scheme": names.scheme.upper()}
    return {
        "httpGet": get,
        "periodSeconds": PROBE_INTERVAL_S,
        "timeoutSeconds": PROBE_INTERVAL_S,
        "failureThreshold": failures,
    }


def _disruption_budget(names: Names) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": names.meta(names.name),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": names.labels}},
    }


def _network_policy(names: Names, nodes: Sequence[Parts]) -> dict[str, Any]:
    own = {"podSelector": {"matchLabels": names.labels}}
    http, peer = ({"protocol": "TCP", "port": port} for port in ("http", "peer"))
    ingress = [{"from": [own], "ports": [peer, http]}, {"from": _labelled(CLIENT_LABEL), "ports": [http]}]
    if names.admin_port:
        # Redirects to the leader lead by way of its other port.
        admin = {"protocol": "TCP", "port": "admin"}
        ingress.append({"from": _labelled(ADMINISTRATOR_LABEL), "ports": [admin, http]})
    egress: list[dict[str, Any]] = [
        {"to": [own], "ports": [http, peer]},
        {"ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]},
    ]
    called = sorted({port for parts in nodes for port in (*_webhook_ports(parts), *_issuer_ports(parts))})
    if called:
        egress.append({"ports": [{"protocol": "TCP", "port": port} for port in called]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": names.meta(names.name),
        "spec": {
            "podSelector": {"matchLabels": names.labels},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    }


def _labelled(label: str) -> list[dict[str, Any]]:
    """Return the pods with the label, and those of namespaces with it."""
    labels = {"matchLabels": {label: "true"}}
    return [{"podSelector": labels}, {"namespaceSelector": labels}]


def _webhook_ports(parts: Parts) -> list[int]:
    """Return the ports of the webhooks that the node may call; those of http and https where it may call all."""
    allowed = parts.options.get("webhook_allow", [])
    urls = [urlsplit(each) for each in allowed if each != "*"] if isinstance(allowed, list) else []
    return [each.port or (443 if each.scheme == "https" else 80) for each in urls] + (
        [80, 443] if isinstance(allowed, list) and "*" in allowed else []
    )


def _issuer_ports(parts: Parts) -> list[int]:
    """Return the port at which the node fetches the keys of people's tokens, if it does."""
    keys = urlsplit(str(parts.options.get("oidc_keys", "")))
    return [keys.port or (443 if keys.scheme == "https" else 80)] if keys.scheme in ("http", "https") else []


def _kustomization(
    names: Names, pods: Sequence[str], secrets: Sequence[str], of_backups: Sequence[str]
) -> dict[str, Any]:
    """Return what makes configuration and secrets of files. Names change with the content, so that pods follow."""
    config = {"name": f"{names.name}-config", "files": [f"{pod}.toml=config/{pod}.toml" for pod in pods]}
    found: dict[str, Any] = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": names.namespace,
        "resources": ["keelmq.yaml"],
        "configMapGenerator": [config],
    }
    generators = []
    if secrets:
        named = [f"{path.removeprefix('secrets/')}={path}" for path in sorted(secrets)]
        generators.append({"name": f"{names.name}-secrets", "files": named})
    if of_backups:  # apart: another token of theirs is no reason for new nodes
        named = [f"{path.removeprefix('secrets/backup.')}={path}" for path in sorted(of_backups)]
        generators.append({"name": f"{names.name}-backup-secrets", "files": named})
    return {**found, "secretGenerator": generators} if generators else found
