"""The flags of every experiment script."""

import pytest

from ponente.executor import ExecutorOptions
from ponente.executor.options import parse_options


def test_without_flags_all_is_at_its_default() -> None:
    assert parse_options([]) == ExecutorOptions()


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ("--prefix p", {"prefix": "p"}),
        ("--run_only a b", {"run_only": ["a", "b"]}),
        ("--force a", {"force": ["a"]}),
        ("--max_concurrent 3", {"max_concurrent": 3}),
        ("--max_cost 1.5 --rates r.yaml", {"max_cost": 1.5, "rates": "r.yaml"}),
        ("--launcher driver", {"launcher": "driver"}),
    ],
)
def test_each_flag_is_an_option(flags: str, options: dict[str, object]) -> None:
    assert parse_options(flags.split()) == ExecutorOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("switch", ["dry_run", "force_run_failed"])
@pytest.mark.parametrize(
    ("words", "value"),
    [
        ([], True),
        (["true"], True),
        (["True"], True),
        (["yes"], True),
        (["1"], True),
        (["false"], False),
        (["no"], False),
    ],
)
def test_switches_also_take_true_or_false(switch: str, words: list[str], value: bool) -> None:
    assert getattr(parse_options([f"--{switch}", *words]), switch) is value


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--dry_run maybe", "found 'maybe', needed true or false"),
        ("--max_concurrent 0", "found '0', needed a number of at least 1"),
        ("--max_concurrent many", "found 'many', needed a number of at least 1"),
        ("--max_cost nan", "found 'nan', needed a number not below 0"),
        ("--max_cost -1", "found '-1', needed a number not below 0"),
        ("--max_cost cheap", "found 'cheap', needed a number not below 0"),
        ("--launcher rocket", "invalid choice: 'rocket'"),
        ("--dry", "found --dry; did you mean --dry_run?"),
        ("--prefx p", "found --prefx p; did you mean --prefix?"),
    ],
)
def test_a_bad_flag_is_refused_with_exit_code_2(flags: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(flags.split())
    assert caught.value.code == 2
    assert told in capsys.readouterr().err
