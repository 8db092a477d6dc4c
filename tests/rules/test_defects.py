"""Defects seen in executors of this kind, each with the tests that fail if it comes back.

The table is read against the tests' names, so a test cannot be renamed or removed without this page knowing.
"""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

DEFECTS = {
    "a worker that lost its lease still publishes": [
        "test_a_step_that_is_stopped_past_its_expiry_wakes_up_to_a_lost_claim_and_commits_nothing",
        "test_a_holder_cannot_commit_or_release_after_a_takeover",
    ],
    "one transient error kills the heartbeat": ["test_an_error_of_the_store_stops_no_later_heartbeat"],
    "the holder id is equal across a fork": [
        "test_a_fork_has_a_name_of_its_own",
        "test_a_fork_of_the_holder_cannot_end_its_claim",
    ],
    "a lock per process deadlocks a step of several processes": [
        "test_a_worker_killed_at_shard_700_of_1000_costs_its_shard_and_not_the_step",
        "test_a_child_in_the_same_driver_runs_beside_its_parent",
    ],
    "a lock polled inline stalls every other launch": [
        "test_a_step_that_another_driver_holds_keeps_no_other_step_from_being_launched"
    ],
    "a second attempt finds none of the first one's finished shards or checkpoints": [
        "test_a_step_killed_at_shard_700_of_1000_redoes_at_most_one_shard_a_worker",
        "test_the_state_folder_outlives_attempts_and_the_output_folder_does_not",
    ],
    "a relative prefix splits data from status; a trailing slash changes a path": [
        "test_every_way_to_write_a_prefix_means_the_same_place"
    ],
    "a bucket name enters a hash": ["test_no_prefix_and_no_folder_of_the_script_enters_identity"],
    "a new tracker tag retrains a model": ["test_observation_and_execution_fields_run_nothing"],
    "a default added to a config re-runs the world": ["test_adding_fields_with_defaults_changes_nothing"],
    "pinning an output re-addresses its descendants": [
        "test_a_pin_changes_no_identity_of_the_step_or_its_descendants",
        "test_a_pin_added_after_a_run_leaves_descendants_hits",
    ],
    "tuples skipped by the walk": ["test_a_step_is_found_as_a_dependency_wherever_it_stands"],
    "nested version dicts explode on diamonds": [
        "test_a_diamond_of_40_levels_has_41_nodes_and_each_config_is_read_once",
        "test_a_diamond_of_40_levels_is_compared_in_40_steps",
    ],
    "import-time I/O freezes a prefix": [
        "test_the_prefix_is_the_flag_else_the_variable_else_a_folder_here",
        "test_planning_under_a_new_prefix_creates_nothing",
    ],
    "a schedule-time stub is mistaken for a finished record": [
        "test_a_stored_payload_alone_is_no_hit",
        "test_a_claim_alone_is_no_hit_and_whether_its_holder_lives_is_told",
        "test_output_without_a_commit_is_no_hit",
    ],
    "a record file is parsed as training data": ["test_records_of_a_step_never_match_a_glob_over_its_output"],
    "one failing sibling kills all": ["test_siblings_of_a_failed_step_go_on_and_the_cause_is_told_whole"],
    "the root cause is hidden under its dependents": [
        "test_the_root_cause_is_told_whole_at_the_end_and_once_however_much_depends_on_it"
    ],
    "the driver on a preemptible node takes the graph with it": [
        "test_a_driver_killed_at_any_moment_goes_on_to_the_outputs_of_an_undisturbed_run",
        "test_however_often_a_driver_is_stopped_its_step_goes_on",
    ],
}


def all_tests() -> set[str]:
    return {
        node.name
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


@pytest.mark.parametrize("defect", DEFECTS)
def test_each_known_defect_has_a_test(defect: str) -> None:
    missing = set(DEFECTS[defect]) - all_tests()
    assert missing == set(), f"{defect}: {missing}"
