"""The log server."""

from waltz_log.server.base.settings import ServerSettings
from waltz_log.server.node.server import LogServer

__all__ = ["LogServer", "ServerSettings"]
