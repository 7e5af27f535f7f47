"""The neighbour that keeps a core and the disk busy works, ends, and leaves nothing."""

from pathlib import Path

from tests.noise import make_noise


def test_it_ends_by_itself_and_leaves_no_file(tmp_path: Path) -> None:
    said = make_noise(str(tmp_path), 0.2).split()
    assert int(said[1]) > 0
    assert int(said[-2]) > 0
    assert list(tmp_path.iterdir()) == []
