"""`make image`: the image of deploy/Containerfile, from a bundle, built without a network.

The base is named with its digest, so that the same line gives the same programs tomorrow. It needs the Python of the
bundle. The last line is `RESULT {json}`.
"""

import argparse
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from deploy.bundle import bundle
from deploy.dist import BuildError, run
from deploy.lock_files import ROOT, LockError
from deploy.reporting.report import Report
from store.version import VERSION

CONTAINERFILE: Final = ROOT / "deploy" / "Containerfile"
AGENT: Final = Path("deploy", "container", "agent.py")
ENGINES: Final = {"podman": ["--format", "docker"], "docker": list[str]()}
"""Programs that build, with what each needs to keep the health check."""
PINNED: Final = re.compile(r"\S+@sha256:[0-9a-f]{64}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make image", description=__doc__)
    parser.add_argument("--base", required=True, help="Image with Python, as NAME@sha256:DIGEST.")
    parser.add_argument("--bundle", type=Path, help="File of `make bundle` (default: a new one).")
    parser.add_argument("--engine", choices=list(ENGINES), default="podman")
    parser.add_argument("--tag", default=f"localhost/keelmq:{VERSION}")
    options = parser.parse_args()
    if not PINNED.fullmatch(options.base):
        parser.error(f"--base {options.base!r} has no digest: NAME@sha256: and 64 digits")
    report = Report()
    try:
        with report.live(), tempfile.TemporaryDirectory() as temporary:
            work = Path(temporary)
            source = options.bundle or bundle(work / "bundle", work, report)
            report.step(f"building {options.tag}")
            image_id = build_image(source, work / "context", options.base, options.engine, options.tag)
    except (BuildError, LockError, OSError) as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    report.result({"tag": options.tag, "image_id": image_id, "base": options.base})
    return 0


def build_image(source: Path, context: Path, base: str, engine: str, tag: str) -> str:
    """Build the image of the bundle, and return its id. Raises BuildError."""
    (context / AGENT).parent.mkdir(parents=True)
    shutil.copyfile(source, context / "bundle.tar.gz")
    shutil.copyfile(ROOT / AGENT, context / AGENT)
    shutil.copyfile(CONTAINERFILE, context / "Containerfile")
    revision = run(["git", "rev-parse", "HEAD"], cwd=ROOT).strip()
    values = {"BASE": base, "BUNDLE": "bundle.tar.gz", "VERSION": VERSION, "REVISION": revision}
    arguments = [part for name, value in values.items() for part in ("--build-arg", f"{name}={value}")]
    command = [engine, "build", "--network=none", *ENGINES[engine], "--file", "Containerfile", "--tag", tag]
    run([*command, *arguments, "."], cwd=context)
    return run([engine, "image", "inspect", "--format", "{{.Id}}", tag], cwd=context).strip()


if __name__ == "__main__":
    sys.exit(main())
