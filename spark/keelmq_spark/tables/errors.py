"""Errors of the tables."""


class TablesError(Exception):
    """The tables cannot be used as asked. The message says why, and what to do."""


class TablesInUse(TablesError):
    """Another job writes the tables."""


class OtherLog(TablesError):
    """The tables, or the checkpoint of a query, belong to the log of another cluster."""


class Gap(TablesError):
    """A batch does not begin where the tables end."""
