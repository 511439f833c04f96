"""The layout of an encoded state, and the tags that begin each value in it.

    0   magic
    8   start of the payload          (little-endian, 8 bytes; a multiple of 64)
    16  total size                    (little-endian, 8 bytes)
    24  the value: a tag, then its data, containers with their elements in place
    …   payload: the large leaves (tensors, arrays, bytes), each at a multiple of 64, with zeros between

If the same list, dict, set, array, tensor or object occurs again, a reference to its first occurrence is
written. So one object stays one object. Immutable values are written each time, since it is arbitrary whether
two equal strings are one object.
"""

from __future__ import annotations

import struct

MAGIC = b"HOPSTAT1"
START = struct.Struct("<8sQQ")
ALIGN = 64
INLINE_BYTES = 512  # leaves up to this size are stored in place

LENGTH = struct.Struct("<Q")
FLOAT = struct.Struct("<d")
COMPLEX = struct.Struct("<dd")

NONE, TRUE, FALSE, ELLIPSIS = b"N", b"T", b"F", b"."
INT, FLOAT_TAG, COMPLEX_TAG = b"i", b"f", b"c"
STR, BYTES, BYTEARRAY = b"s", b"b", b"B"
TUPLE, LIST, DICT, ORDERED_DICT, SET, FROZENSET = b"(", b"[", b"{", b"o", b"S", b"Z"
INTS = b"I"  # a tuple of many small ints, as random number generators have them
SAME = b"="  # a reference: the number of an earlier value
ARRAY, SCALAR, OBJECT_ARRAY = b"A", b"a", b"P"
TENSOR = b"t"
TORCH_WORD = b"w"  # a dtype, layout or memory format of PyTorch, by its name
GLOBAL = b"G"  # a class or function, by module and name
OBJECT = b"O"  # the result of `__reduce_ex__`


def align_up(size: int) -> int:
    return -(-size // ALIGN) * ALIGN
