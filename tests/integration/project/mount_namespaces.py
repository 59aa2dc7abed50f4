"""What tests need that work in a mount namespace: root, programs of Debian, and a machine that allows it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache

import pytest

__all__ = ["needs"]


@cache
def _confined() -> bool:
    """Whether this machine refuses mount namespaces, as some containers do."""
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0


def needs(packages: Sequence[str], not_root: str) -> list[pytest.MarkDecorator]:
    """`packages`: of Debian, each with a program of its name. `not_root`: the reason of the skip without root."""
    missing = [name for name in (*packages, "unshare") if shutil.which(name) is None]
    root = os.geteuid() == 0
    return [
        pytest.mark.skipif(not root, reason=not_root),
        pytest.mark.skipif(bool(missing), reason=f"no {', '.join(missing)} (Debian: apt-get install {' '.join(packages)})"),
        pytest.mark.skipif(root and not missing and _confined(), reason="this machine allows root no mount namespaces"),
    ]
