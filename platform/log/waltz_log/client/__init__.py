"""The client of the log. `__all__` lists what applications use.

The outcomes of an append that are not a receipt are here too; all other errors are in `waltz_log.errors`.

Importing it brings neither numpy nor Spark nor Arrow. The names of the outbox, which imports the client, are loaded at their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any  # Any: names that are imported on first use

from waltz_log.client.append.bulk_columns import BulkColumns
from waltz_log.client.append.bulk_receipt import Appended, BulkReceipt, NotInLog
from waltz_log.client.append.unacknowledged import Unacknowledged
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.client import WaltzClient
from waltz_log.client.feed.subscribers import Subscriber, Subscribers, SyncSubscribers
from waltz_log.client.sync import SyncWaltzClient
from waltz_log.client.sync_topic import SyncTopicHandle
from waltz_log.client.topics.topic import TopicHandle, TopicTransaction
from waltz_log.client.topics.topic_bulk import TopicBulkReceipt
from waltz_log.client.topics.topic_records import KeyedDraft, TopicRecord
from waltz_log.client.transactions.context import Application, Context
from waltz_log.client.transactions.follow import Follower
from waltz_log.client.transactions.transaction import Draft, Lock, Receipt, Transaction
from waltz_log.client.transactions.transactional import TransactionContext
from waltz_log.core.status.client_statistics import ClientPartitionStatistics, ClientStatistics
from waltz_log.errors import LockConflict, NotAppended, OutcomeUnknown

if TYPE_CHECKING:
    from waltz_log.outbox.blocking import SyncIntentReceipt, SyncOutbox
    from waltz_log.outbox.calls import GiveUp
    from waltz_log.outbox.intent import Intent
    from waltz_log.outbox.ledger import DeadLetter, Outcome
    from waltz_log.outbox.outbox import Outbox
    from waltz_log.outbox.receipt import IntentReceipt
    from waltz_log.outbox.settings import OutboxSettings
    from waltz_log.outbox.statistics import OutboxStatistics

__all__ = [
    "Appended",
    "Application",
    "BulkColumns",
    "BulkReceipt",
    "ClientPartitionStatistics",
    "ClientSettings",
    "ClientStatistics",
    "Context",
    "DeadLetter",
    "Draft",
    "Follower",
    "GiveUp",
    "Intent",
    "IntentReceipt",
    "KeyedDraft",
    "Lock",
    "LockConflict",
    "NotAppended",
    "NotInLog",
    "Outbox",
    "OutboxSettings",
    "OutboxStatistics",
    "Outcome",
    "OutcomeUnknown",
    "Receipt",
    "Subscriber",
    "Subscribers",
    "SyncIntentReceipt",
    "SyncOutbox",
    "SyncSubscribers",
    "SyncTopicHandle",
    "SyncWaltzClient",
    "TopicBulkReceipt",
    "TopicHandle",
    "TopicRecord",
    "TopicTransaction",
    "Transaction",
    "TransactionContext",
    "Unacknowledged",
    "WaltzClient",
]

_OF_THE_OUTBOX = {
    "DeadLetter": "waltz_log.outbox.ledger",
    "GiveUp": "waltz_log.outbox.calls",
    "Intent": "waltz_log.outbox.intent",
    "IntentReceipt": "waltz_log.outbox.receipt",
    "Outbox": "waltz_log.outbox.outbox",
    "OutboxSettings": "waltz_log.outbox.settings",
    "OutboxStatistics": "waltz_log.outbox.statistics",
    "Outcome": "waltz_log.outbox.ledger",
    "SyncIntentReceipt": "waltz_log.outbox.blocking",
    "SyncOutbox": "waltz_log.outbox.blocking",
}


def __getattr__(name: str) -> Any:
    if name not in _OF_THE_OUTBOX:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_OF_THE_OUTBOX[name]), name)
