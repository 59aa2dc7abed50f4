"""Which extra of `waltz-platform` brings a package that the base install leaves out, and the one sentence that says so.

The base install has what an application needs: client, outbox and journal. Imports the standard library alone, so that it can explain any missing
package. A test compares the table with pyproject.toml.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final

__all__ = ["EXTRAS", "explain_missing", "install_advice", "missing_package"]

EXTRAS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cryptography": "server",
        "delta": "spark",
        "deltalake": "spark",
        "fastavro": "spark",
        "grpc_health": "server",
        "h11": "console",
        "jinja2": "console",
        "jwt": "server",
        "kazoo": "server",
        "msgspec": "spark",
        "numpy": "server",
        "opentelemetry": "tracing",
        "prometheus_client": "metrics",
        "py4j": "spark",
        "pyarrow": "spark",
        "pyspark": "spark",
        "rich": "server",
        "sqlalchemy": "sql",
        "starlette": "console",
        "typer": "server",
        "uvicorn": "console",
        "uvloop": "server",
    }
)
"""The extra to install for a package that is imported by this name. Of what `server` brings, `spark` brings numpy, rich and typer too."""


def install_advice(extra: str) -> str:
    """The remedy. It is no command of pip, because the wheel is not on a package index (docs/guides/install.md)."""
    return f"install the extra {extra} of waltz-platform"


def missing_package(error: ImportError, *, extra: str | None = None) -> str | None:
    """What is missing and how to install it; None if no extra brings it. `extra`: install this one instead of the table's."""
    package = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or package not in EXTRAS:
        return None
    return f"the package {package}, which is not installed: {install_advice(extra or EXTRAS[package])}"


@contextmanager
def explain_missing(feature: str, extra: str) -> Iterator[None]:
    """Around imports: a package that an extra brings is reported with the feature that needs it. Raises `ModuleNotFoundError`."""
    try:
        yield
    except ModuleNotFoundError as error:
        reason = missing_package(error, extra=extra)
        if reason is None:
            raise
        raise ModuleNotFoundError(f"{feature} needs {reason}", name=error.name, path=error.path) from None
