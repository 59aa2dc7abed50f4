"""Blocks and the message that carries one. Both directions, for every port that sends or receives blocks."""

from __future__ import annotations

from waltz_log.core.formats.block import Block
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["block_of", "fill_message", "message_of", "replicated_message_of"]


def message_of(block: Block) -> pb.Block:
    message = pb.Block()
    fill_message(message, block)
    return message


def replicated_message_of(block: Block) -> pb.Block:
    """For a replica, with the traces and the checksum."""
    message = message_of(block)
    message.traces = block.traces
    message.checksum = block.checksum
    return message


def fill_message(message: pb.Block, block: Block) -> None:
    """In place, for a field of a larger message: a block that is handed over whole would be copied once more."""
    message.first_transaction_id = block.first_transaction_id
    message.lengths = block.lengths
    message.records = block.records
    message.append_time_ms = block.append_time_ms


def block_of(message: pb.Block) -> Block:
    return Block(message.first_transaction_id, message.lengths, message.records, message.append_time_ms, message.traces, message.checksum)
