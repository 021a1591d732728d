"""Every defect that was found by attacking the program, and the tests that fail without its fix.

The mapping is ``DEFECTS``; each of its tests was run with the fix taken out of the program, and failed.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

DEFECTS = {
    "a COCO polygon that goes to and fro takes gigabytes and crashes": (
        "data/test_hostile.py::test_a_coco_polygon_that_goes_to_and_fro",
        "data/test_hostile.py::test_many_outlines_count_together",
    ),
    "a labelme polygon of a million points takes minutes": (
        "data/test_hostile.py::test_a_labelme_polygon_of_many_points",
    ),
    "records with impossible figures are accepted": (
        "evaluation/test_records.py::test_impossible_figures_are_refused",
        "evaluation/test_records.py::test_a_figure_that_is_no_number_is_refused",
    ),
    "two processes that save into one new folder lose a lesson": (
        "app/test_hostile_models.py::test_two_processes_do_not_lose_a_lesson_in_a_new_folder",
        "app/test_hostile_models.py::test_the_check_is_asked_inside_the_lock",
    ),
    "values of wide masks are merged silently": (
        "data/labels/test_png.py::test_wide_masks_are_read_exactly_or_not_at_all",
    ),
    "options that are NaN or out of range are accepted": (
        "cli/test_hostile.py::test_numbers_out_of_range_are_refused",
        "app/test_hostile_models.py::test_a_balance_is_a_number",
    ),
    "a changed file of the same size and ending keeps the fingerprint": (
        "data/datasets/test_base.py::test_the_fingerprint_of_own_data_sees_every_byte",
        "data/datasets/test_base.py::test_a_mask_of_the_same_length_in_bytes_has_another_fingerprint",
    ),
    "class names lead out of the output folder": (
        "experiments/test_artifacts.py::test_names_of_classes_do_not_lead_out_of_the_folder",
        "experiments/test_spec.py::test_contradictions_and_wrong_values_are_refused",
    ),
    "killed programs leave parts of files for good": (
        "common/test_files.py::test_what_a_killed_program_left_is_removed_and_what_another_is_writing_stays",
    ),
    "unpacked zips stay in the cache, and nothing bounds them": (
        "data/test_hostile.py::test_unpacked_files_that_nobody_uses_go_away",
        "data/test_hostile.py::test_a_zip_that_unpacks_to_far_more_than_labels",
    ),
    "JSON that is nested deeply, has endless numbers or half characters": (
        "common/test_files.py::test_json_that_breaks_parsers_gets_one_sentence",
    ),
    "COCO and labelme values of wrong types": (
        "data/test_hostile.py::test_coco_file_names_that_are_none",
        "data/test_hostile.py::test_coco_categories_without_a_name",
        "data/test_hostile.py::test_coco_heights_that_are_none",
        "data/test_hostile.py::test_a_labelme_point_beyond_all_numbers",
    ),
    "recipe values of wrong types": (
        "experiments/test_spec.py::test_contradictions_and_wrong_values_are_refused",
        "experiments/test_spec.py::test_files_that_hold_no_recipe_are_refused",
        "experiments/test_spec.py::test_aliases_that_stand_for_a_billion_values_are_not_written_out",
    ),
    "ONNX files without metadata": ("app/test_export.py::test_files_that_are_no_model_are_refused",),
    "a link to itself, a closed output, a latin-1 terminal, no HOME": (
        "cli/test_hostile.py::test_a_link_that_leads_to_itself",
        "cli/test_hostile.py::test_a_closed_output_is_no_traceback",
        "cli/test_hostile.py::test_an_error_that_nobody_reads_keeps_its_exit_code",
        "cli/test_hostile.py::test_a_terminal_that_lacks_characters_shows_others",
        "common/test_files.py::test_an_account_without_home_is_asked_for_a_folder",
    ),
    "a pipe is waited for": (
        "data/test_hostile.py::test_pipes_are_not_waited_for",
        "common/test_files.py::test_a_pipe_is_not_waited_for",
    ),
    "models with valid checksums and nonsense inside": (
        "app/test_hostile_models.py::test_nonsense_with_valid_checksums_gets_one_sentence",
        "app/test_hostile_models.py::test_escape_sequences_in_names_are_not_listed",
        "app/test_hostile_models.py::test_a_tensor_file_with_an_impossible_name",
    ),
    "NaN pixels, run lengths of fractions, Ctrl-C, empty names, HTML in the card": (
        "data/test_hostile.py::test_pixels_that_are_no_numbers",
        "data/test_hostile.py::test_run_lengths_that_are_not_whole_numbers",
        "cli/test_hostile.py::test_ctrl_c_while_packages_are_imported_is_one_line",
        "cli/test_hostile.py::test_a_name_that_is_not_known_is_one_plain_sentence",
        "app/test_hostile_models.py::test_an_empty_name_is_no_model",
        "app/test_hostile_models.py::test_names_that_look_like_html_are_text_in_the_card",
    ),
    "no lower bound for pillow and pyyaml": ("test_package.py::test_every_direct_requirement_has_a_lower_bound",),
    "labels are read in another way for training and validation than for teaching": (
        "data/labels/test_layouts.py::test_teach_train_and_report_read_what_check_reads",
        "data/labels/test_layouts.py::test_label_and_void_are_read_alike",
        "data/labels/test_layouts.py::test_a_label_that_is_called_otherwise",
        "cli/test_model.py::test_a_report_reads_labels_as_the_lesson_did",
    ),
    "a value that no mask has is silently another one": (
        "data/test_hostile.py::test_a_value_that_no_mask_has_is_not_another_one",
    ),
    "masks on transparency, stacks, data.yaml without names": (
        "data/test_hostile.py::test_a_mask_that_is_drawn_on_transparency",
        "data/test_hostile.py::test_a_mask_of_several_pictures",
        "data/test_hostile.py::test_a_data_yaml_without_names_does_not_become_numbers",
    ),
    "masks drawn into the cache outlive a change of what their values mean": (
        "data/labels/test_layouts.py::test_masks_are_drawn_again_when_their_meaning_changes",
    ),
    "an image whose lower part has no known class is cut off in the report": (
        "app/test_report.py::test_an_image_whose_lower_half_has_no_known_class_is_shown_whole",
    ),
    "weights of Hugging Face encoders as pickle, or of another revision than the configuration": (
        "models/encoders/test_huggingface.py::"
        "test_configuration_and_weights_are_of_the_revision_that_was_named_and_no_pickle",
    ),
    "advice that cannot be followed: fewer shots than one, fewer parts without an option": (
        "data/test_episodes.py::test_a_class_of_avoided_images_alone_is_named",
        "experiments/test_runner.py::test_parts_of_images_are_disjoint_and_complete",
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_tests_of_a_defect_are_there(defect: str) -> None:
    for place in DEFECTS[defect]:
        file, _, name = place.partition("::")
        found = {node.name for node in ast.parse((TESTS / file).read_text()).body if isinstance(node, ast.FunctionDef)}
        assert name in found, place
