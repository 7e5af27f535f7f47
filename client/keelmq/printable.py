"""Foreign text for logs and terminals: it must neither move the cursor nor look like a line of its own."""

from typing import Final

ONE_LINE_MAX: Final = 1_000

UNPRINTABLE: Final = (
    *range(0x20),
    *range(0x7F, 0xA0),
    0x2028,  # these two end a line for many readers of logs
    0x2029,
    0x061C,  # the others change the direction of what follows, so that a line reads as something else
    0x200E,
    0x200F,
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),  # no encoding has surrogates: writing one would raise
)
_ESCAPES: Final = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in UNPRINTABLE}
_ESCAPES_WITHIN_LINES: Final = {code: shown for code, shown in _ESCAPES.items() if code not in (0x09, 0x0A)}


def printable(text: str) -> str:
    """Escape the characters of `text` that control a terminal, except tabs and line ends."""
    return text.translate(_ESCAPES_WITHIN_LINES)


def one_line(text: str) -> str:
    """Escape the same characters, and tabs and line ends too; of a longer text, keep the first 1,000 characters."""
    more = len(text) - ONE_LINE_MAX
    shown = text[:ONE_LINE_MAX].translate(_ESCAPES)
    return f"{shown}… ({more} more characters)" if more > 0 else shown


def error_text(error: BaseException) -> str:
    """Return the text of any error. Never raises, though the error's own `__str__` may."""
    try:
        return str(error)
    except Exception:
        return "an error that has no text"
