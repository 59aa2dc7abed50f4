"""Options of object stores: what both libraries understand, and the names that pyarrow has for those of `deltalake`. Pure.

`deltalake` has several names for an option, ignores one that it does not know, and knows ways to authenticate that pyarrow has not. An option that
only one of the two follows would write the log with other rights, or at another place, than the files. So on Azure and Google this module lists the
options, and `refusal_of_storage` refuses all others. Credentials are best left to the environment, which each library reads by its own rules.

Source: pyarrow's `AzureFileSystem`, `GcsFileSystem` and `S3FileSystem`; `object_store` 0.13 (`AzureConfigKey`, `GoogleConfigKey`, `ClientConfigKey`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

__all__ = ["AZURE", "ENDPOINTS", "GOOGLE", "S3", "TIME_LIMITS", "azure_options", "google_options", "refusal_of_storage", "s3_options"]

S3: Final = frozenset({"s3", "s3a", "s3n"})
AZURE: Final = frozenset({"abfs", "abfss"})
GOOGLE: Final = frozenset({"gs"})

CONNECT_TIMEOUT_S: Final = 10.0
REQUEST_TIMEOUT_S: Final = 60.0
"""Limits of one request of a task. A part of a file has 10 MB."""

TIME_LIMITS: Final[Mapping[str, str]] = {"connect_timeout": "10s", "timeout": "30s", "max_retries": "5", "retry_timeout": "60s"}
"""Limits of a request of `deltalake`, and of all of its repetitions."""

_OF_REQUESTS: Final = frozenset({*(name.upper() for name in TIME_LIMITS), "ALLOW_HTTP"})
_ACCOUNT: Final = "AZURE_STORAGE_ACCOUNT_NAME"
_OF_AZURE: Final = frozenset(
    {
        _ACCOUNT,
        "AZURE_ALLOW_HTTP",
        "AZURE_CLIENT_ID",
        "AZURE_CLIENT_SECRET",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ENDPOINT",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_TENANT_ID",
    }
)
_OF_GOOGLE: Final = frozenset({"GOOGLE_BASE_URL"})
ENDPOINTS: Final = frozenset({"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL"})
"""Options that name the address of a store."""


def refusal_of_storage(scheme: str, location: str, storage: Mapping[str, str]) -> str | None:
    """Why the Arrow engine does not follow these options of a store; None if it does."""
    if scheme not in AZURE | GOOGLE:
        return None
    known = _OF_REQUESTS | (_OF_AZURE if scheme in AZURE else _OF_GOOGLE)
    given = {name.upper(): value for name, value in storage.items()}
    if other := sorted(set(given) - known):
        return f"pyarrow and deltalake would follow the storage option {other[0]} differently"
    account = _account(location)
    if scheme in AZURE and given.get(_ACCOUNT, account) != account:
        return f"the path is of the account {account}, and {_ACCOUNT} is {given[_ACCOUNT]}"
    return None


def s3_options(given: Mapping[str, str]) -> dict[str, object]:
    """Arguments of `S3FileSystem`. `given`: by names in capitals."""
    endpoint = given.get("AWS_ENDPOINT_URL") or given.get("AWS_ENDPOINT_URL_S3")
    where = {} if endpoint is None else {"endpoint_override": urlsplit(endpoint).netloc, "scheme": urlsplit(endpoint).scheme}
    keys = {"access_key": "AWS_ACCESS_KEY_ID", "secret_key": "AWS_SECRET_ACCESS_KEY", "session_token": "AWS_SESSION_TOKEN"}
    found = {name: given[key] for name, key in keys.items() if key in given}
    return {
        "region": given.get("AWS_REGION") or given.get("AWS_DEFAULT_REGION"),
        "connect_timeout": CONNECT_TIMEOUT_S,
        "request_timeout": REQUEST_TIMEOUT_S,
        "allow_bucket_creation": False,
        **where,
        **(found if "access_key" in found else {}),
    }


def azure_options(account: str, given: Mapping[str, str]) -> dict[str, object]:
    """Arguments of `AzureFileSystem`. Of several credentials the one that `deltalake` prefers; with none, pyarrow asks the environment: a workload's
    or a managed identity, or Azure's command line."""
    credentials: dict[str, object] = {}
    client = {"tenant_id": "AZURE_TENANT_ID", "client_id": "AZURE_CLIENT_ID", "client_secret": "AZURE_CLIENT_SECRET"}
    if key := given.get("AZURE_STORAGE_ACCOUNT_KEY"):
        credentials = {"account_key": key}
    elif all(name in given for name in client.values()):
        credentials = {argument: given[name] for argument, name in client.items()}
    elif token := given.get("AZURE_STORAGE_SAS_TOKEN"):
        credentials = {"sas_token": f"?{token.removeprefix('?')}"}
    return {"account_name": account, **credentials, **_azure_place(account, given.get("AZURE_STORAGE_ENDPOINT"))}


def google_options(given: Mapping[str, str]) -> dict[str, object]:
    """Arguments of `GcsFileSystem`. Both libraries read credentials from the environment alone, by the rules of Google's clients."""
    endpoint = given.get("GOOGLE_BASE_URL")
    where = {} if endpoint is None else {"endpoint_override": urlsplit(endpoint).netloc, "scheme": urlsplit(endpoint).scheme}
    return {"retry_time_limit": timedelta(seconds=REQUEST_TIMEOUT_S), **where}


def _azure_place(account: str, endpoint: str | None) -> dict[str, object]:
    """An endpoint names the account in its path, as an emulator's, or as the first part of its host. pyarrow puts it before an authority that begins
    with a point, and behind any other."""
    if endpoint is None:
        return {}
    url = urlsplit(endpoint)
    authority = url.netloc.removeprefix(account) if url.netloc.startswith(f"{account}.") else url.netloc
    return {f"{service}_storage_{part}": value for service in ("blob", "dfs") for part, value in (("authority", authority), ("scheme", url.scheme))}


def _account(location: str) -> str:
    return urlsplit(location).netloc.partition("@")[2].partition(".")[0]
