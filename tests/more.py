"""Tests that run with `-m soak` only, because other tests run the same with a smaller world, another store or seed.

`MORE` maps a file to the first characters of test names: `test_x[seaweedfs` selects one parameter of `test_x`. `ALIKE`
says of whole products of parameters which cells are more of the others. A few lines are long tests of one detail that
nothing else tests; only a soak shows their failure. The only test of a lost or doubled row, of a lock's safety, or of a
wrong twin does not belong here. `test_tidy` checks the names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MORE: Mapping[str, tuple[str, ...]] = {
    # Larger worlds of models. Each model runs its smaller ones, and all mutants, by default.
    "model/test_queue.py": (
        "test_each_message_is_put_and_acked_once_without_shared_writes[a producer that dies, a wor",
        "test_each_message_is_put_once_and_acked_once_by_its_claim[one name, two threads",
        "test_each_message_is_put_and_acked_once_without_shared_writes[two workers, lapses",
        "test_each_message_is_put_once_and_acked_once_by_its_claim[two producers, a worker",
        "test_messages_in_segments_are_neither_lost_nor_doubled_at_any_crash[two workers, lapses-1",
        "test_each_message_is_put_and_acked_once_without_shared_writes[heartbeats",
        "test_each_message_is_put_and_acked_once_without_shared_writes[one name",
        "test_each_message_is_put_and_acked_once_without_shared_writes[two producers",
        "test_each_message_is_put_once_and_acked_once_by_its_claim[heartbeats",
        "test_each_message_is_put_once_and_acked_once_by_its_claim[two workers, lapses",
        "test_messages_in_segments_are_neither_lost_nor_doubled_at_any_crash[a producer that dies, a wor",
        "test_messages_in_segments_are_neither_lost_nor_doubled_at_any_crash[two workers that die-64",
        "test_messages_in_segments_are_neither_lost_nor_doubled_at_any_crash[a cleaner-64",
    ),
    "model/test_wal.py": tuple(
        f"test_each_record_exists_once_and_no_slot_is_written_twice[{world}"
        for world in (
            "a leader that is followed seals",
            "a name that is taken",
            "a ring of one",
            "a ring of two, a reader]",
            "a wide ring",
            "one seals, one appends",
            "one leads, one does not",
            "two that seal, in a ring of one",
        )
    ),
    "model/test_contention.py": (
        "test_four_looping_processes_take_turns_for_few_requests[8",
        "test_processes_that_loop_alone_take_turns[3-",
        "test_processes_that_loop_alone_take_turns[8-",
        "test_many_looping_processes",
        "test_simultaneous_starters",
    ),
    "model/test_group_commit_with_faults.py": tuple(
        f"test_every_promise_holds_with_more_faults[{world}"
        for world in ("a JVM writer", "a crash, a holder", "a late request", "a short log")
    ),
    "model/test_promises.py": (
        "test_every_promise_of_publish_holds_without_clock_assumptions[two clients keep the log",
        "test_every_promise_of_publish_holds_without_clock_assumptions[one holds, one combines, and a JVM",
        "test_every_promise_of_publish_holds_without_clock_assumptions[three clients",
        "test_every_promise_of_publish_holds_without_clock_assumptions[one of two keeps the log",
        "test_every_promise_of_publish_holds_without_clock_assumptions[two clients, two transactions each",
        "test_every_promise_of_publish_holds_without_clock_assumptions[one holds, two combine]",
        "test_at_most_one_client_believes_within_the_clock_allowance[equal",
        "test_at_most_one_client_believes_within_the_clock_allowance[the first",
        "test_every_promise_of_publish_holds_without_clock_assumptions[one holds and renews",
        "test_every_promise_of_publish_holds_without_clock_assumptions[two clients, one joins, with renewals",
        "test_every_promise_of_publish_holds_without_clock_assumptions[one holds, one combines, a late write",
    ),
    "model/test_state.py": (
        "test_acknowledged_updates_exist_once_and_no_serial_is_missing[one overtaken",
        "test_acknowledged_updates_exist_once_and_no_serial_is_missing[three clients]",
        "test_acknowledged_updates_exist_once_and_no_serial_is_missing[trimmed",
    ),
    "model/test_election.py": (
        "test_one_leads_and_epochs_rise[three",
        "test_one_leads_and_epochs_rise[of unlike",
        "test_one_leads_and_epochs_rise[two, renewals",
        "test_one_leads_and_epochs_rise[one after",
        "test_one_leads_and_epochs_rise[two, resignations",
    ),
    "model/test_cached.py": (
        "test_read_is_current_since_its_call_and_no_caller_waits_forever[two writers and a rival",
        "test_read_is_current_since_its_call_and_no_caller_waits_forever[three",
        "test_read_is_current_since_its_call_and_no_caller_waits_forever[two callers, two",
        "test_read_is_current_since_its_call_and_no_caller_waits_forever[two callers, a writer]",
    ),
    "simulate/test_random_histories.py": ("test_different_seeds_give_different_histories",),
    # Processes and commands: more stores, and more runs of Terraform and the audit.
    "recipes/test_processes.py": (
        "test_killed_producers_and_workers_lose_and_double_no_message[sea",
        "test_killed_processes_lose_and_double_no_update[sea",
    ),
    "recipes/test_election_processes.py": (
        "test_killed_and_frozen_leaders_are_succeeded_and_no_epoch_repeats[sea",
        "test_write_of_a_frozen_leader_is_refused_when_it_wakes[sea",
    ),
    "recipes/test_wal_processes.py": ("test_each_record_of_killed_and_restarted_producers_exists_once[sea",),
    "recipes/test_terraform_runs.py": (
        "test_state_of_another_stack_is_pushed_by_force_only",
        "test_state_of_a_run_that_lost_its_lock_is_kept_and_can_be_pushed",
        "test_plan_that_is_stale_leaves_no_lock",
    ),
    "lock/test_processes.py": (
        "test_processes_increment_plain_counter_without_overlap_or_loss[sea",
        "test_successor_of_killed_holder_finishes_its_decided_publish[sea",
        "test_holder_stopped_during_publish_finds_it_refused[sea",
        "test_contender_an_hour_ahead_takes_over_and_only_one_publishes[sea",
        "test_holder_killed_before_the_commit_publishes_nothing[sea",
        "test_holder_stopped_past_its_lease_learns_of_the_loss_on_waking[sea",
        "test_holder_keeps_lock_and_publishes_after_wall_clock_step[sea",
        "test_threads_increment_plain_counter_without_overlap_or_loss[sea",
    ),
    "lockprovider/commands/test_commands.py": (
        "test_run_holds_the_lock_while_the_command_runs[sea",
        "test_killed_run_ends_its_command_and_the_lock_lapses[sea",
        "test_status_shows_each_state_of_a_lock[sea",
        "test_command_is_ended_with_its_children_when_the_lock_is_broken[sea",
        "test_break_frees_a_held_lock_and_says_so_once[sea",
        "test_watch_prints_what_happens_as_it_happens[sea",
        "test_run_on_a_server_is_in_its_audit",
        "test_audit_takes_only_the_files_written_last",
    ),
    "fsspec_cas/test_cli.py": (
        "test_probe_prints_a_verdict[seaweedfs-json",
        "test_put_get_and_rm_work_from_a_shell[sea",
        "test_json_output_says_the_same[sea",
        "test_probe_prints_a_verdict[seaweedfs-table",
        "test_large_file_is_streamed[sea",
    ),
    "fsspec_cas/filesystem/test_filesystem.py": (
        "test_every_way_to_create_is_exclusive[seaweedfs-by_pipe_file",
        "test_every_way_to_create_is_exclusive[seaweedfs-by_pipe]",
        "test_every_way_to_create_is_exclusive[seaweedfs-by_write_bytes",
        "test_every_way_to_create_is_exclusive[seaweedfs-by_put_file",
        "test_every_way_to_create_is_exclusive[seaweedfs-by_open_text",
        "test_pickled_filesystem_works_in_another_process[sea",
        "test_every_way_to_create_is_exclusive[ministack",
        "test_every_way_to_create_is_exclusive[azurite",
        "test_every_way_to_create_is_exclusive[fake_gcs",
        "test_pickled_filesystem_works_in_another_process[ministack",
        "test_pickled_filesystem_works_in_another_process[azurite",
        "test_pickled_filesystem_works_in_another_process[fake_gcs",
    ),
    "fsspec_cas/filesystem/test_abstract_suite.py": (
        "TestSeaweedFS::test_copy_glob_edge_cases",
        "TestSeaweedFS::test_put_glob_edge_cases",
        "TestSeaweedFS::test_get_glob_edge_cases",
    ),
    "conformance/test_behind_a_gateway.py": (
        "TestLeanS3::test_permanent_wrong_answer_is_never_a_result[after",
        "TestLeanS3::test_single_wrong_answer_changes_no_outcome[instead",
        "TestInsideTheClient::test_permanent_wrong_answer_is_never_a_result[over_obstore-instead",
        "TestInsideTheClient::test_single_wrong_answer_changes_no_outcome[over_obstore-instead",
        "TestAzure::test_single_wrong_answer_changes_no_outcome[instead",
        "TestGcs::test_single_wrong_answer_changes_no_outcome[instead",
        "TestS3::test_permanent_wrong_answer_is_never_a_result[after",
        "TestS3::test_single_wrong_answer_changes_no_outcome",
        "TestAzure::test_permanent_wrong_answer_is_never_a_result[after",
        "TestGcs::test_permanent_wrong_answer_is_never_a_result",
        "TestInsideTheClient::test_permanent_wrong_answer_is_never_a_result[seaweedfs",
        "TestInsideTheClient::test_single_wrong_answer_changes_no_outcome[seaweedfs",
    ),
    "faults/test_interrupted.py": (
        "test_ctrl_c_during_write_is_unknown_and_resolve_finds_the_outcome[seaweedfs-match-lost",
        "test_ctrl_c_during_write_is_unknown_and_resolve_finds_the_outcome[azurite-create-applied",
        "test_ctrl_c_during_write_is_unknown_and_resolve_finds_the_outcome[azurite-match",
        "test_ctrl_c_during_a_delete_is_unknown[applied",
        "test_ctrl_c_in_asyncio_run_is_unknown_inside_and_interrupt_outside[lost",
        "test_ctrl_c_during_write_is_unknown_and_resolve_finds_the_outcome[fake",
        "test_ctrl_c_during_write_is_unknown_and_resolve_finds_the_outcome[seaweedfs-create",
    ),
    "servers/test_servers.py": (
        "test_azurite_keeps_its_data_over_a_polite_restart",
        "test_acknowledged_objects_survive_kill_9_and_restart[SeaweedFS",
        "test_acknowledged_objects_survive_kill_9_and_restart[Ministack",
    ),
    # Tables.
    "table/read/test_sql_where.py": tuple(
        f"test_filter_of_any_length_and_depth_needs_a_small_stack[{form}"
        for form in ("and of", "in, texts", "not of", "to the right, by turns", "parentheses")
    ),
    "table/test_crash_at_every_step.py": ("test_table_is_complete_after_a_death_at_any_request[not sent-buckets",),
    "table/state/test_checkpoint.py": (
        "test_checkpoint_equals_a_listing_in_random_histories[1-",
        "test_checkpoint_equals_a_listing_in_random_histories[2-",
    ),
    "table/read/test_changes.py": ("test_consumer_of_changes_ends_with_the_table[fenced",),
    # Spark: more ways to what another test does, each with jobs of its own.
    "table/engines/spark/test_types_in_spark.py": tuple(
        f"test_way_in_takes_the_types_of_the_rules_and_stores_what_was_given[{way}"
        for way in ("sink", "merge", "source insert", "source overwrite", "sql", "insert_overwrite", "upsert")
    ),
    "table/engines/spark/test_stream.py": (
        "test_each_write_of_one_batch_is_committed_once",
        "test_sink_makes_no_commit_of_a_batch_without_rows",
        "test_stream_fails_when_its_table_gets_a_column_and_goes_on_with_it",
    ),
    "table/engines/spark/source/test_writing_with_hudi_options.py": (
        "test_table_with_buckets_and_one_with_logs_are_upserted_too",
        "test_stream_makes_its_table_and_upserts_each_batch_once",
        "test_another_python_on_the_executors_is_recognised",
        "test_merge_schema_adds_fields_inside_a_struct",
    ),
    "table/engines/spark/test_non_blocking_in_spark.py": (
        "test_null_ordering_value_is_refused_before_the_instant_begins",
        "test_stream_batches_and_data_source_writes_never_conflict",
    ),
    "table/engines/spark/test_log_source.py": ("test_log_source_reads_columns",),
    "table/engines/spark/test_buckets.py": (
        "test_upsert_goes_on_in_the_file_groups_that_are_there",
        "test_overwrite_starts_new_file_groups_of_the_same_buckets",
    ),
    "table/engines/spark/test_functions.py": (
        "test_threads_write_one_table_and_lose_nothing",
        "test_duplicate_key_in_any_partition_is_refused_by_checked_append",
    ),
    "table/engines/spark/test_frames.py": (
        "test_columns_may_have_any_name",
        "test_read_of_no_columns_has_rows[False",
    ),
    "table/engines/spark/session/test_native_reads.py": (
        "test_folder_names_add_no_columns_and_lose_no_rows",
        "test_native_reads_of_jvm_tables_have_the_same_rows",
    ),
    "table/engines/spark/session/test_batch_size.py": ("test_smaller_batch_size_of_the_session_stays",),
    "table/engines/spark/test_merge_on_read_in_spark.py": (
        "test_merge_updates_deletes_and_inserts_in_one_commit",
        "test_base_files_alone_are_read_if_asked_for",
        "test_overwrite_replaces_partitions_and_no_others",
    ),
    "table/test_conflict_matrix.py": (
        "test_each_pair_in_a_bucket_table_ends_as_its_buckets_ask[clean",
        "test_each_pair_in_a_bucket_table_ends_as_its_buckets_ask[first",
        "test_each_pair_in_a_bucket_table_ends_as_its_buckets_ask[rollback",
        "test_each_pair_in_a_bucket_table_ends_as_its_buckets_ask[savepoint",
    ),
    "table/test_requests.py": (
        "test_long_timeline_is_listed_in_parts_and_completely[s3",
        "test_commits_during_an_append_cost_it_no_request[s3",
        "test_commits_of_other_writers_are_in_the_lock_record[s3",
        "test_bad_input_is_refused_before_any_write_also_from_the_cache[s3",
        "test_small_upsert_also_reads_the_files[s3",
        "test_non_blocking_commit_takes_one_put_per_bucket_and_eleven_requests[local-both",
        "test_non_blocking_commit_takes_one_put_per_bucket_and_eleven_requests[local-delete",
        "test_non_blocking_commit_takes_one_put_per_bucket_and_eleven_requests[s3",
    ),
    "table/services/test_services.py": (
        "test_service_killed_at_any_request_is_finished_by_the_next[clean",
        "test_service_killed_at_any_request_is_finished_by_the_next[delete",
        "test_service_killed_at_any_request_is_finished_by_the_next[savepoint",
    ),
    "table/engines/spark/source/test_ways_to_save.py": (
        "test_way_to_save_works_or_is_refused_by_name[bucketBy",
        "test_way_to_save_works_or_is_refused_by_name[ignore",
        "test_way_to_save_works_or_is_refused_by_name[insertInto, overwrite",
        "test_way_to_save_works_or_is_refused_by_name[replaceWhere",
        "test_way_to_save_works_or_is_refused_by_name[saveAsTable, no path",
        "test_way_to_save_works_or_is_refused_by_name[sortBy",
    ),
    "table/test_jvm_tables.py": ("test_filtered_read_of_a_jvm_table_equals_filtering_a_full_read[cow_v8",),
    "table/test_compaction.py": (
        "test_service_killed_at_any_request_changes_no_row_and_is_continued[upsert",
        "test_histories_with_compactions_end_with_the_same_rows",
    ),
    "table/state/test_downgrade.py": ("test_open_handle_refuses_a_table_that_was_downgraded[30-",),
    "test_everything.py": ("test_run_goes_on_after_a_failure_and_writes_each_row",),
    "table/test_service_histories.py": ("test_all_readers_have_the_same_rows_after_each_step[1-",),
    "table/test_listed_histories.py": ("test_all_readers_have_the_same_rows_after_each_step[by event",),
    "table/test_wide_histories.py": (
        "test_all_readers_have_the_same_rows_after_each_step[by commit",
        "test_all_readers_have_the_same_rows_after_each_step[copy on write",
    ),
    "test_reference.py": ("test_site_is_built_without_a_warning",),
    "table/test_jvm_merge_on_read.py": (
        "test_every_past_time_reads_as_by_hudi_rs_or_is_refused[mor_v8_cleaned",
        "test_every_past_time_reads_as_by_hudi_rs_or_is_refused[mor_v8_clustering_pending",
        "test_every_past_time_reads_as_by_hudi_rs_or_is_refused[mor_v8_composite",
        "test_every_past_time_reads_as_by_hudi_rs_or_is_refused[mor_v8_delete_ordering",
        "test_every_past_time_reads_as_by_hudi_rs_or_is_refused[mor_v8_nbcc_two",
        "test_every_past_time_reads_as_by_hudi_rs_or_is_refused[mor_v8_parquet",
        "test_every_past_time_reads_as_by_hudi_rs_or_is_refused[mor_v8_pending",
        "test_consumer_commit_by_commit_ends_with_the_table[mor_avro_v9_txns_simple_nometa-begin",
        "test_consumer_commit_by_commit_ends_with_the_table[mor_v8_compacted_later_logs",
        "test_filter_is_applied_after_the_merge[mor_v8_deletes",
        "test_filter_is_applied_after_the_merge[mor_v8_nbcc",
        "test_consumer_commit_by_commit_ends_with_the_table[mor_v8_cleaned",
        "test_consumer_commit_by_commit_ends_with_the_table[mor_v8_clustering_pending",
        "test_consumer_commit_by_commit_ends_with_the_table[mor_v8_composite",
        "test_consumer_commit_by_commit_ends_with_the_table[mor_v8_delete_ordering",
        "test_consumer_commit_by_commit_ends_with_the_table[mor_v8_nbcc_two",
        "test_consumer_commit_by_commit_ends_with_the_table[mor_v8_parquet",
        "test_consumer_commit_by_commit_ends_with_the_table[mor_v8_pending",
        "test_filter_is_applied_after_the_merge[mor_v8_cleaned",
        "test_filter_is_applied_after_the_merge[mor_v8_clustering_pending",
        "test_filter_is_applied_after_the_merge[mor_v8_composite",
        "test_filter_is_applied_after_the_merge[mor_v8_delete_ordering",
        "test_filter_is_applied_after_the_merge[mor_v8_nbcc_two",
        "test_filter_is_applied_after_the_merge[mor_v8_parquet",
        "test_filter_is_applied_after_the_merge[mor_v8_pending",
    ),
    "lockprovider/commands/test_state_commands.py": (
        "test_state_is_edited_in_an_editor",
        "test_editor_of_state_is_shown_and_can_be_stopped",
    ),
    "lockprovider/commands/test_queue_commands.py": (
        "test_put_of_an_older_epoch_is_refused[how1",
        "test_put_of_an_older_epoch_is_refused[how2",
    ),
    "table/read/test_filters.py": ("test_filtered_read_equals_filter_of_the_whole_table[by_pyarrow",),
    "model/test_group_commit.py": (
        "test_acknowledged_commits_exist_once_in_order_and_all_clients_end[a holder, and threads",
        "test_acknowledged_commits_exist_once_in_order_and_all_clients_end[a JVM writer",
        "test_acknowledged_commits_exist_once_in_order_and_all_clients_end[three, of which",
        "test_acknowledged_commits_exist_once_in_order_and_all_clients_end[two that meet",
    ),
    "table/engines/test_dask_services.py": ("test_plan_run_by_dask_writes_the_same_files_as_a_local_run[True-p",),
    "fsspec_cas/probe/test_probe.py": (
        "test_probe_leaves_nothing_behind[ministack",
        "test_probe_leaves_nothing_behind[azurite",
        "test_probe_leaves_nothing_behind[fake",
        "test_correct_server_is_safe_for_everything[ministack",
    ),
    "faults/test_lock_timeout.py": (
        "test_acquire_on_silent_store_ends_in_time_and_succeeds_later[to be proved-503",
        "test_acquire_on_silent_store_ends_in_time_and_succeeds_later[trusted",
    ),
    "lockprovider/storage_lock/test_async_lock.py": (
        "test_lock_acquired_for_a_cancelled_task_is_released[1",
        "test_lock_acquired_for_a_cancelled_task_is_released[3",
        "test_lock_acquired_for_a_cancelled_task_is_released[2",
        "test_lock_acquired_for_a_cancelled_task_is_released[4",
        "test_lock_acquired_for_a_cancelled_task_is_released[5",
        "test_lock_acquired_for_a_cancelled_task_is_released[6",
    ),
    "table/test_values_by_every_way.py": (
        "test_types_that_do_not_fit_are_refused_by_every_way[overwrite",
        "test_types_that_do_not_fit_are_refused_by_every_way[reader",
        "test_types_that_do_not_fit_are_refused_by_every_way[upsert",
        "test_values_are_stored_as_given_by_every_way[overwrite",
        "test_values_are_stored_as_given_by_every_way[reader",
        "test_values_are_stored_as_given_by_every_way[upsert",
    ),
    "conformance/test_azurite.py": (
        "TestAzurite::test_more_than_a_page_of_objects_is_listed",
        "TestAzurite::test_concurrent_updates_are_all_applied",
        "TestAzurite::test_exactly_one_of_many_concurrent_replaces_wins",
    ),
    "conformance/test_ministack.py": (
        "TestMinistack::test_exactly_one_of_many_concurrent_creates_wins",
        "TestMinistack::test_more_than_a_page_of_objects_is_listed",
        "TestMinistack::test_concurrent_updates_are_all_applied",
        "TestMinistack::test_exactly_one_of_many_concurrent_replaces_wins",
    ),
    "table/engines/spark/source/test_staged.py": (
        "test_staged_changes_give_the_same_rows_as_direct_ones[merge on read",
        "test_staged_changes_give_the_same_rows_as_direct_ones[buckets]",
        "test_staged_changes_give_the_same_rows_as_direct_ones[ordered",
        "test_staged_changes_give_the_same_rows_as_direct_ones[unpart",
    ),
    "table/state/test_stale.py": ("test_spark_write_is_retried_on_a_cleaned_file_with_a_typed_error",),
    "model/test_appearance.py": ("test_readers_take_commits_in_order_and_miss_none[three",),
    "model/test_broker.py": ("test_operation_sent_to_the_broker_is_done_once_or_its_client_knows[one puts, one works",),
    "model/test_non_blocking.py": (
        "test_greatest_value_wins_in_every_history[and overwrites",
        "test_greatest_value_wins_in_every_history[ours",
    ),
    "fsspec_cas/test_exclusive_lost_answers.py": (
        "test_completion_that_hangs_is_unknown_and_resolve_finds_it[azurite",
        "test_completion_that_hangs_is_unknown_and_resolve_finds_it[gcs",
        "test_resolving_a_stream_that_never_arrived_writes_nothing[azurite",
        "test_resolving_a_stream_that_never_arrived_writes_nothing[gcs",
    ),
    "recipes/test_interrupts.py": (
        "test_interrupted_call_can_be_made_again_and_the_process_ends[Wal",
        "test_interrupted_call_can_be_made_again_and_the_process_ends[Election",
        "test_interrupted_call_can_be_made_again_and_the_process_ends[Queue",
    ),
    "table/test_histories.py": ("test_overlapping_writers_are_serializable[local",),
    "lock/test_known_bugs.py": (
        "test_t74_renewal_gets_through_while_all_connections_are_busy[azurite",
        "test_t74_renewal_gets_through_while_all_connections_are_busy[fake",
    ),
    "table/engines/test_pandas_dask.py": (
        "test_dask_frame_is_appended_upserted_and_deleted_in_one_commit_each[processes",
    ),
    "table/engines/spark/test_tasks.py": ("test_partitions_that_readers_would_lose_are_refused",),
    "linearize/test_stores.py": (
        "test_threads_on_a_server_behind_a_faulty_network[azurite-1",
        "test_threads_on_a_server_behind_a_faulty_network[fake_gcs-1",
        "test_threads_on_a_server_behind_a_faulty_network[seaweedfs-1",
    ),
    "conformance/test_fake_gcs.py": ("TestFakeGcs::test_more_than_a_page_of_objects_is_listed",),
    "table/read/test_reading.py": (
        "test_partitions_of_every_type_are_pruned_without_losing_a_row[True-fields5",
        "test_partitions_of_every_type_are_pruned_without_losing_a_row[True-fields4",
        "test_partitions_of_every_type_are_pruned_without_losing_a_row[True-fields3",
        "test_partitions_of_every_type_are_pruned_without_losing_a_row[True-fields2",
    ),
}


# Files, by a pattern, and what is more there.
ALIKE: Mapping[str, str] = {
    # The verbs of sync callers are those of async ones, run by a bridge: both run in memory, on local files and on
    # SeaweedFS, and the sync ones on every server.
    r"conformance/test_(ministack|azurite|fake_gcs|gcs_double|obstore)": r".*\[async\b",
    r"fsspec_cas/test_exclusive\.py": r".*\[async-(ministack|azurite|gcs_double)\b",
    # All verbs get a server's refusals by one gate: one that reads and one that writes show it on each server.
    r"conformance/test_(ministack|azurite|fake_gcs|gcs_double|obstore|seaweedfs)": (
        r".*::test_(wrong_credentials_are|missing_bucket_is|endpoint_without)\w*\[(?!(read|put_if_absent|delete_if_match)\])"
    ),
    # The theory of outcomes is one for all stores: all of it on SeaweedFS, each fault of a true condition elsewhere.
    r"faults/test_outcomes.py": (
        r".*\[(azurite|fake_gcs|over_obstore)-(async-|sync-.*-(create taken|once taken|match gone)\])"
    ),
    # Ministack is a second S3: conformance and the races run on both.
    r"fsspec_cas/filesystem/test_(filesystem|conditions)": r"(?!.*race).*\[ministack\b",
    r"fsspec_cas/test_exclusive.py": r"(?!.*(at_once_wins|closed_second)).*\[(sync-)?ministack\b",
    # Three requests with a fault each: by default those where one of the three has none.
    r"lockprovider/recipes/": r"test_each_triple_of_faults_of_puts\w*\[(?!.*Pass)",
    # What is the same for all stores when a write fails.
    r"faults/test_known_bugs.py": r"test_t(06|07|13|16|22|30|31)_\w*\[(azurite|fake_gcs)\b",
    r"fsspec_cas/filesystem/test_filesystem.py": r"(?!.*(race|exclusive_file|every_way)).*\[(azurite|fake_gcs)\b",
    r"fsspec_cas/filesystem/test_abstract_suite.py": r"TestSeaweedFS::",
    # Each dialect is asked each verb; each client of a network whose answers differ.
    r"fsspec_cas/backends/test_wrong_answers.py": (
        r"test_no_backend_believes_a_wrong_answer\[(obstore|gcs|azure)-(match|head|changed|delete match|begin)\]"
    ),
    # Over obstore pages are those of the client that is lean.
    r"conformance/test_obstore.py": r".*::test_more_than_a_page_of_objects_is_listed",
    r"lockprovider/storage_lock/test_async_lock.py": r"(?!.*cancelled_at_any_request).*\[seaweedfs\]",
    # Kinds of tables: by commit as by event; with buckets the other one.
    r"table/test_clustering.py": r".*\[by commit\b|(?!test_m9).*\[by event\b",
    r"table/test_(compaction|merge_on_read).py": r".*\[(by commit|by event, buckets)\]",
    # Rows against rows: each pair of writers; of services, each beside a writer that is first, and one that is second.
    r"table/test_conflict_matrix.py": (
        r"test_each_pair_ends_as_rfc_22_asks\[(clean|rollback|savepoint)-(clean|rollback|savepoint)\]"
        # To a service a delete is an upsert: files are rewritten.
        r"|test_each_pair_ends_as_rfc_22_asks\[((clean|rollback|savepoint)-delete|delete-(clean|rollback|savepoint))\]"
        r"|test_each_operation_beside_a_clustering\[delete-"
        r"|test_each_pair_in_a_bucket_table\w*\[(?!(insert|upsert)-(insert|upsert|delete|overwrite|first)\])"
        r"|test_each_operation_beside_a_clustering\[(clean|rollback|savepoint)-"
        r"|test_each_operation_beside_a_non_blocking_writer\[(?!(gone-(gone|compact|log)|log-|.*-log))"
    ),
}
_ALIKE = {re.compile(file): re.compile(name) for file, name in ALIKE.items()}


def is_more(file: str, name: str) -> bool:
    """Whether the test `name` (with its class and parameters) of `file` (below `tests/`) runs as a soak test only."""
    alike = any(file_is.match(file) and name_is.match(name) for file_is, name_is in _ALIKE.items())
    return alike or name.startswith(MORE.get(file, ()))
