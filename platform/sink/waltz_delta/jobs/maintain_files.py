"""How many small files a table has, and in which partitions, from its log alone: no JVM, and no data file is opened."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from waltz_delta.base.store_errors import store_errors

__all__ = ["FileReport", "file_report"]

WORST = 5


@dataclass(frozen=True, slots=True)
class FileReport:
    """`worst`: the values of the partition columns with the most small files, and the number of those files."""

    files: int
    bytes: int
    small_files: int
    small_bytes: int
    below: int
    worst: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        mean = self.bytes / self.files / 2**20 if self.files else 0.0
        return (
            f"{self.files:,} files of {mean:.1f} MiB on average, {self.small_files:,} of them below {self.below / 2**20:g} MiB "
            f"({self.small_bytes / 2**20:,.1f} of {self.bytes / 2**20:,.1f} MiB)"
        )


def file_report(path: str, small_bytes: int, storage_options: dict[str, str] | None = None) -> FileReport:
    """Raises `StoreUnavailable`."""
    import pyarrow as pa
    from deltalake import DeltaTable

    with store_errors(path):
        actions = pa.table(DeltaTable(path, storage_options=storage_options).get_add_actions(flatten=True))
    sizes: list[int] = actions["size_bytes"].to_pylist()
    columns = [name for name in actions.column_names if name.startswith("partition.")]
    values = list(zip(*(actions[name].to_pylist() for name in columns), strict=True)) if columns else []
    small = [number for number, size in enumerate(sizes) if size < small_bytes]
    by_value = Counter(values[number] for number in small) if values else Counter()
    names = [name.removeprefix("partition.") for name in columns]
    worst = tuple((", ".join(f"{n}={v}" for n, v in zip(names, each, strict=True)), count) for each, count in by_value.most_common(WORST))
    return FileReport(len(sizes), sum(sizes), len(small), sum(sizes[number] for number in small), small_bytes, worst)
