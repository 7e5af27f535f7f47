"""For all tests."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A background job of a script is started so, and what the tests start would inherit it, deaf to Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
