import os
import signal
from pathlib import Path

# Most of the time goes into compiling, much of it the same code in several modules and in commands that
# run as processes of their own: they share what is compiled.
_CACHE = Path(__file__).parents[1] / ".pytest_cache" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")

import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

hypothesis.settings.register_profile(
    "hadaflow", deadline=None, derandomize=True, max_examples=20, print_blob=True
)
hypothesis.settings.load_profile("hadaflow")


@pytest.fixture(autouse=True, scope="session")
def _strict_jax():
    """Silent broadcasting and mixed precision are errors; float64 must come from the library."""
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    assert not jax.config.jax_enable_x64  # pyright: ignore


@pytest.fixture(autouse=True, scope="session")
def _interruptible():
    """Undo what a shell asks its children in the background to ignore, for the commands under test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="module")
def _compiled_code_of_one_module():
    """Compiled functions hold memory maps, of which a process may have some 65000; let them go."""
    yield
    jax.clear_caches()


# Cases of `make slow`, so that `make test` stays within its quarter of an hour: each repeats, at another
# setting, what a sibling or the test of the whole family checks there. Only the claims listed here are
# checked nowhere else but by `hadaflow verify`, which `make reproduce` runs.
_LATER = (
    "test_claim_has_its_expected_status[collapse-basin",
    "test_a_mutant_changes_the_status[collapse-basin-0",
    "test_modes_of_negative_fixed_points_pass_through_zero[options0",
    "test_times_after_the_flow_has_settled_see_the_settled_state[options1",
    "test_labels.py::test_full_view_and_metrics_agree_with_the_reduced_one[2.0",
    "test_labels.py::test_a_run_with_labels_is_saved",
    "test_imbalance.py::test_far_out_the_two_views_agree",
    "test_depth.py::test_equal_differences_keep_kl_falling_and_unequal_ones_do_not",
    "test_penalties_on_every_layer_settle_at_the_root[3",
    "test_penalties_on_every_layer_settle_at_the_root[4",
    "test_descent_settles_below_the_limit_of_the_penalty_and_not_above[options1",
    "test_descent_settles_below_the_limit_of_the_penalty_and_not_above[options3",
    "test_the_flow_settles_where_the_formula_says[1",
    "test_the_flow_settles_where_the_formula_says[2",
    "test_modes_of_negative_fixed_points_pass_through_zero[options1",
    "test_a_mutant_changes_the_status[collapse-basin-1",
    "test_depth.py::test_the_full_view_of_a_deep_model",
    "test_depth.py::test_a_temperature_moves_the_threshold_of_the_penalty",
    "test_depth.py::test_no_mode_called_lost_ever_gains_again",
    "test_groups.py::test_lift_then_flow_is_flow_then_lift",
    "test_labels.py::test_lift_then_flow_is_flow_then_lift",
    "test_penalty.py::test_lift_then_flow_is_flow_then_lift",
    "test_imbalance.py::test_smoothing_and_penalties_settle",
    "test_commuting.py::test_reduced_flow_lifted_equals_our_full_flow_matrix_by_matrix",
    "test_scale.py::test_a_thousand_classes_collapse_where_the_hard_margins_say",
    "test_paper.py::test_settings_change_the_experiment",
    "test_batches.py::test_predicted_collapse_from_the_command_line",
    "test_solve.py::test_tiny_unbalanced_starts_collapse",
    "test_circulant.py::test_a_run_with_phases_is_saved_and_continued",
    "test_penalty.py::test_full_view_follows_the_reduced_one",
    "test_depth.py::test_descent_settles_below_the_limit_of_the_penalty_and_not_above[options2",
    "test_scale.py::test_a_prediction_in_raw_units_and_as_a_function",
    "test_scale.py::test_a_weight_that_returns_to_zero_ends_the_foretelling",
    "test_labels.py::test_from_the_command_line",
    "test_labels.py::test_times_after_the_flow_has_settled_see_the_settled_state",
    "test_solve.py::test_collapse_norms_below_1e5_are_reached[64",
    "test_depth.py::test_a_penalty_on_one_layer_alone_has_no_fixed_point",
    "test_claim_has_its_expected_status[two-stage-dynamics",
    "test_claim_has_its_expected_status[ode-tracks-descent",
    "test_claim_has_its_expected_status[burn-in-times",
    "test_claim_has_its_expected_status[convergence-to-nc",
    "test_laws.py::test_restart_midway_equals_one_run",
    "test_laws.py::test_saving_and_loading_changes_nothing",
    "test_scale.py::test_a_prediction_that_does_not_hold_is_integrated_instead",
    "test_scale.py::test_requested_times_agree_also_with_a_temperature_and_in_raw_units",
    "test_scale.py::test_the_method_is_chosen_with_a_reason",
    "test_scale.py::test_equal_and_tiny_and_zero_values",
    "test_scale.py::test_groups_by_dual_steps[group0",
    "test_scale.py::test_dual_and_explicit_steps_agree[until2",
    "test_penalty.py::test_from_the_command_line",
    "test_penalty.py::test_the_flow_settles_where_the_formula_says[3-decays1",
    "test_labels.py::test_modes_of_negative_fixed_points_pass_through_zero",
    "test_labels.py::test_stability_limit_of_smoothing_is_the_formula",
    "test_depth.py::test_a_start_from_given_layers_comes_back",
    "test_depth.py::test_a_fixed_point_that_repels_has_no_stability_limit",
    "test_imbalance.py::test_two_blocks_of_equal_samples_are_a_balanced_model",
    "test_solve.py::test_unequal_C_makes_kl_rise",
    "test_solve.py::test_collapse_is_located_to_solver_accuracy[32",
    "test_hunt.py::test_the_worst_rise_approaches_its_limit",
    "test_the_gallery_is_drawn_as_the_page_says[groups_of_eight",
    "test_the_gallery_is_drawn_as_the_page_says[lazy_to_rich",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if any(name in item.nodeid for name in _LATER):
            item.add_marker(pytest.mark.slow)
