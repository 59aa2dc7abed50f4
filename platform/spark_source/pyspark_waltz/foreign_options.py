"""Options of other sources that users may expect here: what to use instead. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from waltz_log.errors import InvalidSetting

__all__ = ["refuse_foreign"]


class Instead(NamedTuple):
    """`nearest`: the option to use, None if there is none."""

    reason: str
    nearest: str | None


_NO_SERVERS: Final = Instead("is not an option: give the addresses of log servers, host:port[,host:port]", "cluster")
_KAFKA: Final = "is an option of Kafka's source"

_FOREIGN: Final = {
    "path": Instead("is not an option: the source has no path; give the addresses of log servers, host:port[,host:port]", "cluster"),
    "bootstrap": _NO_SERVERS,
    "bootstrap.servers": _NO_SERVERS,
    "kafka.bootstrap.servers": _NO_SERVERS,
    "subscribe": Instead(f"{_KAFKA}: without topic or topicPattern the whole log is read", "topic"),
    "subscribepattern": Instead(f"{_KAFKA}: without topic or topicPattern the whole log is read", "topicPattern"),
    "assign": Instead(f"{_KAFKA}: name the log partitions as 0-3,7", "partitions"),
    "startingoffsets": Instead(f'{_KAFKA}: positions are transaction ids, {{"0": 17}}', "startingTransactionIds"),
    "endingoffsets": Instead(f'{_KAFKA}: positions are transaction ids, {{"0": 17}}', "endingTransactionIds"),
    "startingoffsetsbytimestamp": Instead(_KAFKA, "startingTransactionIdsByTimestamp"),
    "endingoffsetsbytimestamp": Instead(_KAFKA, "endingTransactionIdsByTimestamp"),
    "startingoffsetsbytimestampstrategy": Instead(_KAFKA, "startingTransactionIdsByTimestampStrategy"),
    "maxoffsetspertrigger": Instead(_KAFKA, "maxTransactionsPerTrigger"),
    "minoffsetspertrigger": Instead(_KAFKA, "minTransactionsPerTrigger"),
    "maxoffsetsperpartition": Instead(_KAFKA, "maxRecordsPerPartition"),
    "kafkaconsumer.polltimeoutms": Instead(_KAFKA, "fetchTimeoutMs"),
    "fetchoffset.numretries": Instead(f"{_KAFKA}: attempts are limited by time", "fetchTimeoutMs"),
    "fetchoffset.retryintervalms": Instead(f"{_KAFKA}: attempts are limited by time", "fetchTimeoutMs"),
    "includeheaders": Instead(f"{_KAFKA}: a transaction has one header, a number, in the column header", None),
    "groupidprefix": Instead(f"{_KAFKA}: there are no consumer groups; the checkpoint holds the positions of a query", None),
    "kafka.group.id": Instead(f"{_KAFKA}: there are no consumer groups; the checkpoint holds the positions of a query", None),
    "startingoffset": Instead("is not an option: positions are transaction ids", "startingTransactionIds"),
    "endingoffset": Instead("is not an option: positions are transaction ids", "endingTransactionIds"),
}
_TLS: Final = "TLS is set by the environment variables WALTZ_TLS_CERTIFICATE, WALTZ_TLS_KEY and WALTZ_TLS_AUTHORITIES of driver and executors"


def refuse_foreign(key: str) -> None:
    """Raises `InvalidSetting` for such a name; returns for any other."""
    lower = key.lower()
    if lower in _FOREIGN:
        raise InvalidSetting(name=key, reason=_FOREIGN[lower].reason, nearest=_FOREIGN[lower].nearest)
    if re.match(r"(kafka\.)?(tls|ssl|sasl|security)(\.|_|$)", lower):
        raise InvalidSetting(name=key, reason=_TLS, nearest=None)
    if lower.startswith("kafka."):
        raise InvalidSetting(name=key, reason=f"{_KAFKA}: the source has no Kafka client to pass it to", nearest=None)
