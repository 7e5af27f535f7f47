"""For all tests."""

import signal

from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A background job of a script is started so, and what the tests start would inherit it, deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Nothing is judged by a clock on the wall: a busy machine is slow. Examples are random; a failure prints the decorator
# that replays it, and .hypothesis keeps it for the next run.
settings.register_profile(
    "suite",
    deadline=None,
    derandomize=False,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")
