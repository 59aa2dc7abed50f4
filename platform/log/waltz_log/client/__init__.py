"""The client of the log. What applications use stands in `__all__`.

Importing it brings neither numpy nor Spark nor Arrow.
"""

from waltz_log.client.client import WaltzClient
from waltz_log.client.follow import Follower
from waltz_log.client.settings import ClientSettings
from waltz_log.client.sync import SyncWaltzClient
from waltz_log.client.transaction import Draft, Lock, Receipt, Transaction
from waltz_log.client.transactional import TransactionContext

__all__ = [
    "ClientSettings",
    "Draft",
    "Follower",
    "Lock",
    "Receipt",
    "SyncWaltzClient",
    "Transaction",
    "TransactionContext",
    "WaltzClient",
]
