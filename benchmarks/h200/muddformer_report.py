"""What the runs of muddformer.py say, as a page: losses, paired differences with intervals, and curves.

Run:  .venv/bin/python benchmarks/h200/muddformer_report.py RUNS.jsonl … [--out docs/results/muddformer.md]
In:   files of muddformer.py. Runs of one seed have the same batches and the same first weights of what they share, so
      differences are taken within each seed; their interval is Student's over the seeds. Means, the order of
      variants and curves are over the seeds that all variants have.
Out:  the page and, beside it, pictures of validation losses and of how far they are from the baseline's.
"""

import argparse
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from muddformer import LADDER, VARIANTS, VOCABULARY, Run, read_runs

PAPER = {"baseline": 11.68, "static": 11.44, "dynamic": 11.09, "multiway": 10.83}  # perplexities after 7B tokens, 405M
TRAIN, VALIDATION = "train/loss", "eval/loss"
CONFIDENCE = 0.95
MANY = 100  # seeds, more than which nobody runs
STAGES = 5  # of a run, at which a difference is told
ABOUT = {
    "baseline": "no connections (`dense_conn: false`)",
    "static": "one mixture for all ways, its weights the same for each token (`dynamic_dense_type: l`, "
    "`mudd_dynamic: false`)",
    "dynamic": "one mixture for all ways, its weights made of each token's state (`dynamic_dense_type: l`)",
    "multiway": "mixtures for queries, keys, values and residual, dynamic (`dynamic_dense_type: qkvm`)",
    "normed": "as that, with norms around mixtures (`mudd_prenorm: true`, `mudd_postnorm: true`)",
}
Losses = dict[str, dict[int, float]]  # by variant and seed


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A variant's loss less another's, by the seeds that both have; below 0 is better."""

    of: str
    than: str
    by_seed: dict[int, float]

    @property
    def mean(self) -> float:
        return sum(self.by_seed.values()) / len(self.by_seed)

    @property
    def half(self) -> float | None:
        """Of the interval, by Student's t; None: one seed has none."""
        return self._half_with(len(self.by_seed)) if len(self.by_seed) > 1 else None

    def _half_with(self, seeds: int) -> float:
        """Half the interval of so many seeds that spread like these."""
        from scipy.special import stdtrit

        mean, count = self.mean, len(self.by_seed)
        variance = sum((one - mean) ** 2 for one in self.by_seed.values()) / (count - 1)
        return float(stdtrit(seeds - 1, (1 + CONFIDENCE) / 2)) * math.sqrt(variance / seeds)

    @property
    def verdict(self) -> str:
        """What may be said of it."""
        if self.half is None:
            return "one seed: no interval"
        if abs(self.mean) <= self.half:
            return "includes 0: not told apart"
        return "excludes 0: better" if self.mean < 0 else "excludes 0: worse"

    @property
    def interval(self) -> str:
        return "—" if self.half is None else f"{self.mean - self.half:+.4f} … {self.mean + self.half:+.4f}"

    @property
    def why_not_told_apart(self) -> str:
        """In how many seeds it is a gain, and how many would be enough if more of them were like these."""
        gains = sum(one < 0 for one in self.by_seed.values())
        enough = next((seeds for seeds in range(2, MANY) if self._half_with(seeds) < abs(self.mean)), None)
        would = f"{MANY} seeds like these would not do" if enough is None else f"{enough} seeds like these would do"
        return f"{self.of} less {self.than} is below 0 in {gains} of {len(self.by_seed)} seeds; {would}."


def difference(losses: Losses, of: str, than: str) -> Difference:
    """Of one variant's losses and another's, in the seeds that both have."""
    seeds = sorted(losses[of].keys() & losses[than].keys())
    if not seeds:
        sys.exit(f"found no seed that both {of} and {than} have; needed one. Run them: --runs {of}:0 {than}:0")
    return Difference(of=of, than=than, by_seed={seed: losses[of][seed] - losses[than][seed] for seed in seeds})


def comparisons(losses: Losses) -> list[Difference]:
    """Each variant with the baseline, then each with the one it adds a part to, the first pair once."""
    first, *others = losses
    steps = [*steps_of(losses), *((one, "multiway") for one in others if one not in LADDER and "multiway" in losses)]
    pairs = [(one, first) for one in others] + [(one, before) for one, before in steps if before != first]
    return [difference(losses, of, than) for of, than in pairs]


def steps_of(losses: Losses) -> list[tuple[str, str]]:
    """Each variant in whose order gains should grow, with the one before it."""
    return [(one, before) for before, one in pairwise(one for one in losses if one in LADDER)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/results/muddformer.md"))
    options = parser.parse_args()
    runs = read_runs(options.files)
    check(runs)
    pictures = [options.out.with_suffix(".svg"), options.out.with_name(f"{options.out.stem}_gains.svg")]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(page(runs, [picture.name for picture in pictures]))
    for picture, drawing in zip(pictures, (loss_picture(runs), gain_picture(runs)), strict=True):
        picture.write_text(drawing)
    print("\n".join(map(str, [options.out, *pictures])))


def check(runs: list[Run]) -> None:
    """Ends the program where runs cannot be compared."""
    for one, other in pairwise(runs):
        if one.name == other.name:
            sys.exit(f"found {one.name} twice; needed each run once. Leave out one of the files, or one of the lines.")
        if (one.settings, one.losses[VALIDATION][-1][0]) != (other.settings, other.losses[VALIDATION][-1][0]):
            sys.exit(f"found {one.name} and {other.name} of other settings or lengths; needed the same. Leave one out.")
    if not {"baseline"} < {run.variant for run in runs}:
        sys.exit("found no baseline, or nothing else; needed both. Run them: muddformer.py --variants baseline static")
    shared_seeds(final_losses(runs))


def shared_seeds(losses: Losses) -> list[int]:
    """The seeds that all variants have, over which alone means can be compared; ends the program where none is."""
    by_seed = {seed: [one for one in losses if seed not in losses[one]] for found in losses.values() for seed in found}
    shared = sorted(seed for seed, lacking in by_seed.items() if not lacking)
    if not shared:
        seed, lacking = min(by_seed.items(), key=lambda item: (len(item[1]), item[0]))
        sys.exit(
            f"found no seed that all of {', '.join(losses)} have; needed one, as losses are compared within seeds. "
            f"Run what is missing: muddformer.py --runs {' '.join(f'{one}:{seed}' for one in lacking)}"
        )
    return shared


def shared_runs(runs: list[Run]) -> list[Run]:
    """The runs of the seeds that all variants have."""
    shared = shared_seeds(final_losses(runs))
    return [run for run in runs if run.seed in shared]


def shared_means(losses: Losses) -> dict[str, float]:
    """By variant, the mean loss over the seeds that all variants have."""
    shared = shared_seeds(losses)
    return {variant: sum(found[seed] for seed in shared) / len(shared) for variant, found in losses.items()}


def page(runs: list[Run], pictures: list[str]) -> str:
    """The whole document."""
    losses = final_losses(runs)
    found = comparisons(losses)
    parts = [
        "# What each part of a MUDDFormer adds, in a small model",
        setting(runs),
        loss_table(runs, losses),
        what_means_are_of(losses),
        "Paired differences over the seeds that both have, below 0 where the first is better; the interval is "
        f"Student's over the seeds, each for itself at {CONFIDENCE:.0%}.",
        difference_table(found),
        conclusion(losses, found),
        *(by_tokens(runs, one) for one in found if one.verdict.startswith("includes")),
        "## What it does not say",
        limits(runs),
        "## Curves",
        "\n".join(f"![{alt}]({name})" for alt, name in zip(("validation losses", "gains"), pictures, strict=True)),
        "Means over the same seeds as those of the table.",
        "## How it was run",
        how(runs),
    ]
    return "\n\n".join(parts) + "\n"


def setting(runs: list[Run]) -> str:
    """What was trained, on what, and how alike."""
    size, tokens = runs[0].settings, runs[0].losses[VALIDATION][-1][0]
    steps = tokens / size["rows"] / size["length"]
    return (
        f"{size['layers']} layers × {size['width']}, {size['heads']} heads, MLP {size['mlp']:,}, vocabulary "
        f"{VOCABULARY:,}, trained on {tokens:,.0f} tokens of real text (novels, documentation, essays and code, by "
        f"`benchmarks/h200/muddformer_text.py`): {steps:,.0f} steps of {size['rows']} × {size['length']:,} tokens, "
        f"AdamW with learning rate {size['learning_rate']:g}, warmup and a cosine to a tenth, products in bfloat16, "
        f"first weights of deviation {size['initializer_range']:g}. A seed decides the order of the data and the first "
        f"weights, which are the same in all variants where they share them: {first_step(runs)} "
        "Losses are nats a token over the whole validation text, after the last step."
    )


def limits(runs: list[Run]) -> str:
    """What the runs leave open."""
    tokens, parameters = runs[0].losses[VALIDATION][-1][0], runs[0].parameters
    return (
        f"{tokens / parameters:.1f} tokens for each parameter are early training: the gains are of how fast a model "
        f"learns, and say little of models that have seen all they can use. {when(runs)} The learning rate and the "
        "deviation of first weights are the same in all variants, chosen for none of them. Seeds change the data's "
        "order and the first weights; the text is one. Models of 20 layers and more have norms around mixtures unless "
        "told otherwise; of these runs "
        f"{'only those named normed have' if any(run.variant == 'normed' for run in runs) else 'none has'} them."
    )


def when(runs: list[Run]) -> str:
    """How far variants were from the baseline early and late, and how far the paper's are."""
    curves = mean_curves(shared_runs(runs), VALIDATION)
    base = curves.pop("baseline")
    (early, _), (late, _) = base[0], base[-1]
    gaps = [
        f"{name} {points[0][1] - base[0][1]:+.3f} and {points[-1][1] - base[-1][1]:+.3f}"
        + (f" ({math.log(PAPER[name] / PAPER['baseline']):+.3f})" if name in PAPER else "")
        for name, points in curves.items()
    ]
    return (
        f"Less than the baseline after {early:,.0f} tokens and after {late:,.0f} (in brackets after 7 billion, by "
        f"perplexities of the paper's models of 405M parameters): {', '.join(gaps)}."
    )


def final_losses(runs: Iterable[Run]) -> Losses:
    losses: Losses = {}
    for run in runs:
        losses.setdefault(run.variant, {})[run.seed] = run.losses[VALIDATION][-1][1]
    return losses


def first_step(runs: list[Run]) -> str:
    """How far variants of one seed are apart before the first update, which shows that they begin alike."""
    by_seed: dict[int, list[float]] = {}
    for run in runs:
        by_seed.setdefault(run.seed, []).append(run.losses[TRAIN][0][1])
    apart = max(max(found) - min(found) for found in by_seed.values())
    return f"before the first update, training losses of one seed lie at most {apart:.1g} apart."


def loss_table(runs: list[Run], losses: Losses) -> str:
    seeds = sorted({run.seed for run in runs})
    parameters = {run.variant: run.parameters for run in runs}
    plain, means = parameters["baseline"], shared_means(losses)
    lines = [
        f"| variant | parameters | {' | '.join(f'seed {seed}' for seed in seeds)} | mean |",
        f"|---|---:|{'---:|' * (len(seeds) + 1)}",
    ]
    for variant, found in losses.items():
        added = parameters[variant] - plain
        size = f"{plain:,}" if variant == "baseline" else f"{added:+,} ({added / plain:+.2%})"
        each = " | ".join(f"{found[seed]:.4f}" if seed in found else "—" for seed in seeds)
        lines.append(f"| **{variant}**: {ABOUT[variant]} | {size} | {each} | {means[variant]:.4f} |")
    return "\n".join(lines)


def what_means_are_of(losses: Losses) -> str:
    """Which seeds are in the means, and which runs of the table are not."""
    shared = shared_seeds(losses)
    outside = [f"{variant}:{seed}" for variant, found in losses.items() for seed in sorted(found.keys() - set(shared))]
    told = f"Means are over the seeds that all variants have: {', '.join(map(str, shared))}."
    return f"{told} Listed but not in them: {', '.join(outside)}." if outside else told


def difference_table(found: list[Difference]) -> str:
    lines = ["| | seeds | mean difference | interval | which |", "|---|---:|---:|---:|---|"]
    for one in found:
        told = f"{one.mean:+.4f} | {one.interval} | {one.verdict}"
        lines.append(f"| {one.of} less {one.than} | {len(one.by_seed)} | {told} |")
    return "\n".join(lines)


def conclusion(losses: Losses, found: list[Difference]) -> str:
    """What the numbers say, whatever that is."""
    from_baseline = [one for one in found if one.than == "baseline"]
    better = [one.of for one in from_baseline if one.verdict.endswith("better")]
    others = [one.of for one in from_baseline if one.of not in better]
    told = [f"Better than the baseline beyond the interval: {', '.join(better) or 'none'}."]
    if others:
        told.append(f"Not so: {', '.join(others)}.")
    means, order = shared_means(losses), [one for one in losses if one in LADDER]
    falls = all(means[after] < means[before] for before, after in pairwise(order))
    told.append(f"Mean losses {'fall' if falls else 'do not fall'} in the order {', '.join(order)}.")
    steps = [one for one in found if (one.of, one.than) in steps_of(losses)]
    sure = [one for one in steps if one.verdict.endswith("better")]
    told.append(f"Of the {len(steps)} steps of that order, {len(sure)} are gains whose interval excludes 0.")
    told += [one.why_not_told_apart for one in steps if one.verdict.startswith("includes")]
    return " ".join(told)


def by_tokens(runs: list[Run], step: Difference) -> str:
    """How a difference that is not told apart came about: at evaluations from the first to the last."""
    losses = {(run.variant, run.seed): run.losses[VALIDATION] for run in runs}
    pairs = [(losses[step.of, seed], losses[step.than, seed]) for seed in step.by_seed]
    count = len(pairs[0][0])
    told = []
    for place in sorted({count * part // (STAGES - 1) if part < STAGES - 1 else count - 1 for part in range(STAGES)}):
        each = [one[place][1] - other[place][1] for one, other in pairs]
        told.append(f"{sum(each) / len(each):+.3f} ({', '.join(f'{gain:+.3f}' for gain in each)})")
        told[-1] += f" after {pairs[0][0][place][0] / 1e6:.1f} million tokens"
    return f"{step.of} less {step.than} on the way, the mean and each seed: {'; '.join(told)}."


def how(runs: list[Run]) -> str:
    commands = sorted({run.command for run in runs})
    devices, versions = sorted({run.device for run in runs}), runs[0].versions
    software = f"JAX {versions.get('jax', 'unknown')}, Python {versions.get('python', 'unknown')}"
    lines = "\n".join(f"    {command}" for command in commands)
    seconds = held((run.began, run.ended) for run in runs)
    return (
        f"{lines}\n\nOn {', '.join(devices)}, {software}; {len(runs)} runs, {seconds:,.0f} s in which at least one of "
        "them was at work, start and compilation counted. Several shared the GPU, so their times say nothing about the "
        "speed of variants."
    )


def held(spans: Iterable[tuple[float, float]]) -> float:
    """How long at least one of some spans of time lasted."""
    total, until = 0.0, -math.inf
    for began, ended in sorted(spans):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total


def mean_curves(runs: list[Run], metric: str) -> dict[str, list[tuple[float, float]]]:
    """By variant, the mean over its seeds."""
    curves = {}
    for variant in (variant for variant in VARIANTS if any(run.variant == variant for run in runs)):
        points = [run.losses[metric] for run in runs if run.variant == variant]
        curves[variant] = [(at[0][0], sum(loss for _, loss in at) / len(at)) for at in zip(*points, strict=True)]
    return curves


def loss_picture(runs: list[Run]) -> str:
    """Validation losses over tokens, by the seeds that all variants have; the first may leave it at its top."""
    from ponente.experiment.curves import COLOURS, Curve, picture

    found = mean_curves(shared_runs(runs), VALIDATION)
    end = max(points[-1][0] for points in found.values())
    top = max(loss for points in found.values() for tokens, loss in points if tokens >= end / 4)
    curves = [
        Curve(name=name, points=points, colour=colour, is_dotted=True)
        for (name, points), colour in zip(found.items(), COLOURS, strict=False)
    ]
    return picture(curves, across="tokens", down="validation loss, nats a token", top=top)


def gain_picture(runs: list[Run]) -> str:
    """How far validation losses are from the baseline's, over tokens, by the seeds that all variants have."""
    from ponente.experiment.curves import COLOURS, Curve, picture

    found = mean_curves(shared_runs(runs), VALIDATION)
    base = dict(found["baseline"])
    curves = [
        Curve(name=name, points=[(at, loss - base[at]) for at, loss in points], colour=colour, is_dotted=True)
        for (name, points), colour in zip(found.items(), COLOURS, strict=False)
    ]
    return picture(curves, across="tokens", down="validation loss less the baseline's")


if __name__ == "__main__":
    main()
