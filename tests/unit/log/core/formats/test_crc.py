from __future__ import annotations

import subprocess
import sys
import zlib

from hypothesis import given
from hypothesis import strategies as st

from waltz_log.core.formats.crc import crc32


@given(st.binary(max_size=5_000), st.integers(0, 2**32 - 1))
def test_it_is_the_checksum_of_zlib(data: bytes, start: int) -> None:
    assert crc32(data) == zlib.crc32(data)
    assert crc32(memoryview(data), start) == zlib.crc32(data, start)


def test_large_data_and_data_in_pieces() -> None:
    data = bytes(range(256)) * 4_096
    assert crc32(data) == zlib.crc32(data) == crc32(data[70_001:], crc32(data[:70_001]))


def test_without_the_package_zlib_computes_it() -> None:
    program = "import sys; sys.modules['deflate'] = None; from waltz_log.core.formats.crc import crc32; import zlib; assert crc32 is zlib.crc32"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
