"""Filters select the messages that a consumer wants, by tags or by an SQL92 expression on the properties.

`selection.py` is the entry point. An expression is cut into tokens (`tokens.py`), parsed into a tree (`parser.py`,
`syntax.py`) and compiled into closures once (`evaluation.py`, `like.py`, `numeric.py`). No module here knows HTTP or
the log. docs/filters.md states the promises to users.
"""
