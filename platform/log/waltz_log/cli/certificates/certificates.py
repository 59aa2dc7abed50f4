"""`waltz certificate create`: a development authority in a directory, and certificates that it signs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from waltz_log.cli.printing import print_result
from waltz_log.errors import InvalidSetting
from waltz_log.exit_codes import OK
from waltz_log.extras import explain_missing
from waltz_log.security.identity import Role

__all__ = ["create"]

KINDS: Final = [*(str(each) for each in Role), "zookeeper"]
"""What a certificate can be for."""


def create(directory: Path, names: Sequence[str], *, hosts: Sequence[str] | None, days: float, serve: bool, output: str = "table") -> int:
    """Prints the files. Raises `InvalidSetting` for a name that is not ROLE/NAME, before anything is written."""
    wanted = [_parse(name) for name in names]
    with explain_missing("`waltz certificate`", "server"):
        from waltz_log.security.authority import LOCAL_HOSTS, DevelopmentAuthority

    authority = DevelopmentAuthority(directory)
    lines, made = [f"authorities  {authority.certificate}"], []
    for role, name in wanted:
        issued = authority.issue(role, name, hosts=tuple(hosts or LOCAL_HOSTS), days=days, serve=serve or None)
        lines += [f"certificate  {issued.certificate}", f"key          {issued.key}"]
        made.append({"role": role, "name": name, "certificate": str(issued.certificate), "key": str(issued.key)})
    print_result({"authorities": str(authority.certificate), "certificates": made}, lines, output)
    return OK


def _parse(text: str) -> tuple[str, str]:
    role, _, name = text.partition("/")
    if role not in KINDS:
        raise InvalidSetting.unknown(role, KINDS, what="role")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise InvalidSetting(name=text, reason="must be ROLE/NAME, with a name of 1 to 64 letters, digits and . _ -", nearest=None)
    return role, name
