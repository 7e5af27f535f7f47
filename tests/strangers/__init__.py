"""Strangers with credentials: attempts at every port of a closed cluster, none of which may change anything."""
