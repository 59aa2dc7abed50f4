"""CRC-32 for all formats, with the same polynomial and results as `zlib.crc32`.

Intel's ISA-L computes it with the processor's carry-less multiplication: in less than half of zlib's time for 200 bytes, in a third of it for a
block. Where the package `isal` has no wheel, zlib does the same.
"""

from __future__ import annotations

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
