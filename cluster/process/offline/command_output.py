"""The output of the commands on a stopped node."""

import contextlib


def say(text: str) -> None:
    """Print the text as a line of keelmqd. Nothing fails when nobody reads any more (`| head`), or when the file of the
    output cannot be written: what the command does to the node counts, and main() ends with its exit code.
    """
    with contextlib.suppress(OSError):
        print(f"keelmqd: {text}", flush=True)
