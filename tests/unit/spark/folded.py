"""Folds histories without tables, and shows what the tables would have."""

from typing import Any

import pyarrow as pa

from keelmq_spark.folding.fold import Fold
from keelmq_spark.folding.fold_state import FoldState, decode_state, encode_state
from keelmq_spark.folding.places import Places
from keelmq_spark.tables.published import NOTHING_PUBLISHED

EdgeKey = tuple[str, str, str]


def no_table(topic: str, queue: int, begin: int, end: int) -> Any:
    return NOTHING_PUBLISHED


class Folded:
    """The expected contents of the tables after all batches."""

    def __init__(self, *batches: Any, through_bytes: bool = False) -> None:
        self.edges: list[dict[str, Any]] = []
        settled: list[dict[str, Any]] = []
        open_nodes: list[dict[str, Any]] = []
        places = Places(no_table)
        fold = Fold(FoldState(), places)
        for batch in batches:
            if through_bytes:
                fold = Fold(decode_state(encode_state(fold.state)), places)
            folded = fold.fold(batch)
            settled += folded.nodes.to_pylist()
            open_nodes = folded.open_nodes.to_pylist()
            self.edges += folded.edges.to_pylist()
        self.all_nodes = settled + open_nodes
        self.nodes = {node["node_id"]: node for node in self.all_nodes}
        self.open = {node["node_id"] for node in open_nodes}
        self.state = fold.state

    @property
    def keys(self) -> set[EdgeKey]:
        return {(edge["src"], edge["dst"], edge["kind"]) for edge in self.edges}

    def of_kind(self, kind: str) -> set[tuple[str, str]]:
        return {(src, dst) for src, dst, each in self.keys if each == kind}

    def state_of(self, message: str) -> str:
        state: str = self.nodes[f"message:{message}"]["state"]
        return state


def entries(table: Any) -> list[Any]:
    indexes = sorted(set(table["raft_index"].to_pylist()))
    return [table.filter(pa.compute.equal(table["raft_index"], index)) for index in indexes]


def content(folded: Folded) -> tuple[Any, Any]:
    nodes = sorted(folded.all_nodes, key=lambda node: (node["node_id"], node["state"]))
    return nodes, sorted(folded.edges, key=lambda edge: (edge["kind"], edge["src"], edge["dst"]))
