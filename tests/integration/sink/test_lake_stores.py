"""The Arrow engine on Azure and Google, each with an emulator: drivers that die, writers at once, compaction, VACUUM, and what is refused.

Marked `install`: npm fetches Azurite, and Go builds `fake-gcs-server`, unless they are on the path.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pyarrow.fs as fs
import pytest

from tests.unit.sink.engine.arrow_tables import MARK, append, begin, commit, files, opened
from verification.lake.emulators import ACCOUNT, EMULATORS, KEY, emulated, google_place, lacking
from verification.lake.place import Place
from verification.lake.races import race
from waltz_delta.engine import store_probe
from waltz_delta.engine.arrow_table import PROBE, ArrowTable
from waltz_delta.engine.arrow_transaction import Overtaken
from waltz_delta.engine.compaction import Compacted, compact
from waltz_delta.engine.store_probe import require_conditional_put
from waltz_delta.engine.stores import file_system
from waltz_delta.engine.vacuum import Vacuumed, vacuum
from waltz_delta.errors import StoreUnavailable, UnsafeTable

pytestmark = [pytest.mark.install, pytest.mark.timeout(900)]
WRITERS = 8
BRIEFLY = {"max_retries": "1", "retry_timeout": "2s", "timeout": "5s", "connect_timeout": "2s"}


@pytest.fixture(scope="module", params=EMULATORS)
def store(request: pytest.FixtureRequest) -> Iterator[Place]:
    if missing := lacking(request.param):
        pytest.skip(missing)
    with emulated(request.param) as place:
        yield place


@pytest.fixture(scope="module")
def azure() -> Iterator[Place]:
    if missing := lacking("azure"):
        pytest.skip(missing)
    with emulated("azure") as place:
        yield place


def ids(table: ArrowTable) -> list[int]:
    found = table.reopen()
    assert found is not None
    return sorted(found.delta_table.to_pyarrow_table()["id"].to_pylist())


@pytest.mark.parametrize(("mode", "gap", "fault"), [("append", "put", "pause"), ("append", "landed", "kill"), ("upsert", "put", "kill")])
def test_the_table_is_what_the_log_says(store: Place, mode: str, gap: str, fault: str) -> None:
    assert race(store, mode, 2, gap=gap, fault=fault) == []


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_two_drivers_that_begin_together_land_each_transaction_once(store: Place, mode: str) -> None:
    assert race(store, mode, 1) == []


def test_a_planted_bug_is_noticed(store: Place) -> None:
    found = race(store, "append", 2, "mark not compared", gap="written", fault="pause")
    assert any("2 times: transaction_id=" in each for each in found)


def test_of_eight_writers_of_one_version_one_commits(store: Place) -> None:
    location, storage = f"{store.location}/eight", store.storage
    table = opened(location, storage)
    append(table, 0, 1)
    for turn in range(1, 4):
        start, won = threading.Barrier(WRITERS), list[int]()

        def write(first: int, start: threading.Barrier = start, won: list[int] = won) -> None:
            own = opened(location, storage)
            transaction, written = begin(own), files(own, first, first + 1)
            start.wait(60)
            try:
                won.append(commit(transaction, written, first))
            except Overtaken:
                won.append(-1)

        threads = [threading.Thread(target=write, args=(turn,)) for _ in range(WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert sorted(won) == [*[-1] * (WRITERS - 1), turn]
    assert ids(table) == [0, 1, 2, 3]


def test_files_are_compacted_and_cleaned_up(store: Place) -> None:
    location, storage = f"{store.location}/compacted", store.storage
    table = opened(location, storage)
    assert table.is_table() is False
    for first in range(0, 40, 10):
        append(table, first, first + 10)
    assert table.is_table()
    assert table.count() == 40
    assert compact(table, 1 << 20) == Compacted(removed=4, added=1)
    assert vacuum(table, 0.0, [], dry_run=True).removed == 4
    assert vacuum(table, 0.0, [], dry_run=False) == Vacuumed(4, 0)
    found, root = file_system(location, storage)
    assert sum(each.path.endswith(".parquet") for each in found.get_file_info(fs.FileSelector(root))) == 1
    assert vacuum(table, 0.0, [], dry_run=False) == Vacuumed(4, 0), "the log names files that are gone by now"
    assert ids(table) == list(range(40))
    append(table, 40, 45)
    assert begin(opened(location, storage)).version(MARK) == 44


def test_a_checkpoint_is_read_and_the_log_goes_on_behind_it(store: Place) -> None:
    location, storage = f"{store.location}/checkpoint", store.storage
    table = opened(location, storage)
    for first in range(3):
        append(table, first, first + 1)
    found = table.open()
    assert found is not None
    table.write_checkpoint(found.table_id)
    assert opened(location, storage).last_checkpoint() == 2
    for first in range(3, 6):
        append(opened(location, storage), first, first + 1)
    assert ids(table) == list(range(6))


def test_the_store_passes_the_probe_and_nothing_of_it_stays(store: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_probe, "_proven", set())
    location = f"{store.location}/probed"
    append(opened(location, store.storage), 0, 1)
    require_conditional_put(location, location, store.storage)
    found, root = file_system(f"{location}/{PROBE}", store.storage)
    assert [each.path for each in found.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True)) if each.is_file] == []


def test_a_container_that_is_not_there_ends_with_one_sentence(store: Place) -> None:
    location = store.location.replace("//lake", "//elsewhere")
    table = opened(location, {**store.storage, **BRIEFLY})
    attempts: list[Callable[[], object]] = [table.is_table, lambda: append(table, 0, 1)]
    for attempt in attempts:
        with pytest.raises(StoreUnavailable, match=r"ContainerNotFound|404") as failed:
            attempt()
        assert "\n" not in str(failed.value)


def test_a_store_that_ignores_conditions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    if missing := lacking("google"):
        pytest.skip(missing)
    monkeypatch.setattr(store_probe, "_proven", set())
    with google_place(conditional=False) as place, pytest.raises(UnsafeTable, match="ignores the condition"):
        require_conditional_put(place.location, place.location, place.storage)


@pytest.mark.parametrize("begins", ["", "?"])
def test_a_signature_and_an_endpoint_of_the_environment_are_followed_by_both_libraries(
    azure: Place, monkeypatch: pytest.MonkeyPatch, begins: str
) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_CLIENT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", azure.storage["AZURE_STORAGE_ENDPOINT"])
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", begins + signature(KEY))
    location = f"{azure.location}/signed{len(begins)}"
    table = opened(location, {"AZURE_ALLOW_HTTP": "true"})
    assert [append(table, first, first + 2) for first in (0, 2)] == [0, 1]
    assert table.count() == 4
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", begins + signature("bm90IGl0"))
    with pytest.raises(StoreUnavailable, match="AuthorizationFailure") as failed:
        opened(location, {"AZURE_ALLOW_HTTP": "true", **BRIEFLY}).open()
    assert "sig=" not in str(failed.value)


def signature(key: str) -> str:
    """A shared access signature of the account, for an hour (Azure's "Create an account SAS")."""
    until = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    fields = {"sv": "2020-08-04", "ss": "b", "srt": "sco", "sp": "rwdlac", "se": until, "spr": "https,http"}
    text = "\n".join([ACCOUNT, fields["sp"], fields["ss"], fields["srt"], "", until, "", fields["spr"], fields["sv"], ""])
    signed = base64.b64encode(hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()).decode()
    return "&".join(f"{name}={quote(value, safe='')}" for name, value in {**fields, "sig": signed}.items())
