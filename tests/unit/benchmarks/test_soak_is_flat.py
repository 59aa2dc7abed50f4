"""What counts as flat memory, on readings that are, that are not, and that only warm up."""

from __future__ import annotations

import random

import pytest

from benchmarks.soak import growth, is_flat, measurements

MB = 1_000_000


def readings(heap: list[float]) -> list[dict[str, float]]:
    return [
        {"batches": 100 * n, "at_s": n, "heap_bytes": each * MB, "jvm_bytes": each * 3 * MB, "python_bytes": 90 * MB} for n, each in enumerate(heap)
    ]


def flat(heap: list[float]) -> bool:
    return is_flat(*growth(readings(heap), "heap_bytes"))


def test_a_heap_that_warms_up_and_stays_is_flat_whatever_single_readings_say() -> None:
    rng = random.Random(1)
    settled = [180 + rng.uniform(-3, 3) for _ in range(90)]
    settled[40] = 400
    assert flat([60, 90, 120, 140, 150, 160, 165, 170, 175, 178, *settled])


def test_ten_kilobytes_kept_of_each_of_ten_thousand_batches_is_not_flat() -> None:
    assert not flat([150 + n for n in range(100)])
    assert flat([150.0] * 100)


def test_a_leak_that_begins_late_is_seen() -> None:
    assert not flat([150.0] * 70 + [150 + 5 * n for n in range(30)])


def test_too_few_readings_are_refused() -> None:
    with pytest.raises(ValueError, match="too few readings: 4"):
        growth(readings([1, 2, 3, 4]), "heap_bytes")


def test_the_figures_report_what_they_grew_from() -> None:
    heap, jvm, python = measurements(readings([100.0] * 50 + [120.0] * 50), {})
    assert (heap.name, heap.value, heap.ratio, heap.ratio_to) == ("spark.soak_heap_mb", 120, 1.2, "after the warm-up, 100 MB")
    assert (jvm.value, python.value, python.ratio) == (360, 90, 1)
