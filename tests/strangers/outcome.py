"""The outcome of an attempt."""


class Admitted(Exception):
    """A stranger got further than a refusal; the message says how."""
