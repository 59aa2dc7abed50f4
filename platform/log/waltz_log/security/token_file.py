"""A client's token, in a file that another program renews."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from waltz_log.errors import InvalidSetting
from waltz_log.loggers import get_logger
from waltz_log.security.changing_file import ChangingFile
from waltz_log.untrusted_files import TOKEN

__all__ = ["TokenFile"]

log = get_logger(__name__)

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""RFC 6750, section 2.1."""


class TokenFile:
    """Read again when the file changes. A file that holds no token, as while it is written, changes nothing."""

    def __init__(self, path: Path) -> None:
        self._file = ChangingFile(path, TOKEN)
        self._token = ""

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The metadata of one call. Raises `InvalidSetting` if there is no token at all."""
        try:
            data = self._file.changed()
            if data is not None:
                self._token = _parsed(data)
        except (OSError, ValueError) as error:
            if not self._token:
                raise InvalidSetting(name="tls.token", reason=f"{self._file.path} holds no token: {error}", nearest=None) from None
            log.warning("token file not read, the previous token stays in use", reason=str(error))
        return (("authorization", f"Bearer {self._token}"),)


def _parsed(data: bytes) -> str:
    text = data.decode("ascii").strip()
    if not _TOKEN.fullmatch(text):
        raise ValueError("it is empty, or has characters that no token has")
    return text
