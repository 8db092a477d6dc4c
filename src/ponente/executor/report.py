"""Plans and outcomes as text for people."""

from collections.abc import Iterable

from ponente.executor.estimate import Estimate
from ponente.executor.outcome import Fate, RunOutcome, StepRun, count_of
from ponente.executor.plan import Plan, PlannedStep, State
from ponente.store.volume import volume_of

_COUNT_SUFFIXES = ["", "k", "M", "G", "T", "P", "E", "Z"]


def plan_text(plan: Plan) -> str:
    """The plan: a line a step, then the totals."""
    width = min(60, max((len(step.name) for step in plan.steps), default=0))
    lines = [f"prefix {plan.prefix}"]
    lines += [_plan_line(step, width, plan.currency) for step in plan.steps]
    return "\n".join([*lines, plan_totals(plan)]) + "\n"


def _plan_line(step: PlannedStep, width: int, currency: str) -> str:
    line = f"  {step.state.value:<5}{step.name:<{width}}  {step.why}"
    if step.state is State.RUN:
        resources = step.node.step.resources
        on = f" on {resources.device_count} {resources.device}" if resources is not None else ""
        line += f"  [{_estimate_text(step.estimate, step.cost, currency)}{on}]"
    return line


def _estimate_text(estimate: Estimate | None, cost: float | None, currency: str) -> str:
    if estimate is None:
        return "no estimate"
    parts = [
        f"{_count(value)} {unit}"
        for value, unit in ((estimate.tokens, "tokens"), (estimate.flops, "FLOPs"), (estimate.bytes, "bytes"))
        if value is not None
    ]
    if estimate.device_hours is not None:
        parts.append(f"{estimate.device_hours:.3g} device-hours")
    if cost is not None:
        parts.append(f"{cost:.2f} {currency or 'USD'}")
    return ", ".join(parts) or "no estimate"


def _count(value: float) -> str:
    position = 0
    while abs(value) >= 1000 and position < len(_COUNT_SUFFIXES) - 1:
        value, position = value / 1000, position + 1
    return f"{value:.3g}{_COUNT_SUFFIXES[position]}"


def plan_totals(plan: Plan) -> str:
    """One line: how many steps of each kind, and what the ones to run will take."""
    hits = count_of(len(plan.of(State.HIT)), "hit")
    counts = f"{count_of(len(plan.steps), 'step')}: {hits}, {len(plan.of(State.RUN))} to run"
    for state, word in ((State.HELD, "held"), (State.UNNEEDED, "not needed")):
        if plan.of(state):
            counts += f", {len(plan.of(state))} {word}"
    estimates = [step.estimate for step in plan.of(State.RUN) if step.estimate is not None]
    if not estimates:
        return counts
    priced = [step for step in plan.of(State.RUN) if step.cost is not None]
    total = Estimate(
        tokens=_sum(one.tokens for one in estimates),
        flops=_sum(one.flops for one in estimates),
        bytes=_sum(one.bytes for one in estimates),
        device_hours=_sum(one.device_hours for one in estimates),
    )
    text = f"{counts}; in all {_estimate_text(total, plan.total_cost if priced else None, plan.currency)}"
    return f"{text} ({count_of(len(plan.unpriced), 'step')} without a price)" if plan.unpriced else text


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def outcome_text(outcome: RunOutcome, command: str) -> str:
    """How a run ended; each root cause whole, with what it holds back."""
    parts = [_failure_text(step, outcome) for step in outcome.of(Fate.FAILED)]
    counts = ", ".join(f"{len(steps)} {fate.value}" for fate in Fate if (steps := outcome.of(fate)))
    if outcome.interrupted is not None:
        parts.append(f"stopped: {counts}. Nothing that was finished is lost; the same command goes on:\n  {command}")
    elif len(outcome.of(Fate.HIT)) == len(outcome.steps):
        parts.append(f"every step was a hit: {count_of(len(outcome.steps), 'step')}, nothing to run")
    else:
        parts.append(f"{count_of(len(outcome.steps), 'step')}: {counts}")
    return "\n".join(parts) + "\n"


def _failure_text(step: StepRun, outcome: RunOutcome) -> str:
    held = [other.name for other in outcome.of(Fate.HELD) if _root(other) is step]
    lines = [f"FAILED {step.name}"]
    if step.error is not None:
        body = "" if step.error.is_users else step.error.traceback.rstrip()
        message = f"{step.error.type}: {step.error.message}"
        lines += ["    " + line for line in body.splitlines()]
        if message.partition("\n")[0] not in body:
            lines += ["    " + line for line in message.splitlines()]
    lines.append(f"    records: {step.planned.folder.path}")
    if step.log_path is not None and volume_of(step.log_path).exists(step.log_path):
        lines.append(f"    log: {step.log_path}")
    if held:
        more = f" and {len(held) - 5} more" if len(held) > 5 else ""
        lines.append(f"    holds back {len(held)}: {', '.join(held[:5])}{more}")
    if step.planned.state is State.HELD:
        lines.append("    it failed in an earlier run and was not tried now; --force_run_failed tries again,")
        lines.append("    as does a change of the file that its function is in")
    return "\n".join(lines)


def _root(step: StepRun) -> StepRun:
    while step.held_by is not None:
        step = step.held_by
    return step
