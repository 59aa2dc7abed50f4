"""A local cluster does not start with the settings of other nodes, which would replace those that it gives its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from waltz_log.errors import InvalidRequest
from waltz_log.processes.left_over import refuse_variables_of_nodes
from waltz_log.processes.local_cluster import LocalCluster


@pytest.mark.parametrize("name", ["WALTZ_SERVER_COORDINATOR", "WALTZ_STORAGE_DIRECTORY", "WALTZ_STORAGE_HTTP", "WALTZ_SERVER_TLS"])
def test_settings_of_another_clusters_node_are_refused_before_anything_starts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "elsewhere")
    cluster = LocalCluster(tmp_path / "dev")
    with pytest.raises(InvalidRequest, match=f"{name} is set, and a cluster of this machine decides that for its nodes; unset {name}"):
        cluster.open()
    assert not (tmp_path / "dev").exists()


def test_settings_that_the_cluster_leaves_to_the_user_are_kept() -> None:
    refuse_variables_of_nodes({"WALTZ_SERVER_WORKERS": "2", "WALTZ_STORAGE_DISK_WARN_FREE_BYTES": "1", "WALTZ_CLUSTER": "c"})
