"""`keelmqd run`: reads the configuration and runs the node, or checks or shows the configuration."""

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial

from cluster import COMMIT, VERSION
from cluster.process import PRIVATE_UMASK
from cluster.process.addresses import ConfigError
from cluster.process.config import options
from cluster.process.config_description import described
from cluster.process.config_loading import load, sources
from cluster.process.exit_codes import ExitCode, StartupError
from store.features import FEATURES


def run_command(given: Sequence[str], before_run: Callable[[], None] = lambda: None) -> int:
    """Run the node, or do what the options want instead. `before_run` is called once all is imported."""
    parsed = vars(run_parser().parse_args(given))
    file, check_only, show_only = (parsed.pop(name) for name in ("config", "check_config", "show_config"))
    try:
        config = load(file, os.environ, parsed)
    except ConfigError as error:
        raise StartupError(ExitCode.BAD_CONFIG, str(error)) from None
    if show_only:
        given_by = sources(file, os.environ, parsed)
        for name, value in described(config).items():
            print(f"{name} = {value}  # {given_by.get(name, 'default')}")
        return ExitCode.STOPPED
    # Late, since it takes longest to import; and for a check too, so that a broker that cannot be imported here is
    # found before a node is stopped for it.
    from cluster.serving import run_node

    if check_only:
        print(f"keelmqd: the configuration of node {config.node_id} of cluster {config.cluster_id!r} is valid")
        return ExitCode.STOPPED
    os.umask(PRIVATE_UMASK)
    before_run()
    return run_node(config, partial(load, file, os.environ, parsed))


def run_parser() -> argparse.ArgumentParser:
    """Return a parser with a flag for every configuration option. Its result has only the options that were given."""
    codes = ", ".join(f"{code.value} {code.name.lower().replace('_', ' ')}" for code in ExitCode)
    parser = argparse.ArgumentParser(
        prog="keelmqd",
        usage="keelmqd [run] [options]\n       keelmqd supervise [--output FILE] --config FILE\n"
        "       keelmqd log {dump,verify} --data-dir DIR\n"
        "       keelmqd restore --backup FILE --data-dir DIR --node-id ID --peer ID=HOST:PORT=URL ...\n"
        "       keelmqd recover --data-dir DIR [--i-accept-the-loss-of-what-only-others-had]",
        description="Run one node of a KeelMQ cluster. Options come from a TOML file, then from KEELMQ_<OPTION> in the "
        "environment, then from the command line; the last source wins.",
        epilog=f"exit codes: {codes}",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    version = f"keelmqd {VERSION} (feature level {FEATURES.describe()})" + (f", commit {COMMIT}" if COMMIT else "")
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("--config", metavar="FILE", default=None, help="TOML file with the options")
    parser.add_argument("--check-config", action="store_true", default=False, help="validate the configuration and end")
    parser.add_argument(
        "--show-config",
        action="store_true",
        default=False,
        help="print every option with its value and where that comes from, and end",
    )
    for option in options():
        if option.is_switch:
            parser.add_argument(
                option.flag, dest=option.name, action="store_const", const="true", help=option.description
            )
            continue
        repeated = option.is_list
        default = "" if option.default in (None, ()) else f" (default: {option.default})"
        parser.add_argument(
            option.flag,
            dest=option.name,
            metavar="ID=HOST:PORT=URL" if option.name == "peers" else option.flag.rpartition("-")[2].upper(),
            action="append" if repeated else "store",
            help=(option.description + default).replace("%", "%%"),
        )
    return parser
