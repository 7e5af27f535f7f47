"""Compose files and manifests, as they are made of an inventory: by schema, and by what they promise."""

import json
import os
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.resources import files as resources_of
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from deploy.rollout.inventory import read_inventory
from deploy.rollout.rendering.ansible import ansible, data_dir, etc
from deploy.rollout.rendering.compose import ETC as COMPOSE_ETC
from deploy.rollout.rendering.compose import compose
from deploy.rollout.rendering.files import MARK, File, Files, RenderError, write_directory
from deploy.rollout.rendering.image import DATA
from deploy.rollout.rendering.kubernetes import ADMINISTRATOR_LABEL, kubernetes
from deploy.rollout.rendering.kubernetes import ETC as KUBERNETES_ETC
from deploy.rollout.rendering.parts import in_containers, parts_of
from tests.oidc_issuer import SigningKey
from tests.patience import PATIENCE_S
from tests.requirements import ANSIBLE, ANSIBLE_LINT

KUBERNETES_VERSIONS: Final = ("1.30", "1.37")
"""The oldest and the newest version whose schemas the manifests are held to."""
IMAGE: Final = "registry.example/keelmq@sha256:" + "0" * 64
PODS: Final = {"shop-2": 3, "shop-0": 9, "shop-1": 5}
SECRET: Final = "a-secret-of-the-tests-0123456789abcdef"


def inventory_text(hosts: dict[str, int], *, tls: str = "all", options: str = "", port: int = 7081) -> str:
    scheme = "https" if tls == "all" else "http"
    lines = [f'[cluster]\nid = "shop"\ntls = "{tls}"\n[containers]\nimage = "{IMAGE}"\n[options]\n{options}\n']
    for host, node_id in hosts.items():
        lines.append(f'[[node]]\nid = {node_id}\npeer = "{host}:7091"\nurl = "{scheme}://{host}:{port}"\n')
    return "".join(lines)


def material(directory: Path, node_ids: Iterator[int]) -> None:
    """Put files where the tool puts what it makes: their content does not matter here."""
    (directory / "cluster.toml.secret").write_text(SECRET)
    pki = directory / "cluster.toml.pki"
    pki.mkdir(exist_ok=True)
    (pki / "ca.crt").write_text("authority")
    for node_id in node_ids:
        (pki / f"node-{node_id}.crt").write_text(f"certificate of {node_id}")
        (pki / f"node-{node_id}.key").write_text(f"{SECRET} key of {node_id}")


def rendered(directory: Path, target: str, text: str) -> Files:
    path = directory / "cluster.toml"
    path.write_text(text)
    inventory = read_inventory(path)
    material(directory, (node.id for node in inventory.nodes))
    place = KUBERNETES_ETC if target == "kubernetes" else COMPOSE_ETC
    nodes = in_containers(parts_of(inventory, DATA, place))
    return kubernetes(inventory, nodes) if target == "kubernetes" else compose(inventory, nodes, "10001:10001")


def pods_text(**changes: Any) -> str:
    return inventory_text({f"{pod}.shop-peers.mq.svc": node_id for pod, node_id in PODS.items()}, **changes)


def documents(files: Files, name: str = "keelmq.yaml") -> dict[str, Any]:
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in yaml.safe_load_all(files[name].content)}


class TestKubernetes:
    @pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
    @pytest.mark.parametrize(
        "options", ["", 'allowed_hosts = ["shop.mq.svc"]\nwebhook_allow = ["https://hooks.example/"]']
    )
    def test_manifests_follow_the_schemas(self, tmp_path: Path, version: str, options: str) -> None:
        for document in documents(rendered(tmp_path, "kubernetes", pods_text(options=options))).values():
            kubernetes_validate.validate(document, version, strict=True)

    def test_each_pod_is_the_node_of_its_address(self, tmp_path: Path) -> None:
        files = rendered(tmp_path, "kubernetes", pods_text())
        pod = documents(files)["StatefulSet/shop"]["spec"]["template"]["spec"]
        assert pod["containers"][0]["args"] == ["--config", "/etc/keelmq/$(POD_NAME).toml"]
        assert pod["containers"][0]["env"][0]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
        everyone = set()
        for name, node_id in PODS.items():
            config = tomllib.loads(files[f"config/{name}.toml"].content.decode())
            assert config["node_id"] == node_id
            assert f"{node_id}={name}.shop-peers.mq.svc:7091=https://{name}.shop-peers.mq.svc:7081" in config["peers"]
            assert (config["peer_listen"], config["http_listen"]) == ("0.0.0.0:7091", "0.0.0.0:7081")
            everyone.add(tuple(config["peers"]))
        assert len(everyone) == 1
        assert len(everyone.pop()) == len(PODS)

    def test_all_pods_begin_at_once_and_find_each_other_before_they_are_ready(self, tmp_path: Path) -> None:
        found = documents(rendered(tmp_path, "kubernetes", pods_text()))
        stateful_set, peers = found["StatefulSet/shop"]["spec"], found["Service/shop-peers"]["spec"]
        assert stateful_set["podManagementPolicy"] == "Parallel"
        assert stateful_set["replicas"] == len(PODS)
        assert stateful_set["serviceName"] == "shop-peers"
        assert (peers["clusterIP"], peers["publishNotReadyAddresses"]) == ("None", True)
        assert found["PodDisruptionBudget/shop"]["spec"]["maxUnavailable"] == 1

    def test_readiness_is_that_of_reads_and_a_stop_hands_over_first(self, tmp_path: Path) -> None:
        pod = documents(rendered(tmp_path, "kubernetes", pods_text()))["StatefulSet/shop"]["spec"]["template"]["spec"]
        (node,) = pod["containers"]
        assert node["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http", "scheme": "HTTPS"}
        assert {node[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe")} == {"/healthz"}
        hook = node["lifecycle"]["preStop"]["exec"]["command"][-1]
        assert "hand-over" in hook
        longest_s = int(hook.rpartition(" ")[2])
        assert pod["terminationGracePeriodSeconds"] >= longest_s + 60, "no time is left for the node to stop in"

    def test_containers_may_do_nothing_that_a_node_need_not(self, tmp_path: Path) -> None:
        found = documents(rendered(tmp_path, "kubernetes", pods_text()))
        pod = found["StatefulSet/shop"]["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in (*pod["containers"], *pod["initContainers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert set(container["resources"]) == {"requests", "limits"}

    def test_secrets_are_in_files_of_secrets_alone(self, tmp_path: Path) -> None:
        files = rendered(tmp_path, "kubernetes", pods_text())
        kustomization = yaml.safe_load(files["kustomization.yaml"].content)
        named = [each.partition("=")[2] for each in kustomization["secretGenerator"][0]["files"]]
        assert sorted(named) == sorted(name for name in files if name.startswith("secrets/"))
        for name, file in files.items():
            assert (SECRET.encode() in file.content) <= name.startswith("secrets/"), name
            assert file.mode == (0o600 if name.startswith("secrets/") else 0o644)

    def test_only_pods_reach_the_peer_port(self, tmp_path: Path) -> None:
        found = documents(rendered(tmp_path, "kubernetes", pods_text()))["NetworkPolicy/shop"]["spec"]
        own = {"podSelector": {"matchLabels": found["podSelector"]["matchLabels"]}}
        reaching = [rule["from"] for rule in found["ingress"] if {"protocol": "TCP", "port": "peer"} in rule["ports"]]
        assert reaching == [[own]]
        assert all("from" in rule for rule in found["ingress"])
        assert all("to" in rule for rule in found["egress"] if rule["ports"][0]["port"] != 53)

    def test_a_listener_for_administration_is_reached_by_administrators_alone(self, tmp_path: Path) -> None:
        files = rendered(tmp_path, "kubernetes", pods_text(options='admin_listen = "0.0.0.0:7071"'))
        found = documents(files)
        for document in found.values():
            kubernetes_validate.validate(document, KUBERNETES_VERSIONS[0], strict=True)
        assert tomllib.loads(files["config/shop-0.toml"].content.decode())["admin_listen"] == "0.0.0.0:7071"
        (node,) = found["StatefulSet/shop"]["spec"]["template"]["spec"]["containers"]
        assert {"name": "admin", "containerPort": 7071} in node["ports"]
        assert {"name": "admin", "port": 7071, "targetPort": "admin"} in found["Service/shop-peers"]["spec"]["ports"]
        assert node["readinessProbe"]["httpGet"]["port"] == "http", "a probe asks for what clients get"
        port = {"protocol": "TCP", "port": "admin"}
        (rule,) = [each for each in found["NetworkPolicy/shop"]["spec"]["ingress"] if port in each["ports"]]
        assert {str(each) for each in rule["from"]} == {
            str({kind: {"matchLabels": {ADMINISTRATOR_LABEL: "true"}}}) for kind in ("podSelector", "namespaceSelector")
        }

    @pytest.mark.parametrize("options", ["", 'admin_listen = "127.0.0.1:7071"'])
    def test_no_port_is_opened_for_a_listener_that_its_own_pod_reaches(self, tmp_path: Path, options: str) -> None:
        assert b"admin" not in rendered(tmp_path, "kubernetes", pods_text(options=options))["keelmq.yaml"].content

    def test_a_service_for_clients_is_one_of_the_allowed_names(self, tmp_path: Path) -> None:
        without = documents(rendered(tmp_path, "kubernetes", pods_text()))
        assert "Service/orders" not in without
        named = 'allowed_hosts = ["orders.mq.svc", "other.elsewhere.svc", "mq.example.com"]'
        found = documents(rendered(tmp_path, "kubernetes", pods_text(options=named)))
        assert {name for name in found if name.startswith("Service/")} == {"Service/orders", "Service/shop-peers"}
        assert "publishNotReadyAddresses" not in found["Service/orders"]["spec"]

    @pytest.mark.parametrize(
        ("hosts", "said"),
        [
            ({"10.0.0.1": 1}, "have to name its pod"),
            ({"shop-0.peers.mq.svc": 1, "shop-2.peers.mq.svc": 2}, "not 0 to 1"),
            ({"shop-0.peers.mq.svc": 1, "shop-1.peers.other.svc": 2}, "the nodes differ"),
            ({f"{'s' * 60}-0.peers.mq.svc": 1}, "at most 52 characters"),
        ],
    )
    def test_other_addresses_are_refused(self, tmp_path: Path, hosts: dict[str, int], said: str) -> None:
        with pytest.raises(RenderError, match=said):
            rendered(tmp_path, "kubernetes", inventory_text(hosts))


class TestCompose:
    HOSTS: Final = {"mq1": 1, "mq2": 2, "mq3": 3}

    def document(self, files: Files) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load(files["compose.yaml"].content)
        import jsonschema  # it takes seconds, which every worker would spend

        schema = resources_of("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
        jsonschema.validate(found, json.loads(schema.read_text()))
        return found

    def test_each_service_is_one_node_with_a_volume_of_its_own(self, tmp_path: Path) -> None:
        files = rendered(tmp_path, "compose", inventory_text(self.HOSTS))
        document = self.document(files)
        volumes = [service["volumes"][0]["source"] for service in document["services"].values()]
        assert sorted(set(volumes)) == sorted(document["volumes"])
        assert len(volumes) == len(set(volumes)) == 3
        for name, service in document["services"].items():
            assert service["read_only"] is True
            assert service["security_opt"] == ["no-new-privileges:true"]
            assert service["cap_drop"] == ["ALL"]
            assert service["user"] == "10001:10001"
            assert service["stop_grace_period"] == "60s"
            assert service["logging"] == {"driver": "json-file", "options": {"max-size": "64m", "max-file": "5"}}
            assert service["healthcheck"]["test"][0] == "CMD"
            config = tomllib.loads(files[f"config/{name}.toml"].content.decode())
            assert name == f"node-{config['node_id']}"
            host = next(host for host, node_id in self.HOSTS.items() if node_id == config["node_id"])
            assert service["networks"]["keelmq"]["aliases"] == [host]
            assert "ports" not in service
            mounted = {f"/run/secrets/{each['target']}" for each in service["secrets"]}
            assert {config[option] for option in ("peer_secret_file", "tls_key", "http_tls_key", "tls_ca")} <= mounted

    def test_secrets_are_files(self, tmp_path: Path) -> None:
        files = rendered(tmp_path, "compose", inventory_text(self.HOSTS))
        for name, file in files.items():
            assert (SECRET.encode() in file.content) <= name.startswith("secrets/"), name
            assert file.mode == (0o600 if name.startswith("secrets/") else 0o644)
        paths = {each["file"] for each in self.document(files)["secrets"].values()}
        assert paths == {f"./{name}" for name in files if name.startswith("secrets/")}

    def test_urls_of_this_machine_are_published_to_it_alone(self, tmp_path: Path) -> None:
        text = inventory_text(self.HOSTS).replace("https://mq2:7081", "https://localhost:7082")
        services = self.document(rendered(tmp_path, "compose", text))["services"]
        published = {"target": 7082, "published": "7082", "host_ip": "127.0.0.1", "protocol": "tcp"}
        assert [service.get("ports") for service in services.values()] == [None, [published], None]

    @pytest.mark.parametrize(("listen", "is_published"), [("0.0.0.0:7071", True), ("127.0.0.1:7071", False)])
    def test_administration_is_published_to_this_machine_too(
        self, tmp_path: Path, listen: str, is_published: bool
    ) -> None:
        text = inventory_text(self.HOSTS, options=f'admin_listen = "{listen}"')
        services = self.document(rendered(tmp_path, "compose", text.replace("https://mq2:", "https://localhost:")))
        (ports,) = [each["ports"] for each in services["services"].values() if "ports" in each]
        assert ("7071" in [each["published"] for each in ports]) == is_published
        assert {each["host_ip"] for each in ports} == {"127.0.0.1"}

    @pytest.mark.parametrize("host", ["10.0.0.1", "localhost", "mq_1"])
    def test_addresses_that_are_no_names_are_refused(self, tmp_path: Path, host: str) -> None:
        with pytest.raises(RenderError, match="is no name on a network of containers"):
            rendered(tmp_path, "compose", inventory_text({host: 1}))


def test_files_that_options_name_are_read_here_and_delivered(tmp_path: Path) -> None:
    options = 'auth = "enforce"\nadmin_token_file = "token"'
    with pytest.raises(RenderError, match=r"node 3: admin_token_file: .*/token of this machine: No such file"):
        rendered(tmp_path, "kubernetes", pods_text(options=options))
    (tmp_path / "token").write_text(SECRET)
    files = rendered(tmp_path, "kubernetes", pods_text(options=options))
    config = tomllib.loads(files["config/shop-0.toml"].content.decode())
    assert config["admin_token_file"] == "/run/keelmq/admin_token_file"
    assert files["secrets/all.admin_token_file"].content == SECRET.encode()


def test_keys_of_an_issuer_are_fetched_or_delivered(tmp_path: Path) -> None:
    people = 'auth = "enforce"\noidc_issuer = "https://login.example"\noidc_audiences = ["keelmq"]\noidc_keys = '
    files = rendered(tmp_path, "kubernetes", pods_text(options=people + '"https://login.example:8443/keys"'))
    config = tomllib.loads(files["config/shop-0.toml"].content.decode())
    assert config["oidc_keys"] == "https://login.example:8443/keys"
    assert {"ports": [{"protocol": "TCP", "port": 8443}]} in documents(files)["NetworkPolicy/shop"]["spec"]["egress"]
    content = json.dumps({"keys": [SigningKey("first").public()]})
    (tmp_path / "keys.json").write_text(content)
    files = rendered(tmp_path, "kubernetes", pods_text(options=people + '"keys.json"'))
    config = tomllib.loads(files["config/shop-0.toml"].content.decode())
    assert config["oidc_keys"] == "/run/keelmq/oidc_keys"
    assert files["secrets/all.oidc_keys"].content == content.encode()


def test_a_node_that_joins_names_no_peers(tmp_path: Path) -> None:
    text = pods_text() + '[node.options]\njoin = "https://shop-0.shop-peers.mq.svc:7081"\n'
    files = rendered(tmp_path, "kubernetes", text)
    joining = tomllib.loads(files["config/shop-1.toml"].content.decode())
    assert "peers" not in joining
    assert joining["http_url"] == "https://shop-1.shop-peers.mq.svc:7081"
    assert "peers" in tomllib.loads(files["config/shop-0.toml"].content.decode())


@pytest.mark.parametrize("change", [{"port": 443}, {"options": 'http_listen = "0.0.0.0:9000"'}])
def test_a_node_listens_where_the_others_look(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(RenderError, match="listens on the port of its address"):
        rendered(tmp_path, "kubernetes", pods_text(**change))


class TestAnsible:
    def files(self, directory: Path, text: str) -> Files:
        path = directory / "cluster.toml"
        path.write_text(text)
        inventory = read_inventory(path)
        material(directory, (node.id for node in inventory.nodes))
        return ansible(inventory, parts_of(inventory, data_dir(inventory), etc(inventory)))

    def text(self) -> str:
        return inventory_text({"10.0.0.1": 1, "10.0.0.2": 2}).replace("\npeer =", '\nssh = "deploy@HOST"\npeer =')

    def test_hosts_are_those_of_the_inventory(self, tmp_path: Path) -> None:
        text = self.text().replace("HOST", "10.0.0.1", 1).replace("HOST", "10.0.0.2", 1)
        files = self.files(tmp_path, text)
        hosts = yaml.safe_load(files["hosts.yml"].content)["keelmq"]["hosts"]
        for name, node_id in {"node-1": 1, "node-2": 2}.items():
            host, config = hosts[name], tomllib.loads(files[f"config/{name}.toml"].content.decode())
            assert (host["ansible_user"], host["ansible_host"]) == ("deploy", f"10.0.0.{node_id}")
            assert host["keelmq_node"] == config["node_id"] == node_id
            assert config["data_dir"] == "/var/lib/keelmq/shop"
            brought = {f"/etc/keelmq/shop.d/{file}" for file in host["keelmq_files"]}
            assert {config[option] for option in ("peer_secret_file", "tls_key", "http_tls_key", "tls_ca")} <= brought
            assert {f"secrets/{name}/{file}" for file in host["keelmq_files"]} <= set(files)
        for name, file in files.items():
            assert (SECRET.encode() in file.content) <= name.startswith("secrets/"), name

    @pytest.mark.parametrize("python", ["", "/opt/python/bin/python3.11"])
    def test_a_python_that_is_named_installs_the_release(self, tmp_path: Path, python: str) -> None:
        text = self.text().replace("HOST", "10.0.0.1", 1).replace("HOST", "10.0.0.2", 1)
        if python:
            text = text.replace("[cluster]\n", f'[cluster]\npython = "{python}"\n', 1)
        files = self.files(tmp_path, text)
        variables = yaml.safe_load(files["hosts.yml"].content)["keelmq"]["vars"]
        assert variables["ansible_python_interpreter"] == (python or "python3")
        assert variables["keelmq_environment"] == ({"PYTHON": python} if python else {})
        tasks = yaml.safe_load(files["site.yml"].content)[0]["tasks"]
        (install,) = (each for each in tasks if "./install.sh" in str(each))
        assert install["environment"] == "{{ keelmq_environment }}"

    def test_a_bundle_that_was_unpacked_in_part_is_unpacked_anew(self, tmp_path: Path) -> None:
        """The mark is none of its files, and is made by the next task."""
        files = self.files(tmp_path, self.text().replace("HOST", "10.0.0.1", 1).replace("HOST", "10.0.0.2", 1))
        tasks = yaml.safe_load(files["site.yml"].content)[0]["tasks"]
        (at,) = (number for number, each in enumerate(tasks) if "ansible.builtin.unarchive" in each)
        mark = tasks[at]["ansible.builtin.unarchive"]["creates"]
        made = tasks[at + 1].get("ansible.builtin.copy", {})
        assert (made.get("dest"), made.get("content")) == (mark, "")

    def test_a_node_is_restarted_only_after_the_tool_has_agreed(self, tmp_path: Path) -> None:
        files = self.files(tmp_path, self.text().replace("HOST", "10.0.0.1", 1).replace("HOST", "10.0.0.2", 1))
        plays = yaml.safe_load(files["site.yml"].content)
        assert [play.get("serial") for play in plays] == [None, None, 1, 1]
        assert all(play["any_errors_fatal"] for play in plays)
        steps = yaml.safe_load(files["tasks/roll.yml"].content)
        verbs = [each["ansible.builtin.command"]["argv"][1] for each in steps if each.get("delegate_to") == "localhost"]
        assert verbs == ["spare", "wait"]
        (restart,) = (number for number, each in enumerate(steps) if "ansible.builtin.include_tasks" in each)
        assert steps[restart - 1]["ansible.builtin.command"]["argv"][1] == "spare"

    def test_a_restart_is_waited_for_and_a_first_start_is_not(self, tmp_path: Path) -> None:
        """Nodes that begin a cluster are up when the others are. The note of what runs comes after a restart."""
        files = self.files(tmp_path, self.text().replace("HOST", "10.0.0.1", 1).replace("HOST", "10.0.0.2", 1))
        (restart,) = (each for each in yaml.safe_load(files["tasks/apply.yml"].content) if "restart" in str(each))
        assert restart["ansible.builtin.systemd"]["no_block"] == "{{ keelmq_begins | default(false) }}"
        starts = yaml.safe_load(files["site.yml"].content)[1]["tasks"]
        rolls = yaml.safe_load(files["tasks/roll.yml"].content)
        begins = [
            [each.get("vars") for each in steps if "ansible.builtin.include_tasks" in each] for steps in (starts, rolls)
        ]
        assert begins == [[{"keelmq_begins": True}], [None]]

    def test_nodes_of_one_host_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(RenderError, match="two nodes are on one host"):
            self.files(tmp_path, self.text().replace("HOST", "10.0.0.1").replace("id = 2", 'id = 2\nroot = "/srv/b"'))

    def examined(self, directory: Path, *command: str) -> str:
        """Return what a tool of Ansible says of the playbook, which it takes."""
        text = self.text().replace("HOST", "10.0.0.1", 1).replace("HOST", "10.0.0.2", 1)
        write_directory(directory / "out", self.files(directory, text), None)
        variables = {**os.environ, "ANSIBLE_LOCAL_TEMP": str(directory / "ansible"), "HOME": str(directory)}
        done = subprocess.run(
            command, cwd=directory / "out", env=variables, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def test_ansible_takes_the_playbook(self, tmp_path: Path) -> None:
        ANSIBLE.require()
        said = self.examined(tmp_path, "ansible-playbook", "-i", "hosts.yml", "site.yml", "--syntax-check")
        assert "playbook: site.yml" in said

    def test_ansible_lint_takes_it_for_production(self, tmp_path: Path) -> None:
        """Two rules are left out, by which earlier releases refuse `systemctl is-active` and an `rm` within a chain of
        commands, for which there are no modules.
        """
        ANSIBLE_LINT.require()
        without = "command-instead-of-module,deprecated-command-syntax"
        lint = ("ansible-lint", "--offline", "--nocolor", "--profile", "production", "-x", without)
        assert "0 failure(s), 0 warning(s)" in self.examined(tmp_path, *lint, "site.yml")


class TestDirectory:
    def test_is_replaced_as_a_whole(self, tmp_path: Path) -> None:
        directory = tmp_path / "out"
        write_directory(directory, {"old": File(b"1"), "secrets/a": File(b"2", 0o600)}, None)
        write_directory(directory, {"secrets/b": File(b"3", 0o600)}, None)
        assert {str(path.relative_to(directory)) for path in directory.rglob("*")} == {MARK, "secrets", "secrets/b"}
        assert (directory / "secrets" / "b").stat().st_mode & 0o777 == 0o600
        assert [path.name for path in tmp_path.iterdir()] == ["out"]

    def test_of_somebody_else_stays(self, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "thesis.txt").write_text("mine")
        with pytest.raises(RenderError, match="was not rendered by keelmq-deploy"):
            write_directory(tmp_path / "out", {"new": File(b"1")}, None)
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]
