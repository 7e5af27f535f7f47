"""Exit code 2 of keelmq-deploy: nothing is asked, nothing is made, and no RESULT says what was kept."""

from pathlib import Path

import pytest

from tests.unit.deploy.stand_ins import Run

NODES = "".join(
    f'[[node]]\nid = {number}\npeer = "127.0.0.1:709{number}"\nurl = "http://127.0.0.1:708{number}"\n'
    for number in (1, 2, 3)
)


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("install",), "install needs --bundle FILE"),
        (("bootstrap", "--bundle", "nowhere.tar.gz"), "--bundle nowhere.tar.gz: No such file or directory"),
        *(
            ((verb, *node, "--accept-downtime"), f"{verb} takes no --accept-downtime")
            for verb, node in (("remove", "2"), ("replace", "2"), ("spare", "2"), ("add", "2"), ("bootstrap", ""))
        ),
        (("certs",), 'certs needs tls = "peers" or "all"'),
        (("restore",), "restore needs --backup FILE|S3_URL"),
        (("restore", "--backup", "nowhere.backup"), "--backup nowhere.backup: No such file or directory"),
        (("render", "compose"), "image is missing in [containers]"),
        (("render", "kubernetes"), "image is missing in [containers]"),
        (("render", "ansible"), "two nodes are on one host"),
    ],
)
def test_wrong_usage_ends_with_2_and_leaves_nothing(
    tmp_path: Path, run: Run, arguments: tuple[str, ...], reason: str, more: tuple[str, ...]
) -> None:
    """Hosts are this machine, so a verb that went on would make their roots or a secret."""
    (tmp_path / "cluster.toml").write_text(f'[cluster]\nid = "shop"\nroot = "{tmp_path}/hosts"\n{NODES}')
    output = ("-o", str(tmp_path / "out")) if arguments[0] == "render" else ()
    code, said = run(*arguments, *output, *more)
    assert code == 2, said
    assert reason in said
    assert "RESULT" not in said
    assert "run the same command again" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.toml"]
