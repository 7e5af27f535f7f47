"""Backups on schedule: units of systemd, a play that installs them, and a CronJob, all held to the command itself."""

import os
import re
import shlex
import subprocess
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml
from typer.exceptions import TyperException
from typer.main import get_command

from deploy.bundle import UNITS
from deploy.rollout.inventory import InventoryError, read_inventory
from deploy.rollout.rendering.ansible import ansible, data_dir, etc
from deploy.rollout.rendering.backups import Source, environment
from deploy.rollout.rendering.files import Files, RenderError
from deploy.rollout.rendering.parts import parts_of
from keelmq.cli.app import app
from keelmq.cli.lazy import LazyCommand
from tests.requirements import REPOSITORY
from tests.unit.deploy.stand_ins import Run
from tests.unit.deploy.test_rendering import (
    KUBERNETES_VERSIONS,
    documents,
    inventory_text,
    material,
    pods_text,
    rendered,
)

BACKUP: Final = '[backup]\ntarget = "/srv/backups/shop"\nkeep_days = 9\ntoken_file = "token"\n'
STORE: Final = '[backup]\ntarget = "s3://backups/shop/"\nendpoint_url = "https://minio.example:9000"\n'
TOKEN: Final = "a-token-of-the-tests"
PODS: Final = ",".join(f"https://shop-{ordinal}.shop-peers.mq.svc:7081" for ordinal in (2, 1, 0))


def command_of(names: list[str]) -> list[Any]:
    """Return the command of these names, after the groups that it is in."""
    found: list[Any] = [get_command(app)]
    for name in names:
        child = found[-1].commands[name]
        found.append(child.load() if isinstance(child, LazyCommand) else child)
    return found


def parsed(command: list[str]) -> dict[str, Any]:
    """Return the values of a line of `keelmq backup create`. Raises an error for an option that does not exist."""
    root, _, create = command_of(["backup", "create"])
    at = command.index("backup")
    assert command[at : at + 2] == ["backup", "create"]
    context = root.make_context("keelmq", command[: at + 1])
    return {**context.params, **create.make_context("create", command[at + 2 :], parent=context).params}


def test_a_command_with_an_option_that_does_not_exist_is_found() -> None:
    with pytest.raises(TyperException, match="No such option: --frog"):
        parsed(["backup", "create", "/srv/", "--frog", "x"])


def unit(name: str) -> ConfigParser:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(REPOSITORY / "deploy" / "systemd" / name)
    return parser


def job_of(files: Files) -> dict[str, Any]:
    found: dict[str, Any] = documents(files)["CronJob/shop-backup"]
    return found


def pod_of(files: Files) -> dict[str, Any]:
    found: dict[str, Any] = job_of(files)["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return found


@pytest.fixture(autouse=True)
def token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)


def test_every_unit_is_shipped() -> None:
    assert sorted(UNITS) == sorted(path.name for path in (REPOSITORY / "deploy" / "systemd").iterdir())


def test_the_service_runs_a_command_that_exists_and_the_timer_runs_the_service() -> None:
    service = unit("keelmq-backup@.service")["Service"]
    program, *command = shlex.split(service["ExecStart"])
    assert program == "/opt/keelmq/current/bin/keelmq"
    assert parsed(command)["target"] == "${BACKUP_TARGET}"
    removing = shlex.split(service["ExecStartPost"])
    assert removing[1] == "${BACKUP_TARGET}"
    assert removing[-2:] == ["+${BACKUP_KEEP_DAYS}", "-delete"]
    given = dict(each.split("=", 1) for each in shlex.split(service["Environment"]))
    expected = {"BACKUP_CLUSTER": "%i", "BACKUP_TARGET": "/var/lib/keelmq-backups/%i/", "BACKUP_KEEP_DAYS": "30"}
    assert given == expected
    assert service["StateDirectory"] == "keelmq-backups/%i"
    assert unit("keelmq-backup@.timer")["Timer"]["OnCalendar"] == "hourly"


@pytest.mark.parametrize("platform", ["systemd", "kubernetes"])
def test_old_backups_of_this_cluster_are_removed_and_no_other_files(tmp_path: Path, platform: str) -> None:
    old, kept = "shop-48211-20260504T091244305Z.backup", tmp_path / "kept"
    others = ("shop-2-113-20260504T091244305Z.backup", "other-1-20260504T091244305Z.backup", "mysql-full.backup")
    new = "shop-99999-20260504T091244305Z.backup"
    (kept / "below").mkdir(parents=True)
    for name in (old, new, *others, f"below/{old}"):
        (kept / name).touch()
        if name != new:
            os.utime(kept / name, (0, 0))
    if platform == "systemd":
        text = unit("keelmq-backup@.service")["Service"]["ExecStartPost"]
        for name, value in (("CLUSTER", "shop"), ("TARGET", f"{kept}/"), ("KEEP_DAYS", "30")):
            text = text.replace(f"${{BACKUP_{name}}}", value)
        command = text.split()  # as systemd does, which expands no patterns
    else:
        job = documents(rendered(tmp_path, "kubernetes", pods_text() + BACKUP))["CronJob/shop-backup"]
        pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        program, _, *options = pod["containers"][0]["command"]
        command = [program, f"{kept}/", *options]
    subprocess.run(command, check=True)
    found = {str(path.relative_to(kept)) for path in kept.rglob("*.backup")}
    assert found == {new, *others, f"below/{old}"}


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize(
    "backup", [BACKUP, f'{STORE}image = "registry.example/keelmq-s3"\nstore_secret = "shop-store"\n', ""]
)
def test_manifests_follow_the_schemas(tmp_path: Path, version: str, backup: str) -> None:
    found = documents(rendered(tmp_path, "kubernetes", pods_text() + backup))
    assert ("CronJob/shop-backup" in found) == bool(backup), "none by default"
    for document in found.values():
        kubernetes_validate.validate(document, version, strict=True)


def test_a_cron_job_writes_to_its_volume_and_then_removes_what_is_old(tmp_path: Path) -> None:
    files = rendered(tmp_path, "kubernetes", pods_text(options='auth = "enforce"') + BACKUP)
    pod, job = pod_of(files), job_of(files)["spec"]
    assert (job["schedule"], job["concurrencyPolicy"]) == ("7 * * * *", "Forbid")
    (create,), (remove,) = pod["initContainers"], pod["containers"]
    assert create["command"][0] == "/opt/keelmq/bin/keelmq"
    given = parsed(create["command"][1:])
    assert given["target"] == "/srv/backups/shop/"
    assert given["servers"] == PODS
    assert (given["token_file"], given["ca_file"]) == ("/run/keelmq/backup_token", "/run/keelmq/ca.crt")
    assert remove["command"][:2] == ["find", "/srv/backups/shop/"]
    assert remove["command"][-3:] == ["-mtime", "+9", "-delete"]
    mounted = {each["name"]: each["mountPath"] for each in create["volumeMounts"]}
    assert mounted == {"secrets": "/run/keelmq", "backups": "/srv/backups/shop"}
    assert "PersistentVolumeClaim/shop-backups" in documents(files)
    generators = yaml.safe_load(files["kustomization.yaml"].content)["secretGenerator"]
    named = {each["name"]: each["files"] for each in generators}
    assert named["shop-backup-secrets"] == ["backup_token=secrets/backup.backup_token", "ca.crt=secrets/backup.ca.crt"]
    assert not any("backup" in each for each in named["shop-secrets"]), "another token is no reason for new nodes"
    for name, file in files.items():
        assert (TOKEN.encode() in file.content) == (name == "secrets/backup.backup_token"), name


@pytest.mark.parametrize(
    ("options", "label"), [("", "keelmq-client"), ('admin_listen = "0.0.0.0:7071"', "keelmq-administrator")]
)
def test_the_network_policy_lets_backups_through(tmp_path: Path, options: str, label: str) -> None:
    files = rendered(tmp_path, "kubernetes", pods_text(options=options) + BACKUP)
    template = job_of(files)["spec"]["jobTemplate"]["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert labels[label] == "true"
    policy = documents(files)["NetworkPolicy/shop"]["spec"]
    assert {"podSelector": {"matchLabels": {label: "true"}}} in policy["ingress"][-1]["from"]
    assert not labels.items() >= policy["podSelector"]["matchLabels"].items(), "it is none of the nodes"
    servers = parsed(template["spec"]["initContainers"][0]["command"][1:])["servers"]
    assert (":7071" in servers) == bool(options)


def test_a_cron_job_writes_to_a_store_with_an_image_that_can(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match=r"the image of the nodes has no boto3.*give image in \[backup\]"):
        rendered(tmp_path, "kubernetes", pods_text() + STORE)
    text = f'{STORE}image = "registry.example/keelmq-s3"\nstore_secret = "shop-store"\nevery = "daily"\n'
    files = rendered(tmp_path, "kubernetes", pods_text() + text)
    pod = pod_of(files)
    (create,) = pod["containers"]
    given = parsed(create["command"][1:])
    assert (given["target"], given["endpoint_url"]) == ("s3://backups/shop/", "https://minio.example:9000")
    assert create["image"] == "registry.example/keelmq-s3"
    assert create["envFrom"] == [{"secretRef": {"name": "shop-store"}}]
    assert job_of(files)["spec"]["schedule"] == "7 3 * * *"
    assert "PersistentVolumeClaim/shop-backups" not in documents(files)


@pytest.mark.parametrize(
    ("options", "backup", "reason"),
    [
        (
            'auth = "enforce"',
            BACKUP.replace('token_file = "token"\n', ""),
            "needs token_file, the token of a user with",
        ),
        ("", BACKUP.replace('"token"', '"nowhere"'), "token_file .*/nowhere of this machine: No such file"),
        ('admin_listen = "127.0.0.1:7071"', BACKUP, "administered at a loopback address alone"),
        ('http_tls_client_ca = "token"', BACKUP, "wants certificates of its clients"),
    ],
)
def test_what_a_backup_lacks_is_named(tmp_path: Path, options: str, backup: str, reason: str) -> None:
    with pytest.raises(RenderError, match=reason):
        rendered(tmp_path, "kubernetes", pods_text(options=options) + backup)


@pytest.mark.parametrize(
    ("backup", "reason"),
    [
        ("[backup]\nkeep_days = 9\n", "backup.target is missing"),
        ('[backup]\ntarget = "backups"\n', "is no absolute path of plain names"),
        ('[backup]\ntarget = "/srv/../etc"\n', "is no absolute path of plain names"),
        ('[backup]\ntarget = "s3://backups/shop"\n', "is no absolute path of plain names and no s3://BUCKET/PREFIX/"),
        ('[backup]\ntarget = "/srv/backups"\nnode = 7\n', "backup.node 7 is no node"),
        ('[backup]\ntarget = "/srv/backups"\nevery = "weekly"\n', "every"),
    ],
)
def test_a_wrong_table_is_wrong_usage(tmp_path: Path, backup: str, reason: str) -> None:
    (tmp_path / "cluster.toml").write_text(pods_text() + backup)
    with pytest.raises(InventoryError, match=reason):
        read_inventory(tmp_path / "cluster.toml")


class TestAnsible:
    def files(self, directory: Path, backup: str) -> Files:
        text = inventory_text({"10.0.0.1": 1, "10.0.0.2": 2}, options='auth = "enforce"') + backup
        for number in (1, 2):
            text = text.replace(f"id = {number}\n", f'id = {number}\nssh = "deploy@10.0.0.{number}"\n', 1)
        (directory / "cluster.toml").write_text(text)
        inventory = read_inventory(directory / "cluster.toml")
        material(directory, (node.id for node in inventory.nodes))
        return ansible(inventory, parts_of(inventory, data_dir(inventory), etc(inventory)))

    def test_one_host_gets_the_timer_after_the_nodes(self, tmp_path: Path) -> None:
        assert len(yaml.safe_load(self.files(tmp_path, "")["site.yml"].content)) == 4, "none by default"
        files = self.files(tmp_path, f'{BACKUP}node = 2\nevery = "daily"\n')
        *_, play = yaml.safe_load(files["site.yml"].content)
        assert play["hosts"] == "node-2"
        copies = [each["ansible.builtin.copy"] for each in play["tasks"] if "ansible.builtin.copy" in each]
        brought = {Path(each["src"]).name for each in copies if each.get("remote_src")}
        assert brought == set(UNITS) - {"keelmqd@.service"}
        assert all(each["src"] in files for each in copies if not each.get("remote_src"))
        given = dict(
            shlex.split(line)[0].split("=", 1) for line in files["config/backup"].content.decode().splitlines()
        )
        used = {name for name in given if not name.startswith("BACKUP_")}
        read = {each.envvar for command in command_of(["backup", "create"]) for each in command.params}
        assert used <= read, "variables that the command reads"
        assert given["KEELMQ_TOKEN_FILE"] in {each["dest"].replace("{{ keelmq_cluster }}", "shop") for each in copies}
        assert given["KEELMQ_CA_FILE"] == tomllib.loads(files["config/node-2.toml"].content.decode())["http_ca"]
        assert given["KEELMQ_SERVERS"] == "https://10.0.0.1:7081,https://10.0.0.2:7081"
        assert given["BACKUP_TARGET"] == "/srv/backups/shop/"
        assert files["config/backup.timer"].content == b"[Timer]\nOnCalendar=\nOnCalendar=daily\n"
        for name, file in files.items():
            assert (TOKEN.encode() in file.content) == (name == "secrets/backup_token"), name

    def test_a_store_is_refused_with_the_way_to_it(self, tmp_path: Path) -> None:
        with pytest.raises(RenderError, match=r"a bundle has no boto3.*keelmq\[s3\]"):
            self.files(tmp_path, f'{STORE}token_file = "token"\n')


def test_a_dot_of_the_id_stands_for_itself(tmp_path: Path) -> None:
    """Otherwise the backups of `eu-shop` in the same directory would be removed for old ones of `eu.shop`."""
    text = (pods_text() + BACKUP).replace('id = "shop"', 'id = "eu.shop"', 1)
    jobs = [each for each in documents(rendered(tmp_path, "kubernetes", text)).values() if each["kind"] == "CronJob"]
    command = jobs[0]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["command"]
    expected = re.compile(command[command.index("-regex") + 1])
    assert expected.fullmatch("kept/eu.shop-1-20260504T091244305Z.backup")
    assert not expected.fullmatch("kept/eu-shop-1-20260504T091244305Z.backup")
    source = Source("http://10.0.0.1:7081", {})
    given = environment(read_inventory(tmp_path / "cluster.toml"), source, "/etc/keelmq/eu.shop.d").decode()
    assert "BACKUP_CLUSTER='eu[.]shop'\n" in given


def test_compose_says_that_it_has_no_schedule(run: Run, tmp_path: Path) -> None:
    text = inventory_text({"mq1": 1, "mq2": 2}, tls="", options="insecure_http = true\ninsecure_peers = true")
    (tmp_path / "cluster.toml").write_text(text + BACKUP)
    code, said = run("render", "compose", "-o", str(tmp_path / "out"))
    assert code == 0, said
    assert "no backups on schedule: Compose has none" in said


def test_nothing_is_made_where_a_backup_lacks_something(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(pods_text() + STORE)
    code, said = run("render", "kubernetes", "-o", str(tmp_path / "out"))
    assert code == 2
    assert "keelmq-deploy: [backup]: the image of the nodes has no boto3" in said
    assert {path.name for path in tmp_path.iterdir()} == {"cluster.toml", "token"}
