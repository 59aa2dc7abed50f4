"""Applications whose state is in an SQL database: the log applied to it exactly once, by any number of processes. Needs the extra `sql`.

`waltz_log.client` does not import this; an application that uses it says `from waltz_log.client.sql import SqlApplication`.
"""

from waltz_log.client.sql.settings import SqlSettings
from waltz_log.extras import explain_missing

with explain_missing(__name__, "sql"):
    from waltz_log.client.sql.application import SqlApplication, SqlContext

__all__ = ["SqlApplication", "SqlContext", "SqlSettings"]
