"""Each fault or trap of `deltalake` 1.6 that the Arrow engine was built around has tests, and there is one of each name.

A fault is one that was measured, or read in the library's issues. The tests show what the engine does about it, or that the library does it right.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[3]

FAULTS: dict[str, tuple[str, ...]] = {
    "statistics of long decimals are rounded to doubles": (
        "test_what_has_no_exact_form_in_json_has_no_bounds_and_counts_its_nulls",
        "test_floats_and_long_decimals_have_no_bounds_that_hide_rows",
    ),
    "two compactions at once double all rows": (
        "test_races_of_two_compactors_beside_an_appender_keep_the_rows_of_every_version",
        "test_the_product_neither_compacts_nor_deletes_by_deltalake",
    ),
    "a compaction beside a MERGE": ("test_a_compaction_beside_a_merge_loses_and_repeats_no_row",),
    "a MERGE that changes nothing commits no mark": ("test_a_merge_that_changes_no_row_still_moves_the_mark",),
    "a fresh snapshot accepts the same mark, and a lower one": ("test_a_mark_that_another_commit_changed_is_compared_at_the_commit",),
    "a mark with a date expires": ("test_rows_and_marks_are_one_commit_and_the_mark_never_expires",),
    "marks of one engine are read by the other": ("test_a_table_goes_on_mark_for_mark_from_one_engine_to_the_other",),
    "the answer to a commit is lost": (
        "test_an_error_means_that_the_outcome_is_unknown",
        "test_an_unanswered_creation_is_found_too",
        "test_a_merge_whose_answer_is_lost_is_found_by_its_own_id",
    ),
    "a store answers 409 or 500 before it stores": ("test_a_fault_of_the_store_repeats_the_request_and_neither_loses_nor_repeats_rows",),
    "a store ignores If-None-Match": (
        "test_a_store_that_ignores_conditions_is_refused_before_anything_is_written",
        "test_the_condition_of_the_put_is_what_keeps_the_rows_of_two_drivers",
    ),
    "an interrupt is raised after the commit": (
        "test_a_driver_that_is_interrupted_in_its_commit_decides_it_again",
        "test_signals_at_any_moment_of_a_batch_neither_lose_nor_repeat_rows",
    ),
    "an append fails beside a DELETE or a MERGE": ("test_a_commit_of_another_kind_in_between_does_not_lose_the_batch",),
    "a file that is listed twice in one commit doubles its rows": ("test_a_file_that_is_listed_twice_in_one_commit_is_refused",),
    "the columns of a file are not compared with those of the table": (
        "test_rows_that_do_not_fit_the_table_are_refused_with_one_sentence",
        "test_a_commit_that_was_decided_before_a_change_of_the_table_is_not_made",
    ),
    "constraints are not checked": ("test_a_row_that_the_table_forbids_is_refused_and_a_rule_of_the_table_is_left_to_spark",),
    "a wrong size of a file is accepted": ("test_a_file_has_the_rows_its_size_after_closing_and_a_name_of_its_attempt",),
    "statistics that are no strict JSON make a table unreadable": ("test_bounds_are_exact_at_the_edges_of_each_type",),
    "bounds of floats omit NaN": ("test_floats_have_no_bounds_in_the_file_either_at_any_depth",),
    "timestamps with and without a zone, as values and as keys": (
        "test_filters_at_the_edges_of_every_type_find_the_same_rows_in_every_reader",
        "test_keys_at_the_edges_of_each_type_are_found_again",
    ),
    "keys that are null, or of odd letters": ("test_keys_of_any_text_are_found_again", "test_a_table_is_what_a_dictionary_is_however_the_log_is_cut"),
    "a path that is percent-encoded is misread": (
        "test_a_path_that_deltalake_would_misread_is_left_to_spark",
        "test_each_partition_value_has_a_flat_file_without_the_column",
        "test_a_vacuum_keeps_living_files_of_escaped_paths",
    ),
    "VACUUM removes files that are not committed yet": (
        "test_optimize_vacuum_columns_and_writes_of_users_between_two_batches_change_nothing",
        "test_a_vacuum_removes_what_no_version_needs_and_neither_foreign_nor_fresh_files",
    ),
    "two rows of one key in the source": ("test_the_newest_row_of_each_key_stays_and_the_mark_is_in_the_same_commit",),
    "a MERGE without bounds reads every file": ("test_a_merge_reads_no_file_outside_of_the_range_of_its_keys",),
    "a MERGE rounds a decimal of another scale": ("test_a_decimal_of_another_scale_is_refused_and_one_of_the_same_is_merged_exactly",),
    "types that Spark does not read": ("test_arrow_types_are_those_that_spark_reads_and_paths_are_those_of_parquet",),
    "a feature that is added meanwhile is overlooked": ("test_a_change_between_the_comparison_and_the_put_is_not_overtaken",),
    "features of a table that an append does not follow": ("test_a_feature_that_is_not_listed_is_left_to_spark",),
    "the change feed of an append": ("test_the_change_feed_of_spark_has_each_row_of_an_append_once",),
    "a broken checkpoint is not skipped": (
        "test_a_broken_checkpoint_is_named_and_deleting_it_with_the_hint_helps",
        "test_a_broken_checkpoint_whose_commits_were_cleaned_up_must_be_restored",
    ),
    "a last commit of zero length is opened silently": (
        "test_a_damaged_log_is_refused_with_what_to_do",
        "test_each_kind_of_commit_is_synced_after_the_files_that_it_names",
    ),
    "checkpoints of version 2 and in parts": ("test_a_table_goes_on_from_a_checkpoint_of_another_kind",),
    "a dataset finds no row by a column without bounds": (
        "test_a_filter_on_any_column_finds_its_row",
        "test_filters_at_the_edges_of_every_type_find_the_same_rows_in_every_reader",
        "test_joins_on_keys_at_the_edges_of_every_type_find_each_row_once_in_every_reader",
    ),
    "some calls hold the lock of Python": ("test_the_engine_makes_no_call_that_holds_the_lock_of_python",),
    "use before a fork panics in the child": (
        "test_no_module_of_a_task_imports_deltalake",
        "test_a_process_that_is_forked_from_a_driver_writes_files_and_the_driver_commits_again",
    ),
    "threads with handles of their own": ("test_of_writers_that_decided_from_one_version_exactly_one_commits",),
    "a commit in a directory needs hard links": (
        "test_a_file_system_without_hard_links_is_named_and_asked_again",
        "test_a_file_system_without_hard_links_is_left_to_spark",
    ),
}


def test_each_known_fault_has_tests_that_exist() -> None:
    found = Counter(name for path in TESTS.rglob("test_*.py") for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
    assert len(FAULTS) == 37
    assert {name: found[name] for names in FAULTS.values() for name in names if found[name] != 1} == {}
    assert [fault for fault, names in FAULTS.items() if not names] == []
