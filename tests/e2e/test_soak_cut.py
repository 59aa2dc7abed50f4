"""Three hundred micro-batches at the shortest trigger: a driver that keeps something of each batch shows already. `make soak-spark` is the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak import growth, is_flat, soak

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def test_driver_memory_is_flat_over_three_hundred_micro_batches(tmp_path: Path) -> None:
    readings = soak(tmp_path, batches=300, seconds=1800, every=10)
    assert readings[-1]["batches"] == 300
    assert is_flat(*growth(readings, "heap_bytes")), readings
