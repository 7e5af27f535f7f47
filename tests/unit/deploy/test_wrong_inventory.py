"""An inventory whose URLs lead to another cluster, or to another node: no verb goes by what these say."""

from pathlib import Path

import pytest

from deploy.rollout.transport import Host
from tests.unit.deploy.stand_ins import Cluster, Run


@pytest.mark.parametrize(
    "arguments",
    [
        *(("bootstrap",), ("restart",), ("upgrade",), ("rollback",), ("wait",), ("backup",)),
        *((verb, "2") for verb in ("remove", "transfer", "drain", "undrain", "add", "replace", "spare", "leads")),
        ("recover", "2"),
    ],
)
def test_the_url_of_another_cluster_ends_a_verb_at_once(
    cluster: Cluster, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """A member of the cluster that answers would have been removed."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a host was asked")

    monkeypatch.setattr(Host, "facts", refuse)
    cluster.cluster_ids[1] = "bank"
    cluster.inventory(tmp_path)
    for more in ((), ("--dry-run",)):
        code, said = run(*arguments, *more)
        assert (code, cluster.asked) == (1, []), said
        assert f"node 1 of the cluster bank answers at {cluster.urls()[1]}, which is to be node 1 of shop" in said
        assert "plan:" not in said


def test_urls_that_are_swapped_are_named(cluster: Cluster, tmp_path: Path, run: Run) -> None:
    path = cluster.inventory(tmp_path)
    urls = cluster.urls()
    text = path.read_text().replace(urls[2], "2").replace(urls[3], urls[2]).replace('"2"', f'"{urls[3]}"')
    path.write_text(text)
    code, said = run("status")
    assert code == 1
    for verb in ("restart", "preflight"):
        code, said = run(verb)
        assert code == 1
        assert "node 2 (this machine): node 3 of the cluster shop answers at" in said
        assert "node 3 (this machine): node 2 of the cluster shop answers at" in said
