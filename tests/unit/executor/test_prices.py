"""Estimates, rate cards and budgets: the plan prices what is to run, and --max_cost refuses above a budget."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from priced import cheap, copy, plain, train, work

from ponente.cluster import GpuConfig
from ponente.config import UserError
from ponente.executor import Estimate, ExecutorStep, RateCard
from ponente.executor.outcome import Fate, RunOutcome
from ponente.executor.plan import Plan
from ponente.executor.rates import load_rate_card
from ponente.executor.report import plan_text

Runner = Callable[..., RunOutcome]
Planner = Callable[..., Plan]
CARD = "currency: EUR\ndevice_hours: {cpu: 0.04, H200: 3.5}\ngigabyte: 0.02\n"


@pytest.fixture
def card(tmp_path: Path) -> Callable[[str], str]:
    """Writes a rate card; its path."""

    def write(text: str) -> str:
        (tmp_path / "rates.yaml").write_text(text)
        return str(tmp_path / "rates.yaml")

    return write


def test_a_rate_card_is_read_from_yaml(card: Callable[[str], str]) -> None:
    assert load_rate_card(card(CARD)) == RateCard(
        currency="EUR", device_hours={"cpu": 0.04, "H200": 3.5}, gigabyte=0.02
    )
    assert load_rate_card(card("device_hours: {v4-128: 206}")) == RateCard(device_hours={"v4-128": 206.0})
    assert load_rate_card(card("device_hours:\n")) == RateCard()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("device_hours: {cpu: 0.04", "is not YAML"),
        ("a: b: c", "is not YAML"),
        (
            "device_hour: {cpu: 1}",
            "found device_hour; needed a mapping with keys among currency, device_hours, gigabyte",
        ),
        ("- cpu", "found list; needed a mapping"),
        ("", "found NoneType; needed a mapping"),
        ("device_hours: {cpu: -1}", "found cpu: -1; needed a price, a number not below 0"),
        ("device_hours: {cpu: cheap}", "found cpu: 'cheap'; needed a price"),
        ("device_hours: {cpu: true}", "found cpu: True; needed a price"),
        ("device_hours: {cpu: .nan}", "found cpu: nan; needed a price"),
        ("device_hours: {cpu: .inf}", "found cpu: inf; needed a price"),
        ("device_hours: [cpu, 1]", "found device_hours: ['cpu', 1]; needed a price by device"),
        ("gigabyte: free", "found gigabyte: 'free'; needed a price"),
        ("!!python/object/apply:os.getcwd []", "is not YAML"),
    ],
)
def test_a_bad_rate_card_is_refused_with_what_is_wrong(text: str, told: str, card: Callable[[str], str]) -> None:
    path = card(text)
    with pytest.raises(UserError) as caught:
        load_rate_card(path)
    assert told in str(caught.value) and path in str(caught.value)


def test_a_missing_rate_card_is_refused_with_an_example(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"found no rate card at .*nowhere\.yaml; give a YAML file"):
        load_rate_card(str(tmp_path / "nowhere.yaml"))


@pytest.mark.parametrize(
    ("estimate", "device", "price"),
    [
        (Estimate(device_hours=2), "H200", 7.0),
        (Estimate(device_hours=2, device="cpu"), "H200", 0.08),
        (Estimate(device_hours=2), "A100", None),
        (Estimate(bytes=5e9), "A100", 0.1),
        (Estimate(device_hours=1, bytes=5e9), "H200", 3.6),
        (Estimate(device_hours=0), "A100", 0.0),
        (Estimate(cost=12.5, device_hours=100), "A100", 12.5),
        (Estimate(tokens=1e9, flops=1e18), "H200", None),
    ],
    ids=str,
)
def test_an_estimate_is_priced_by_device_hours_and_bytes(estimate: Estimate, device: str, price: float | None) -> None:
    card = RateCard(device_hours={"cpu": 0.04, "H200": 3.5}, gigabyte=0.02)
    assert card.price(estimate, device) == (None if price is None else pytest.approx(price))


def test_the_plan_prints_each_estimate_and_the_total(plan: Planner, card: Callable[[str], str]) -> None:
    lines = plan_text(plan(cheap, rates=card(CARD))).splitlines()
    assert "[2G tokens, 3.2E FLOPs, 16 device-hours, 56.00 EUR on 8 H200]" in lines[1]
    assert "[5G bytes, 0.10 EUR on 1 cpu]" in lines[2]
    assert "[no estimate]" in lines[3]
    assert lines[4] == (
        "3 steps: 0 hits, 3 to run; in all 2G tokens, 3.2E FLOPs, 5G bytes, 16 device-hours, 56.10 EUR "
        "(1 step without a price)"
    )


def test_without_a_rate_card_estimates_are_told_without_a_price(plan: Planner) -> None:
    assert "[2G tokens, 3.2E FLOPs, 16 device-hours on 8 H200]" in plan_text(plan(cheap))


def test_the_rate_card_may_come_from_the_environment(
    plan: Planner, card: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PONENTE_RATES", card(CARD))
    assert plan(cheap).total_cost == pytest.approx(56.1)
    assert plan(cheap).currency == "EUR"


def test_hits_cost_nothing(run: Runner, plan: Planner, card: Callable[[str], str]) -> None:
    rates = card(CARD)
    assert run(train, rates=rates).exit_code == 0
    assert plan(cheap, rates=rates).total_cost == pytest.approx(0.1)


def test_a_run_above_the_budget_is_refused_before_anything_is_written(
    run: Runner, card: Callable[[str], str], prefix: str
) -> None:
    with pytest.raises(UserError, match=r"estimated cost of 56\.10 EUR, above --max_cost 56; nothing was run"):
        run(cheap, rates=card(CARD), max_cost=56.0)
    assert not Path(prefix).exists()


def test_a_run_within_the_budget_goes_on(run: Runner, card: Callable[[str], str]) -> None:
    assert run(cheap, rates=card(CARD), max_cost=57.0).exit_code == 0


def test_a_budget_cannot_be_kept_if_a_step_on_accelerators_has_no_price(
    run: Runner, card: Callable[[str], str]
) -> None:
    with pytest.raises(UserError, match=r"found no price for train-.*name their device in --rates"):
        run(train, rates=card("device_hours: {cpu: 1}"), max_cost=1e9)
    unknown = ExecutorStep(name="unknown", fn=plain, resources=GpuConfig())
    with pytest.raises(UserError, match="found no price for unknown-"):
        run(unknown, rates=card(CARD), max_cost=1e9)


def test_estimates_see_handles_unresolved_and_never_run_the_step(plan: Planner) -> None:
    planned = plan(copy)
    assert [step.estimate for step in planned.steps] == [
        Estimate(tokens=2e9, flops=3.2e18, device_hours=16),
        Estimate(bytes=5e9),
    ]


def test_a_free_graph_fits_a_budget_of_zero(run: Runner) -> None:
    free: Any = ExecutorStep(name="free", fn=work, config={"cost": 0.0})
    assert [step.planned.node.name for step in run(free, max_cost=0.0).of(Fate.DONE)] == ["free"]
