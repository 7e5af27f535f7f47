"""Decodes a client's block as a whole, which a node does in pieces."""

import itertools

from cluster.messages.blocks import BlockMessage, decode_pieces


def decode_block(block: bytes, where: str) -> list[BlockMessage]:
    """Decode the block and check every limit. Raises Problem, which names the message that breaks a limit."""
    return list(itertools.chain.from_iterable(decode_pieces(block, where)))
