"""The client of the log. What applications use stands in `__all__`.

The outcomes of an append that are not a receipt stand here too; all other errors are in `waltz_log.errors`.

Importing it brings neither numpy nor Spark nor Arrow.
"""

from waltz_log.client.client import WaltzClient
from waltz_log.client.follow import Follower
from waltz_log.client.settings import ClientSettings
from waltz_log.client.sync import SyncWaltzClient
from waltz_log.client.transaction import Draft, Lock, Receipt, Transaction
from waltz_log.client.transactional import TransactionContext
from waltz_log.errors import LockConflict, NotAppended, OutcomeUnknown

__all__ = [
    "ClientSettings",
    "Draft",
    "Follower",
    "Lock",
    "LockConflict",
    "NotAppended",
    "OutcomeUnknown",
    "Receipt",
    "SyncWaltzClient",
    "Transaction",
    "TransactionContext",
    "WaltzClient",
]
