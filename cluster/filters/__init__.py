"""Which messages a consumer wants: tags, or an SQL92 expression on the properties.

`selection.py` is the way in. An expression is cut into tokens (`tokens.py`), parsed into a tree (`parser.py`,
`syntax.py`) and compiled into closures once (`evaluation.py`, `like.py`, `numeric.py`). Nothing here knows HTTP or the
log. What users are promised is in docs/filters.md.
"""
