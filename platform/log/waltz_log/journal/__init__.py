"""The circular journal: records on the local disk until they are deleted, in a bounded ring of files. Usable alone.

`Journal` has one caller at a time and starts nothing; `GroupCommitJournal` is the shell for many threads. Importing it brings neither numpy nor an
event loop. docs/internals/journal.md documents format and rules; the errors are in `waltz_log.errors`.
"""

from waltz_log.journal.group_commit import GroupCommitJournal
from waltz_log.journal.journal import Journal
from waltz_log.journal.loading import Loaded, LoadedRecord, PreparedTransaction
from waltz_log.journal.settings import GroupCommitSettings, JournalSettings
from waltz_log.journal.statistics import JournalStatistics

__all__ = [
    "GroupCommitJournal",
    "GroupCommitSettings",
    "Journal",
    "JournalSettings",
    "JournalStatistics",
    "Loaded",
    "LoadedRecord",
    "PreparedTransaction",
]
