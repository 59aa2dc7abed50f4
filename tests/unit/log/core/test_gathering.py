from __future__ import annotations

from waltz_log.core.gathering import gathered


def test_partitions_of_all_workers_are_those_of_the_node_in_order() -> None:
    one = {"partitions": {"0": {"appended": 3}, "10": {"appended": 1}}}
    other = {"partitions": {"2": {"appended": 5}}}
    assert list(gathered([one, other])["partitions"].items()) == [("0", {"appended": 3}), ("2", {"appended": 5}), ("10", {"appended": 1})]
    lists = [{"partitions": [{"partition": 0}, {"partition": 3}]}, {"partitions": [{"partition": 1}]}]
    assert gathered(lists)["partitions"] == [{"partition": 0}, {"partition": 1}, {"partition": 3}]


def test_counts_add_up_and_what_is_of_the_whole_node_is_told_once() -> None:
    one = {"server_id": 4, "start": 7, "disk_free_bytes": 100, "open_files": 3, "caches": {"frames": {"bytes": 1, "bytes_max": 10}}}
    other = {"server_id": 4, "start": 7, "disk_free_bytes": 90, "open_files": 2, "caches": {"frames": {"bytes": 2, "bytes_max": 10}}}
    assert gathered([one, other]) == {
        "server_id": 4,
        "start": 7,
        "disk_free_bytes": 100,
        "open_files": 5,
        "caches": {"frames": {"bytes": 3, "bytes_max": 20}},
    }


def test_the_worst_state_holds_and_one_that_says_yes_is_enough() -> None:
    assert gathered([{"space": "ample"}, {"space": "refusing"}, {"space": "low"}]) == {"space": "refusing"}
    assert gathered([{"manager": False}, {"manager": True}]) == {"manager": True}


def test_what_one_worker_alone_tells_is_kept_and_nothing_is_made_up() -> None:
    assert gathered([{"scrub": None, "stopped": {}}, {"scrub": {"passes": 2}, "stopped": {"3": "rot"}}]) == {
        "scrub": {"passes": 2},
        "stopped": {"3": "rot"},
    }
    assert gathered([{"scrub": {"passes": 2}}, {"scrub": None}]) == {"scrub": {"passes": 2}}
    assert gathered([{"name": "storage-0"}, {"name": "storage-0"}]) == {"name": "storage-0"}
    assert gathered([]) == {}


def test_what_workers_told_is_not_changed() -> None:
    one = {"partitions": {"0": {"appended": 1}}, "list": [1]}
    gathered([one, {"partitions": {"1": {"appended": 2}}, "list": [2]}])
    assert one == {"partitions": {"0": {"appended": 1}}, "list": [1]}
