"""A playbook for Ansible: installs a bundle as services of systemd, and restarts them by the rules of the tool.

What may be stopped when is asked of the tool itself (`keelmq-deploy wait`, `spare`, `leads`), on the machine that runs
Ansible, so there is one set of rules. A host is done when it runs what is wanted, so a playbook that was stopped
anywhere is run again.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from deploy.lock_files import ROOT
from deploy.rollout.inventory import PYTHON, Inventory
from deploy.rollout.rendering.backups import TOKEN, check_backups, environment, source_of, timer_schedule
from deploy.rollout.rendering.files import SECRET_MODE, File, Files, RenderError, yaml_file
from deploy.rollout.rendering.parts import Parts

_COMMENT: Final = """\
KeelMQ cluster {id}: written by `keelmq-deploy render ansible`, which replaces this directory. docs/ansible.md"""
_RUN: Final = "ansible-playbook -i hosts.yml site.yml -e keelmq_bundle=/path/to/keelmq-….tar.gz"
_SSH: Final = re.compile(r"(?:(?P<user>[^@]+)@)?(?P<host>[^@]+)")
_RELEASE: Final = "/opt/keelmq/{{ keelmq_release }}"
_UNPACKED: Final = "/opt/keelmq/bundles/{{ keelmq_release }}/.unpacked"
_CONFIG: Final = "lookup('file', 'config/' ~ inventory_hostname ~ '.toml')"
_NOTES: Final = tuple(f"/etc/keelmq/{{{{ keelmq_cluster }}}}.{each}" for each in ("wanted", "running"))
"""Files of a host that say which release and configuration it shall run, and which it runs."""
_ON_THIS_MACHINE: Final = {"delegate_to": "localhost", "become": False}
_TOOL: Final = ["{{ keelmq_deploy }}", "-i", "{{ keelmq_inventory }}", "--timeout-s", "{{ keelmq_timeout_s }}"]


def data_dir(inventory: Inventory) -> str:
    return f"/var/lib/keelmq/{inventory.cluster.id}"


def etc(inventory: Inventory) -> str:
    return f"/etc/keelmq/{inventory.cluster.id}.d"


def ansible(inventory: Inventory, nodes: Sequence[Parts]) -> Files:
    """Return the files. Raises RenderError for nodes that share a host."""
    files: dict[str, File] = {}
    hosts: dict[str, Any] = {}
    comment = _COMMENT.format(id=inventory.cluster.id)
    for parts in nodes:
        name = f"node-{parts.node.id}"
        files[f"config/{name}.toml"] = parts.config
        for file, content in parts.files.items():
            files[f"secrets/{name}/{file}"] = File(content, SECRET_MODE)
        hosts[name] = {**_reached(inventory, parts), "keelmq_node": parts.node.id, "keelmq_files": list(parts.files)}
    if len({parts.node.ssh for parts in nodes}) != len(nodes):
        raise RenderError("two nodes are on one host: the services of a host are named after their cluster")
    variables = {
        "keelmq_cluster": inventory.cluster.id,
        "keelmq_deploy": str(ROOT / "deploy" / "keelmq-deploy"),
        "keelmq_inventory": str(inventory.path),
        "keelmq_timeout_s": 120,
        "ansible_python_interpreter": inventory.cluster.python,
        # A Python that is named may be where no PATH leads.
        "keelmq_environment": {} if inventory.cluster.python == PYTHON else {"PYTHON": inventory.cluster.python},
    }
    files["hosts.yml"] = yaml_file(comment, {"keelmq": {"hosts": hosts, "vars": variables}})
    plays = _plays()
    if inventory.file.backup.target:
        check_backups(inventory, "ansible")
        source = source_of(inventory, nodes)
        files["config/backup"] = File(environment(inventory, source, etc(inventory)))
        files["config/backup.timer"] = File(timer_schedule(inventory.file.backup))
        if TOKEN in source.files:
            files[f"secrets/{TOKEN}"] = File(source.files[TOKEN], SECRET_MODE)
        host = inventory.file.backup.node or nodes[0].node.id
        plays.append(_backups(f"node-{host}", inventory.file.backup.target, has_token=TOKEN in source.files))
    files["site.yml"] = yaml_file(f"{comment}\n{_RUN}", plays)
    files["tasks/apply.yml"] = yaml_file(comment, _apply())
    files["tasks/roll.yml"] = yaml_file(comment, _roll())
    files[".gitignore"] = File(b"/secrets/\n")
    return files


def _reached(inventory: Inventory, parts: Parts) -> dict[str, Any]:
    if not parts.node.ssh:
        return {"ansible_connection": "local"}
    match = _SSH.fullmatch(parts.node.ssh)
    if match is None:
        raise RenderError(f"node {parts.node.id}: ssh {parts.node.ssh!r} is no USER@HOST")
    found = {"ansible_host": match["host"]}
    found |= {"ansible_user": match["user"]} if match["user"] else {}
    if inventory.cluster.ssh_options:
        found["ansible_ssh_common_args"] = " ".join(inventory.cluster.ssh_options)
    return found


def _plays() -> list[dict[str, Any]]:
    common = {"hosts": "keelmq", "become": True, "gather_facts": False, "any_errors_fatal": True}
    return [
        {"name": "Bring the release and the configuration", **common, "tasks": [*_install(), *_configure()]},
        {"name": "Start the nodes that do not run", **common, "tasks": _start()},
        {
            "name": "Restart the followers, one at a time",
            **common,
            "serial": 1,
            "tasks": [
                _tool(
                    "Ask whether this node leads",
                    ["leads", "{{ keelmq_node }}"],
                    register="keelmq_leads",
                    codes="[0, 1]",
                ),
                _include("Restart it", "tasks/roll.yml", when="keelmq_leads.rc == 1"),
            ],
        },
        {
            "name": "Restart the node that leads",
            **common,
            "serial": 1,
            "tasks": [_include("Restart it", "tasks/roll.yml")],
        },
    ]


def _backups(host: str, target: str, *, has_token: bool) -> dict[str, Any]:
    """Return the play that has one host take the backups. The nodes serve when it comes."""
    bundle, cluster = "/opt/keelmq/bundles/{{ keelmq_release }}", "{{ keelmq_cluster }}"
    units, timer = "/etc/systemd/system", f"keelmq-backup@{cluster}.timer"
    token = {"src": f"secrets/{TOKEN}", "dest": f"/etc/keelmq/{cluster}.d/{TOKEN}"}
    owner = {"owner": "keelmq", "group": "keelmq", "mode": "0600"}
    bring = [
        ("config/backup", f"/etc/keelmq/{cluster}.backup", "keelmq_backup"),
        ("config/backup.timer", f"{units}/{timer}.d/every.conf", "keelmq_schedule"),
    ]
    state = "{{ 'restarted' if keelmq_schedule.changed else 'started' }}"
    tasks = [
        {
            "name": "Look for the directory of the backups",
            "ansible.builtin.stat": {"path": target},
            "register": "keelmq_backups",
        },
        # One that is there, such as a share, keeps its owner.
        {**_directory("the backups", target, "0700", "keelmq"), "when": "not keelmq_backups.stat.exists"},
        _directory("the schedule", f"{units}/{timer}.d", "0755", "root"),
        *(
            {
                "name": f"Bring {src}",
                "ansible.builtin.copy": {"src": src, "dest": dest, "mode": "0644"},
                "register": name,
            }
            for src, dest, name in bring
        ),
        *(
            [{"name": "Bring the token", "ansible.builtin.copy": {**token, **owner}, "no_log": True}]
            if has_token
            else []
        ),
        *(
            {
                "name": f"Bring keelmq-backup@.{end}",
                "ansible.builtin.copy": {
                    "src": f"{bundle}/keelmq-backup@.{end}",
                    "dest": f"{units}/keelmq-backup@.{end}",
                    "remote_src": True,
                    "mode": "0644",
                },
            }
            for end in ("service", "timer")
        ),
        {
            "name": "Start the timer",
            "ansible.builtin.systemd": {"name": timer, "state": state, "enabled": True, "daemon_reload": True},
        },
    ]
    return {
        "name": "Back the cluster up on schedule",
        "hosts": host,
        "become": True,
        "gather_facts": False,
        "tasks": tasks,
    }


def _install() -> list[dict[str, Any]]:
    return [
        {
            "name": "Look at the bundle",
            "ansible.builtin.stat": {"path": "{{ keelmq_bundle }}", "checksum_algorithm": "sha256"},
            **_ON_THIS_MACHINE,
            "register": "keelmq_bundle_stat",
        },
        {
            "name": "Name the release by its content",
            "ansible.builtin.set_fact": {"keelmq_release": "{{ keelmq_bundle_stat.stat.checksum[:12] }}"},
        },
        {
            "name": "Make the user",
            "ansible.builtin.user": {
                "name": "keelmq",
                "system": True,
                "home": "/var/lib/keelmq",
                "create_home": False,
                "shell": "/usr/sbin/nologin",
            },
        },
        _directory("the bundles", "/opt/keelmq/bundles", "0755", "root"),
        _directory("the configuration", "/etc/keelmq", "0755", "root"),
        _directory("the files of the node", "/etc/keelmq/{{ keelmq_cluster }}.d", "0700", "keelmq"),
        {
            "name": "Bring the bundle",
            "ansible.builtin.copy": {
                "src": "{{ keelmq_bundle }}",
                "dest": "/opt/keelmq/bundles/{{ keelmq_release }}.tar.gz",
                "mode": "0644",
            },
        },
        _directory("this bundle", "/opt/keelmq/bundles/{{ keelmq_release }}", "0755", "root"),
        {
            "name": "Unpack it",
            "ansible.builtin.unarchive": {
                "src": "/opt/keelmq/bundles/{{ keelmq_release }}.tar.gz",
                "dest": "/opt/keelmq/bundles/{{ keelmq_release }}",
                "remote_src": True,
                "extra_opts": ["--strip-components=1"],
                "creates": _UNPACKED,
            },
        },
        {
            # No file of the bundle says so: a playbook that is killed leaves some of them.
            "name": "Note that all of it is unpacked",
            "ansible.builtin.copy": {"content": "", "dest": _UNPACKED, "mode": "0644"},
        },
        {
            "name": "Install it beside the present release, whole or anew",
            "ansible.builtin.shell": {
                "cmd": f"rm -rf {_RELEASE} && ./install.sh {_RELEASE} && touch {_RELEASE}/.complete",
                "chdir": "/opt/keelmq/bundles/{{ keelmq_release }}",
                "creates": f"{_RELEASE}/.complete",
            },
            "environment": "{{ keelmq_environment }}",
        },
    ]


def _configure() -> list[dict[str, Any]]:
    config = "/etc/keelmq/{{ keelmq_cluster }}.toml"
    return [
        {
            "name": "Bring certificates and secrets",
            "ansible.builtin.copy": {
                "src": "secrets/{{ inventory_hostname }}/{{ item }}",
                "dest": "/etc/keelmq/{{ keelmq_cluster }}.d/{{ item }}",
                "owner": "keelmq",
                "group": "keelmq",
                "mode": "0600",
            },
            "loop": "{{ keelmq_files }}",
            "no_log": True,
        },
        {
            "name": "Bring the wanted configuration",
            "ansible.builtin.copy": {
                "src": "config/{{ inventory_hostname }}.toml",
                "dest": f"{config}.wanted",
                "mode": "0644",
            },
        },
        {
            "name": "Have keelmqd check it as the user of the service",
            "ansible.builtin.command": {
                "argv": [
                    *("runuser", "-u", "keelmq", "--"),
                    *(f"{_RELEASE}/bin/keelmqd", "--config", f"{config}.wanted", "--check-config"),
                ]
            },
            "changed_when": False,
        },
        {
            "name": "Note what is wanted",
            "ansible.builtin.copy": {
                "content": f"{{{{ keelmq_release }}}} {{{{ {_CONFIG} | hash('sha256') }}}}\n",
                "dest": _NOTES[0],
                "mode": "0644",
            },
        },
        {
            "name": "Bring the unit",
            "ansible.builtin.copy": {
                "src": "/opt/keelmq/bundles/{{ keelmq_release }}/keelmqd@.service",
                "dest": "/etc/systemd/system/keelmqd@.service",
                "remote_src": True,
                "mode": "0644",
            },
        },
    ]


def _start() -> list[dict[str, Any]]:
    stands = "keelmq_active.stdout not in ['active', 'activating']"
    return [
        {
            "name": "Ask whether it runs",
            "ansible.builtin.command": {"argv": ["systemctl", "is-active", "keelmqd@{{ keelmq_cluster }}"]},
            "register": "keelmq_active",
            "changed_when": False,
            "failed_when": False,
        },
        _include("Start it", "tasks/apply.yml", when=stands, variables={"keelmq_begins": True}),
        _tool("Wait until all nodes are healthy", ["wait"]),
        _note_running(stands),
    ]


def _apply() -> list[dict[str, Any]]:
    """Return the tasks by which one host takes over what is wanted. Its note comes last, once the node is back."""
    return [
        {
            "name": "Make the release current",
            "ansible.builtin.file": {"src": _RELEASE, "dest": "/opt/keelmq/current", "state": "link"},
        },
        {
            "name": "Make the configuration current",
            "ansible.builtin.copy": {
                "src": "/etc/keelmq/{{ keelmq_cluster }}.toml.wanted",
                "dest": "/etc/keelmq/{{ keelmq_cluster }}.toml",
                "remote_src": True,
                "mode": "0644",
            },
        },
        {
            "name": "Restart the node",
            "ansible.builtin.systemd": {
                "name": "keelmqd@{{ keelmq_cluster }}",
                "state": "restarted",
                "enabled": True,
                "daemon_reload": True,
                # A node that begins a cluster is up when the others are. One of a cluster is waited for: the tool
                # would still see the former process, and the note say that the new one runs.
                "no_block": "{{ keelmq_begins | default(false) }}",
            },
        },
    ]


def _roll() -> list[dict[str, Any]]:
    differs = "keelmq_noted.rc != 0"
    return [
        {
            "name": "Compare what runs with what is wanted",
            "ansible.builtin.command": {
                "argv": [
                    "cmp",
                    "-s",
                    *(f"/etc/keelmq/{{{{ keelmq_cluster }}}}.{each}" for each in ("wanted", "running")),
                ]
            },
            "register": "keelmq_noted",
            "changed_when": False,
            "failed_when": False,
        },
        _tool("Wait until the others can do without it", ["spare", "{{ keelmq_node }}"], when=differs),
        _include("Take over what is wanted", "tasks/apply.yml", when=differs),
        _tool("Wait until all nodes are healthy", ["wait"], when=differs),
        _note_running(differs),
    ]


def _note_running(when: str) -> dict[str, Any]:
    copy = {"src": _NOTES[0], "dest": _NOTES[1], "remote_src": True, "mode": "0644"}
    return {"name": "Note what runs", "ansible.builtin.copy": copy, "when": when}


def _directory(what: str, path: str, mode: str, owner: str) -> dict[str, Any]:
    values = {"path": path, "state": "directory", "owner": owner, "group": owner, "mode": mode}
    return {"name": f"Make the directory of {what}", "ansible.builtin.file": values}


def _include(name: str, file: str, *, when: str = "", variables: Mapping[str, Any] | None = None) -> dict[str, Any]:
    more = {"when": when} if when else {}
    return {"name": name, "ansible.builtin.include_tasks": {"file": file}, **more} | (
        {"vars": dict(variables)} if variables else {}
    )


def _tool(name: str, verb: list[str], *, register: str = "", codes: str = "", when: str = "") -> dict[str, Any]:
    """Return a task that asks the tool, on the machine that runs Ansible."""
    task: dict[str, Any] = {
        "name": name,
        "ansible.builtin.command": {"argv": [_TOOL[0], *verb, *_TOOL[1:]]},
        **_ON_THIS_MACHINE,
        "changed_when": False,
    }
    if codes:
        task |= {"register": register, "failed_when": f"{register}.rc not in {codes}"}
    if when:
        task["when"] = when
    return task
