"""The issue forms, the pull request template and the list of labels agree with each other and with CONTRIBUTING.md.

GitHub drops a malformed form and an unknown label without a word, so the rules that it applies are checked here.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
TYPES = ["bug", "documentation", "infrastructure", "experiment"]
PRIORITIES = ["p1", "p2", "p3"]
YAML_FILES = sorted(path for path in GITHUB.rglob("*") if path.suffix in {".yml", ".yaml"})
FORMS = [path for path in YAML_FILES if path.parent.name == "ISSUE_TEMPLATE" and path.stem != "config"]

each_form = pytest.mark.parametrize("form_path", FORMS, ids=lambda path: path.stem)


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def labels() -> dict[str, dict[str, str]]:
    return {label["name"]: label for label in load(GITHUB / "labels.yml")}


def fields(form_path: Path) -> dict[str, dict[str, Any]]:
    """The form's questions by id; markdown between them has none."""
    return {field["id"]: field for field in load(form_path)["body"] if field["type"] != "markdown"}


def required_fields(form_path: Path) -> set[str]:
    return {name for name, field in fields(form_path).items() if field.get("validations", {}).get("required")}


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: path.name)
def test_every_yaml_file_of_github_parses_to_something(path: Path) -> None:
    assert load(path)


def test_no_label_is_listed_twice() -> None:
    names = [label["name"] for label in load(GITHUB / "labels.yml")]
    assert len(names) == len(set(names))


def test_every_label_has_a_colour_and_a_meaning_that_github_accepts() -> None:
    for name, label in labels().items():
        assert re.fullmatch("[0-9a-f]{6}", label["color"]), name
        assert 0 < len(label["description"]) <= 100, name


def test_every_type_and_every_priority_is_a_label() -> None:
    assert set(TYPES + PRIORITIES) <= set(labels())


def test_every_type_has_one_form_that_sets_its_label_and_no_other_type() -> None:
    types_set = [label for path in FORMS for label in load(path)["labels"] if label in TYPES]
    assert sorted(types_set) == sorted(TYPES)


@each_form
def test_every_label_that_a_form_sets_exists(form_path: Path) -> None:
    assert set(load(form_path)["labels"]) <= set(labels())


@each_form
def test_every_form_asks_for_exactly_the_priorities_that_are_labels(form_path: Path) -> None:
    options = fields(form_path)["priority"]["attributes"]["options"]
    offered = {name: meaning.lower() for name, meaning in (option.split(": ", 1) for option in options)}
    assert offered == {name: labels()[name]["description"].lower() for name in PRIORITIES}


@each_form
def test_no_form_is_sent_without_problem_or_question_definition_of_done_and_priority(form_path: Path) -> None:
    context = {"change", "regime", "metrics", "hypothesis"} if form_path.stem == "experiment" else {"problem"}
    assert context | {"done", "priority"} <= required_fields(form_path)


@each_form
def test_every_form_has_what_github_needs_to_show_it(form_path: Path) -> None:
    form = load(form_path)
    assert form["name"] and form["description"]
    questions = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in questions}) == len(questions), "ids must differ"
    assert len({field["attributes"]["label"] for field in questions}) == len(questions), "labels must differ"


def test_no_two_forms_share_a_name() -> None:
    names = [load(path)["name"] for path in FORMS]
    assert len(names) == len(set(names))


def test_an_experiment_pull_request_is_asked_for_a_sanity_check_and_a_priced_dry_run() -> None:
    template = (GITHUB / "pull_request_template.md").read_text(encoding="utf-8")
    experiment = template.partition("## Experiment")[2].lower()
    for asked in ["sanity check", "--dry_run", "cost", "override_output_path"]:
        assert asked in experiment


def test_the_contributing_page_gives_each_label_the_meaning_it_has_in_the_list() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    explained = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", page, flags=re.MULTILINE))
    assert {name: meaning.lower() for name, meaning in explained.items()} == {
        name: label["description"].lower() for name, label in labels().items()
    }
