"""Tokenizing as a step: its source may be another step, the second time it is a hit, the commit names its cache."""

from pathlib import Path

import pytest
from sharding import ShardsConfig, write_shards

from ponente.executor import ExecutorOptions, ExecutorStep, plan_steps, run_steps
from ponente.executor.plan import State
from ponente.experiment.tokenize import default_tokenize
from ponente.store.token_cache.cache import open_cache
from ponente.tokens.load import load_tokenizer


@pytest.fixture
def documents(tiny_texts: list[str]) -> ExecutorStep:
    return ExecutorStep(name="documents", fn=write_shards, config=ShardsConfig(texts=tuple(tiny_texts[:100])))


@pytest.mark.parametrize("launcher", ["driver", "subprocess"])
def test_the_documents_of_a_step_become_a_cache(
    launcher: str, documents: ExecutorStep, tiny_tokenizer: str, tiny_texts: list[str], tmp_path: Path
) -> None:
    step = default_tokenize("tiny", documents, tiny_tokenizer, workers=0)
    options = ExecutorOptions(prefix=str(tmp_path), launcher=launcher)
    outcome = run_steps([step], options)
    cache = open_cache(outcome.path(step / "tokens/train"))
    texts = [*tiny_texts[:100:2], *tiny_texts[1:100:2]]
    tokenizer = load_tokenizer(tiny_tokenizer)
    assert [tokenizer.decode(cache.row(index)["input_ids"][:-1].tolist()) for index in range(cache.rows)] == texts
    assert all(planned.state is State.HIT for planned in plan_steps([step], options).by_identity.values())


def test_validation_documents_get_a_cache_of_their_own(
    documents: ExecutorStep, tiny_corpus: Path, tiny_tokenizer: str, tmp_path: Path
) -> None:
    step = default_tokenize("tiny", documents, tiny_tokenizer, validation=f"{tiny_corpus}/00.jsonl", workers=0)
    outcome = run_steps([step], ExecutorOptions(prefix=str(tmp_path), launcher="driver"))
    assert open_cache(outcome.path(step / "tokens/train")).rows == 100
    assert 0 < open_cache(outcome.path(step / "tokens/validation")).rows <= 100


def test_another_tokenizer_is_another_step_and_workers_are_not(
    documents: ExecutorStep, tiny_tokenizer: str, tmp_path: Path
) -> None:
    options = ExecutorOptions(prefix=str(tmp_path), launcher="driver")

    def identity(**changes: object) -> set[str]:
        arguments = {"tokenizer": tiny_tokenizer, "workers": 1, **changes}
        return set(plan_steps([default_tokenize("tiny", documents, **arguments)], options).by_identity)  # type: ignore[arg-type]

    assert identity() == identity(workers=2) == identity(max_bad_records=5)
    assert identity() != identity(tokenizer="gpt2")
