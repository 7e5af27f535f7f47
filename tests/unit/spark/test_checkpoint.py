"""Each start of a job makes a checkpoint, and leaves those of other jobs alone."""

from pathlib import Path

from keelmq_spark.job import Checkpoint


def of(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def test_jobs_may_share_the_directory_of_their_checkpoints(tmp_path: Path) -> None:
    shop, bank = Checkpoint(tmp_path, "s3://analytics/shop"), Checkpoint(tmp_path, "s3://analytics/bank")
    assert of(shop.uri).is_dir()
    again = Checkpoint(tmp_path, "s3://analytics/shop")
    assert sorted(tmp_path.iterdir()) == sorted([of(again.uri), of(bank.uri)])
