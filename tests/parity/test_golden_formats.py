"""What version 0.1.0 wrote is read for ever: its records, logs, document shards, attributes and Dolma lines.

`golden/format-1` was made once by `golden/make_format_1.py`; a new format gets a folder of its own beside it.
"""

from pathlib import Path

from ponente.executor import ExecutorOptions, plan_steps
from ponente.executor.inquiry import Inquiry
from ponente.executor.plan import State
from ponente.executor.reference import Reference, load
from ponente.executor.status import Phase, status_of
from ponente.store.documents import count_documents, join_attributes, read_documents
from ponente.store.dolma import read_dolma

GOLDEN = Path(__file__).with_name("golden")
PREFIX = str(GOLDEN / "format-1")


def golden_step(name: str):
    return load(Reference(module="make_format_1", qualname=name, script=str(GOLDEN / "make_format_1.py")))


def test_steps_of_format_1_are_still_hits_and_their_places_are_found() -> None:
    documents, lengths = golden_step("documents"), golden_step("lengths")
    plan = plan_steps([documents, lengths], ExecutorOptions(prefix=PREFIX))
    assert [step.state for step in plan.steps] == [State.HIT, State.HIT]
    shards = Path(plan.step_of(lengths / "lengths").resolve(lengths / "lengths"))
    assert [path.read_text() for path in sorted(shards.glob("*.txt"))] == ["x", "xx", "xxx"]


def test_status_and_why_read_format_1() -> None:
    status = status_of(PREFIX)
    assert [step.phase for step in status.steps] == [Phase.DONE, Phase.DONE]
    assert not status.is_running
    assert "committed" in Inquiry(PREFIX).why("lengths")


def test_document_shards_of_format_1_are_read() -> None:
    folder = next(Path(PREFIX).glob("golden/documents-*")) / "output-1"
    shard = str(folder / "documents" / "00000.parquet")
    found = list(read_documents(shard))
    assert [document.text for document in found] == ["levante, ponente", "tramontana, ponente"]
    assert found[0].metadata == {"n": [1]}
    assert count_documents(shard) == 2
    joined = join_attributes(shard, {"length": str(folder / "attributes" / "length" / "00000.parquet")})
    assert [(document.id, values) for document, values in joined] == [
        ("levante", {"length": {"length": 16}}),
        ("tramontana", {"length": {"length": 19}}),
    ]
    assert list(read_dolma(str(folder / "dolma" / "00000.jsonl.zst"))) == found
