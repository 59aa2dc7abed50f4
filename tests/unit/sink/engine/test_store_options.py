"""Options of stores: what pyarrow gets for the names of `deltalake`, and which options are refused because only one of the two would follow them."""

from __future__ import annotations

from datetime import timedelta

import pyarrow.fs as fs
import pytest

from waltz_delta.engine.store_options import azure_options, google_options, refusal_of_storage, s3_options
from waltz_delta.engine.stores import file_system, with_time_limits

KEY = {"AZURE_STORAGE_ACCOUNT_KEY": "a2V5"}
TOKEN = {"AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=x"}
CLIENT = {"AZURE_TENANT_ID": "tenant", "AZURE_CLIENT_ID": "client", "AZURE_CLIENT_SECRET": "secret"}
LEGS = "abfss://lake@acme.dfs.core.windows.net/tables/legs"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*KEY, *TOKEN, *CLIENT, "AZURE_STORAGE_ENDPOINT", "GOOGLE_BASE_URL", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        (KEY, {"account_key": "a2V5"}),
        (KEY | CLIENT | TOKEN, {"account_key": "a2V5"}),
        (CLIENT | TOKEN, {"tenant_id": "tenant", "client_id": "client", "client_secret": "secret"}),
        ({"AZURE_CLIENT_ID": "client"} | TOKEN, {"sas_token": "?sv=1&sig=x"}),
        ({"AZURE_CLIENT_ID": "of a managed identity"}, {}),
        ({"AZURE_STORAGE_SAS_TOKEN": "?sv=1"}, {"sas_token": "?sv=1"}),
    ],
)
def test_of_several_credentials_pyarrow_gets_the_one_that_deltalake_prefers(given: dict[str, str], expected: dict[str, str]) -> None:
    assert azure_options("acme", given) == {"account_name": "acme", **expected}


@pytest.mark.parametrize(
    ("endpoint", "authority", "scheme"),
    [
        ("http://127.0.0.1:10000/acme", "127.0.0.1:10000", "http"),
        ("https://acme.blob.example.com", ".blob.example.com", "https"),
        ("https://acme-proxy.example.com/acme", "acme-proxy.example.com", "https"),
    ],
)
def test_an_endpoint_names_the_account_in_its_path_or_its_host(endpoint: str, authority: str, scheme: str) -> None:
    found = azure_options("acme", {"AZURE_STORAGE_ENDPOINT": endpoint})
    assert {name: value for name, value in found.items() if name.startswith("blob")} == {
        "blob_storage_authority": authority,
        "blob_storage_scheme": scheme,
    }
    assert found["dfs_storage_authority"] == authority


def test_credentials_of_google_come_from_the_environment_alone() -> None:
    assert google_options({"GOOGLE_APPLICATION_CREDENTIALS": "/x"}) == {"retry_time_limit": timedelta(seconds=60)}
    assert google_options({"GOOGLE_BASE_URL": "http://127.0.0.1:4443"}).items() >= {"endpoint_override": "127.0.0.1:4443", "scheme": "http"}.items()


def test_s3_gets_keys_only_together() -> None:
    both = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    assert s3_options(both).items() >= {"access_key": "a", "secret_key": "b"}.items()
    assert "secret_key" not in s3_options({"AWS_SECRET_ACCESS_KEY": "b"})
    assert s3_options({"AWS_ENDPOINT_URL": "http://minio:9000"}).items() >= {"endpoint_override": "minio:9000", "scheme": "http"}.items()


def test_the_path_in_pyarrows_file_system_begins_with_the_container() -> None:
    files, root = file_system(f"{LEGS}/", KEY)
    assert (type(files), root) == (fs.AzureFileSystem, "lake/tables/legs")
    files, root = file_system("gs://lake/tables/legs", {"GOOGLE_BASE_URL": "http://127.0.0.1:1"})
    assert (type(files), root) == (fs.GcsFileSystem, "lake/tables/legs")


def test_an_option_goes_before_the_environment_and_an_empty_one_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "ZW52")
    of_environment, _ = file_system(LEGS, {"azure_storage_account_key": ""})
    given, _ = file_system(LEGS, {"azure_storage_account_key": "a2V5"})
    assert of_environment.equals(fs.AzureFileSystem(account_name="acme", account_key="ZW52"))
    assert given.equals(fs.AzureFileSystem(account_name="acme", account_key="a2V5"))


def test_options_are_named_in_any_case_and_have_time_limits() -> None:
    given = with_time_limits(LEGS, {"azure_storage_account_key": "a2V5", "AZURE_ALLOW_HTTP": "true", "timeout": "5s"})
    assert (given["timeout"], given["retry_timeout"]) == ("5s", "60s")
    assert refusal_of_storage("abfss", LEGS, given) is None


@pytest.mark.parametrize(
    ("scheme", "location", "option"),
    [
        ("abfss", LEGS, "AZURE_STORAGE_TOKEN"),
        ("abfss", LEGS, "AZURE_STORAGE_USE_EMULATOR"),
        ("abfss", LEGS, "AWS_REGION"),
        ("gs", "gs://lake/legs", "GOOGLE_SERVICE_ACCOUNT"),
        ("gs", "gs://lake/legs", "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_an_option_that_only_one_library_follows_is_refused(scheme: str, location: str, option: str) -> None:
    assert option in str(refusal_of_storage(scheme, location, {option.lower(): "x"}))
    assert refusal_of_storage("s3a", "s3a://lake/legs", {option: "x"}) is None, "as before"


def test_an_account_that_is_not_the_paths_is_refused() -> None:
    assert refusal_of_storage("abfss", LEGS, {"AZURE_STORAGE_ACCOUNT_NAME": "acme"}) is None
    assert "account acme" in str(refusal_of_storage("abfss", LEGS, {"AZURE_STORAGE_ACCOUNT_NAME": "other"}))
