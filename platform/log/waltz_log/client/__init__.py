"""The client of the log. What applications use stands in `__all__`.

The outcomes of an append that are not a receipt stand here too; all other errors are in `waltz_log.errors`.

Importing it brings neither numpy nor Spark nor Arrow.
"""

from waltz_log.client.append.bulk import Appended, BulkReceipt, NotInLog
from waltz_log.client.append.pending import Unacknowledged
from waltz_log.client.base.settings import ClientSettings
from waltz_log.client.client import WaltzClient
from waltz_log.client.feed.subscribers import Subscriber, Subscribers, SyncSubscribers
from waltz_log.client.outbox.blocking import SyncIntentReceipt, SyncOutbox
from waltz_log.client.outbox.calls import GiveUp
from waltz_log.client.outbox.intent import Intent
from waltz_log.client.outbox.ledger import DeadLetter, Outcome
from waltz_log.client.outbox.outbox import Outbox
from waltz_log.client.outbox.receipt import IntentReceipt
from waltz_log.client.outbox.settings import OutboxSettings
from waltz_log.client.outbox.statistics import OutboxStatistics
from waltz_log.client.sync import SyncWaltzClient
from waltz_log.client.sync_topic import SyncTopicHandle
from waltz_log.client.topics.topic import TopicHandle, TopicTransaction
from waltz_log.client.topics.topic_bulk import TopicBulkReceipt
from waltz_log.client.topics.topic_records import KeyedDraft, TopicRecord
from waltz_log.client.transactions.context import Application, Context
from waltz_log.client.transactions.follow import Follower
from waltz_log.client.transactions.transaction import Draft, Lock, Receipt, Transaction
from waltz_log.client.transactions.transactional import TransactionContext
from waltz_log.errors import LockConflict, NotAppended, OutcomeUnknown

__all__ = [
    "Appended",
    "Application",
    "BulkReceipt",
    "ClientSettings",
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
