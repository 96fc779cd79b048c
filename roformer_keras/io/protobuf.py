"""Messages of protobuf, read without it."""

from collections import defaultdict


class Malformed(Exception):
    """Bytes that break the format; the reader adds the file and the tensor."""


def read_message(data: bytes) -> tuple[dict[int, int], dict[int, list[bytes]]]:
    """A message's numbers and its strings or messages, by field number.

    As in protobuf, a missing number is 0 and the last of repeated numbers wins. The
    caller concatenates the parts of a split message.
    """
    numbers, parts = defaultdict(int), defaultdict(list)
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        field, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            numbers[field], at = read_varint(data, at)
        elif wire_type == 5:
            numbers[field], at = int.from_bytes(data[at : at + 4], "little"), at + 4
        elif wire_type == 2:
            size, at = read_varint(data, at)
            parts[field].append(data[at : at + size])
            at += size
        else:
            raise Malformed(f"field {field} has the unknown wire type {wire_type}")
        if at > len(data):
            raise Malformed(f"field {field} runs past the end of its message")
    return numbers, parts


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned 64-bit integer, and its end."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise Malformed("it ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 and value < 2**64:
            return value, at
    raise Malformed("a number is longer than 64 bits")
