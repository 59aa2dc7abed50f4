"""The compacted view of a keyed topic's partition: the newest value of each key, in separate files. The log does not change."""

from waltz_log.compaction.compactor import Compactor, Folded, LogRecord
from waltz_log.compaction.settings import CompactionSettings
from waltz_log.compaction.view import CompactedView, ViewSnapshot

__all__ = ["CompactedView", "CompactionSettings", "Compactor", "Folded", "LogRecord", "ViewSnapshot"]
