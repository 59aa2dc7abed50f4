"""The log server."""

from waltz_log.server.server import LogServer
from waltz_log.server.settings import ServerSettings

__all__ = ["LogServer", "ServerSettings"]
