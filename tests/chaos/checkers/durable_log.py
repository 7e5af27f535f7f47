"""Checks the commit log on a stopped node's disk: it is the same on all nodes, holds nothing that nobody sent, and
lacks nothing.

A node removes entries that nothing needs from the front (a first segment that holds topics alone, for instance);
acknowledged messages must be in the rest.
"""

from array import array
from pathlib import Path
from typing import Final

import msgspec

from cluster.messages.compression import unpack
from store.commands.entry import batches_of, decode_entry
from store.log.disk import PosixDisk
from store.log.dump import verify_log
from store.log.record import KIND_ENTRY
from store.log.scan import scan_records
from store.log.segment import SEGMENT_SUFFIX, start_of
from tests.chaos.ledger import Book, Outcome
from tests.chaos.message import name_of, number_in, number_of, sequence_of, worker_of
from tests.chaos.violations import Kind, Violations

_IN_LOG: Final = 1
_AT_RECEIPT: Final = 2


class _BodyOnly(msgspec.Struct, array_like=True, gc=False):
    body: bytes


_decode_block = msgspec.msgpack.Decoder(list[_BodyOnly]).decode


class LogContent:
    """Terms and checksums of the entries after `base_index`, up to the last one compared: 12 bytes per entry."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.base_index = 0
        """Index of the last entry that the node has removed."""
        self.terms = array("Q")
        self.checksums = array("I")

    @property
    def last_index(self) -> int:
        return self.base_index + len(self.terms)

    def behind(self, base_index: int) -> tuple["array[int]", "array[int]"]:
        """Return terms and checksums of entries after `base_index`, which must not precede the object's own base."""
        skipped = base_index - self.base_index
        return self.terms[skipped:], self.checksums[skipped:]


class DurableLog:
    """Judges the log of one node. `last_index` is the last entry that every node had committed and applied when it was
    stopped.
    """

    def __init__(self, node: str, directory: Path, last_index: int, book: Book, violations: Violations) -> None:
        self._node = node
        self._directory = directory
        self._last_index = last_index
        self._book = book
        self._violations = violations
        self._found = [bytearray(len(ledger)) for ledger in book.workers]
        self.content = LogContent(node)

    def check(self) -> LogContent:
        disk, directory = PosixDisk(), str(self._directory)
        report = verify_log(disk, directory)
        for finding in report.findings:
            if not finding.harmless:
                self._add(Kind.LOG_DAMAGED, f"{finding.segment} at {finding.position}: {finding.detail}")
        self.content.base_index = report.base.index
        for name in disk.list(directory):
            start = start_of(name, SEGMENT_SUFFIX)
            if start is None or start < report.base.position:
                continue
            file = disk.open(f"{directory}/{name}")
            try:
                for header, payload in scan_records(file, start):
                    if header.index <= self._last_index:
                        self._record(header.index, header.term, header.payload_crc)
                        if header.kind == KIND_ENTRY:
                            self._entry(header.index, bytes(payload))
            finally:
                file.close()
        last_index = self.content.last_index
        if last_index != self._last_index:
            self._add(Kind.LOST, f"the log ends at entry {last_index}, {self._last_index} entries were applied")
        self._judge()
        return self.content

    def _record(self, index: int, term: int, checksum: int) -> None:
        content = self.content
        if index != content.last_index + 1:
            self._add(Kind.GAP, f"the log goes on with entry {index} after {content.last_index}")
        if content.terms and term < content.terms[-1]:
            self._add(Kind.LOG_DAMAGED, f"entry {index} is of term {term}, the one before it of {content.terms[-1]}")
        content.terms.append(term)
        content.checksums.append(checksum)

    def _entry(self, index: int, payload: bytes) -> None:
        view = memoryview(payload)
        decoded = decode_entry(payload)
        for command, offsets in zip(decoded.commands, decoded.block_offsets, strict=True):
            for batch, offset in zip(batches_of(command), offsets, strict=True):
                block: bytes | memoryview = view[offset : offset + batch.length]
                if batch.uncompressed_bytes is not None:
                    block = unpack(bytes(block), batch.uncompressed_bytes)
                for message in _decode_block(block):
                    self._message(index, message.body)

    def _message(self, index: int, body: bytes) -> None:
        number = number_in(body)
        ledger = self._book.ledger_of(worker_of(number)) if number is not None else None
        if number is None or ledger is None or sequence_of(number) >= len(ledger):
            self._add(Kind.PHANTOM, f"entry {index} holds {body[:60]!r}, which nobody sent")
            return
        sequence = sequence_of(number)
        found = self._found[ledger.worker]
        found[sequence] |= _IN_LOG | (_AT_RECEIPT if ledger.raft_index(sequence) == index else 0)

    def _judge(self) -> None:
        for ledger in self._book.workers:
            found = self._found[ledger.worker]
            for sequence, outcome in enumerate(ledger.outcomes):
                if outcome != Outcome.ACKED or found[sequence] == _IN_LOG | _AT_RECEIPT:
                    continue
                name = f"{ledger.name} {name_of(number_of(ledger.worker, sequence))}"
                index = ledger.raft_index(sequence)
                if not found[sequence]:
                    self._add(Kind.LOST, f"{name} was acknowledged and is not in the log")
                elif index:
                    self._add(Kind.MOVED, f"{name} is in the log, but not in entry {index} of its receipt")

    def _add(self, kind: Kind, detail: str) -> None:
        self._violations.add(kind, f"{self._node}: {detail}")


def compare_logs(contents: list[LogContent], violations: Violations) -> None:
    """Check log matching: every node holds the same entries. The violation names the first index at which two nodes
    differ.
    """
    first = contents[0]
    for other in contents[1:]:
        base_index = max(first.base_index, other.base_index)
        mine, others = first.behind(base_index), other.behind(base_index)
        if mine == others:
            continue
        pairs = zip(*mine, *others, strict=False)
        differing = (i for i, (a, b, c, d) in enumerate(pairs, base_index + 1) if (a, b) != (c, d))
        index = next(differing, min(first.last_index, other.last_index))
        violations.add(Kind.LOG_DIFFERS, f"{first.node} and {other.node} hold different logs from entry {index} on")
