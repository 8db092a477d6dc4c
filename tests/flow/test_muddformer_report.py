"""The page about parts of a MUDDFormer, of made-up runs: its arithmetic, and that it tells what the numbers say."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "h200"
FALLING = {"baseline": [5.0, 5.2, 5.1], "static": [4.90, 5.11, 5.00], "dynamic": [4.7, 4.9, 4.8]}


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module("muddformer_report")


def runs(report: Any, losses: Mapping[str, Sequence[float]]) -> list[Any]:
    """A run of each loss, whose seeds are counted from 0; each took ten seconds, five of them beside the one before."""
    made = []
    for variant, found in losses.items():
        for seed, loss in enumerate(found):
            began = 5.0 * len(made)
            made.append(
                report.Run(
                    variant=variant,
                    seed=seed,
                    settings=asdict(import_module("muddformer").Settings(steps=2)),
                    parameters=1000 if variant == "baseline" else 1025,
                    device="1 x NVIDIA H200",
                    versions={"jax": "0.11.2", "python": "3.12.1"},
                    command="python muddformer.py",
                    began=began,
                    ended=began + 10,
                    losses={"train/loss": [(0.0, 10.0), (32768.0, 9.0)], "eval/loss": [(65536.0, loss)]},
                )
            )
    return made


def test_differences_are_taken_within_seeds_and_their_interval_is_students(report: Any) -> None:
    losses = {"baseline": {0: 5.0, 1: 7.0, 2: 9.0, 3: 1.0}, "static": {0: 4.0, 1: 5.0, 2: 6.0}}
    found = report.difference(losses, "static", "baseline")
    assert found.by_seed == {0: -1.0, 1: -2.0, 2: -3.0}
    assert found.mean == pytest.approx(-2.0)
    assert found.half == pytest.approx(4.302653 / 3**0.5)  # t for 2 degrees of freedom, times a deviation of 1
    assert found.verdict.startswith("includes 0")


def test_a_gain_that_is_not_told_apart_says_how_many_seeds_would_do(report: Any) -> None:
    losses = {"baseline": [5.0, 7.0, 9.0], "static": [4.0, 5.0, 6.0]}  # t / sqrt(4) is 1.59 < 2, of 3 seeds 2.48
    page = report.page(runs(report, losses), ["losses.svg", "gains.svg"])
    assert "excludes 0. static less baseline is below 0 in 3 of 3 seeds; 4 seeds like these would do." in page
    assert "less baseline on the way, the mean and each seed: -2.000 (-1.000, -2.000, -3.000) after 0.1 mill" in page
    evenly = report.page(runs(report, {**losses, "static": [6.0, 7.0, 8.0]}), ["losses.svg", "gains.svg"])
    assert "static less baseline is below 0 in 1 of 3 seeds; 100 seeds like these would not do." in evenly


def test_a_difference_is_told_from_the_first_evaluation_to_the_last(report: Any) -> None:
    made = runs(report, {"baseline": [5.0, 5.0], "static": [4.0, 6.0]})
    for run in made:
        end = run.losses["eval/loss"][0][1]
        run.losses["eval/loss"] = [(1e6 * place, 5 + place / 8 * (end - 5)) for place in range(9)]
    (step,) = report.comparisons(report.final_losses(made))
    told = report.by_tokens(made, step)
    assert told.startswith(
        "static less baseline on the way, the mean and each seed: +0.000 (+0.000, +0.000) after 0.0 m"
    )
    assert told.endswith(
        "; +0.000 (-0.750, +0.750) after 6.0 million tokens; +0.000 (-1.000, +1.000) after 8.0 million tokens."
    )
    assert told.count("million tokens") == 5


@pytest.mark.parametrize(
    ("others", "told"),
    [([4.90, 5.11, 5.00], "excludes 0: better"), ([5.10, 5.31, 5.20], "excludes 0: worse"), ([4.9], "one seed")],
)
def test_what_an_interval_says_follows_from_its_ends(report: Any, others: list[float], told: str) -> None:
    losses = report.final_losses(runs(report, {"baseline": [5.0, 5.2, 5.1], "static": others}))
    assert report.difference(losses, "static", "baseline").verdict.startswith(told)


def test_each_variant_is_compared_with_the_baseline_and_the_one_before(report: Any) -> None:
    found = report.comparisons(report.final_losses(runs(report, FALLING)))
    pairs = [(one.of, one.than) for one in found]
    assert pairs == [("static", "baseline"), ("dynamic", "baseline"), ("dynamic", "static")]


def test_norms_around_mixtures_are_compared_and_are_no_step_of_the_order(report: Any) -> None:
    made = runs(report, {**FALLING, "multiway": [4.6, 4.8, 4.7], "normed": [4.9, 5.0, 5.0]})
    pairs = [(one.of, one.than) for one in report.comparisons(report.final_losses(made))]
    assert pairs[-3:] == [("dynamic", "static"), ("multiway", "dynamic"), ("normed", "multiway")]
    page = report.page(made, ["losses.svg", "gains.svg"])
    assert "Mean losses fall in the order baseline, static, dynamic, multiway. Of the 3 steps" in page
    assert "normed -0.133 and -0.133. The" in page  # the paper has no number beside it
    assert "only those named normed have them" in page


def test_the_page_tells_an_order_that_holds_and_one_that_does_not(report: Any) -> None:
    page = report.page(runs(report, FALLING), ["losses.svg", "gains.svg"])
    assert "beyond the interval: static, dynamic. Mean losses fall in the order" in page
    assert "Of the 2 steps of that order, 2 are gains" in page
    assert "+25 (+2.50%)" in page
    assert "9 runs, 50 s in which" in page
    turned = {**FALLING, "dynamic": FALLING["static"], "static": FALLING["dynamic"]}
    assert "Mean losses do not fall in the order" in report.page(runs(report, turned), ["losses.svg", "gains.svg"])


def test_order_means_and_curves_are_of_the_seeds_that_all_variants_have(report: Any) -> None:
    unpaired = runs(report, {"baseline": [5.0, 7.0], "static": [5.1]})
    page = report.page(unpaired, ["losses.svg", "gains.svg"])
    assert "Mean losses do not fall in the order baseline, static." in page
    assert "| 5.0000 | 7.0000 | 5.0000 |" in page
    assert "| 5.1000 | — | 5.1000 |" in page
    assert "all variants have: 0. Listed but not in them: baseline:1." in page
    assert "baseline: 5.000" in report.loss_picture(unpaired)
    assert "static: 0.100" in report.gain_picture(unpaired)


def test_runs_without_a_seed_that_all_variants_have_are_refused(report: Any) -> None:
    made = runs(report, {"baseline": [5.0, 5.2, 5.1], "static": [4.9, 5.0], "dynamic": [4.7, 4.8, 4.9]})
    apart = [run for run in made if run.name in ("baseline:0", "baseline:2", "static:1", "dynamic:2")]
    with pytest.raises(SystemExit, match=r"no seed that all of baseline, static, dynamic have.*--runs static:2$"):
        report.check(apart)


def test_runs_of_several_files_become_a_page_with_pictures(
    report: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [json.dumps(asdict(run)) + "\n" for run in runs(report, FALLING)]
    (tmp_path / "one.jsonl").write_text("".join(made[5:]))
    (tmp_path / "two.jsonl").write_text("".join(made[:5]))
    files = [str(tmp_path / name) for name in ("one.jsonl", "two.jsonl", "page.md")]
    monkeypatch.setattr("sys.argv", ["report", *files[:2], "--out", files[2]])
    report.main()
    text = Path(files[2]).read_text()
    assert "| dynamic less static | 3 | -0.2033 |" in text
    assert "static -0.097 and -0.097 (-0.021), dynamic -0.300 and -0.300 (-0.052)." in text
    assert (tmp_path / "page.svg").read_text().count("<polyline") == 3
    assert "static: -0.097" in (tmp_path / "page_gains.svg").read_text()


def test_runs_of_other_settings_do_not_count_as_made(
    report: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    muddformer, file = import_module("muddformer"), tmp_path / "runs.jsonl"
    file.write_text("".join(json.dumps(asdict(run)) + "\n" for run in runs(report, {"baseline": [5.0, 5.2]})))
    muddformer.check_settings(muddformer.read_runs([file]), muddformer.Settings(steps=2), file)
    flags = ["--out", str(file), "--steps", "3", "--width", "64", "--scratch", str(tmp_path / "scratch")]
    monkeypatch.setattr("sys.argv", ["muddformer.py", *flags])
    with pytest.raises(SystemExit, match=r"baseline:0 in .* with width 512, steps 2; needed width 64, steps 3,"):
        muddformer.main()
    assert not (tmp_path / "scratch").exists()


def test_a_run_that_is_older_than_a_setting_was_made_at_its_default(report: Any, tmp_path: Path) -> None:
    muddformer, (run,) = import_module("muddformer"), runs(report, {"baseline": [5.0]})
    older = {**asdict(run), "settings": {"steps": 2, "width": 64}}
    (tmp_path / "runs.jsonl").write_text(json.dumps(older) + "\n")
    (read,) = muddformer.read_runs([tmp_path / "runs.jsonl"])
    assert read.settings == asdict(muddformer.Settings(steps=2, width=64))
    assert read.settings["initializer_range"] == 0.006


def test_runs_that_are_not_alike_are_refused(report: Any) -> None:
    one, other = runs(report, {"baseline": [5.0], "static": [4.9]})
    longer = report.Run(**{**asdict(other), "settings": {**other.settings, "steps": 3}})
    with pytest.raises(SystemExit, match="baseline:0 and static:0 of other settings"):
        report.check([one, longer])
    with pytest.raises(SystemExit, match="baseline:0 twice"):
        report.check([one, one, other])
