"""The compacted view of a keyed topic's partition: its latest value of each key, in files of its own beside a log that stays as it is."""

from waltz_log.compaction.compactor import Compactor, Folded, LogRecord
from waltz_log.compaction.settings import CompactionSettings
from waltz_log.compaction.view import CompactedView, ViewSnapshot

__all__ = ["CompactedView", "CompactionSettings", "Compactor", "Folded", "LogRecord", "ViewSnapshot"]
