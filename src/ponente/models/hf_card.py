"""The README.md of a model: how it was trained, in words for people and in a header for the hub.

In: what a run knows of itself. Out: Markdown with a YAML header.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

_OF_ITS_OWN = """transformers does not know models of this kind: their code is in {files} and has to be allowed.

    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER, trust_remote_code=True)"""


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """What is said of a model; what is None is left out."""

    name: str
    run_id: str | None = None
    steps: int | None = None
    tokens: int | None = None
    data: Sequence[str] = ()  # names of the datasets
    eval_loss: float | None = None
    commit: str | None = None  # of the code
    license: str | None = None
    base_model: str | None = None  # a hub name, where training began from one
    tags: Sequence[str] = ()

    def markdown(self, code: Collection[str] = ()) -> str:
        """The whole file; `code` names the files that transformers must run, for it does not know such models."""
        header = {
            "library_name": "transformers",
            "pipeline_tag": "text-generation",
            "license": self.license,
            "base_model": self.base_model,
            "tags": ["ponente", *self.tags],
        }
        rows = {
            "run": self.run_id,
            "steps": None if self.steps is None else f"{self.steps:,}",
            "tokens": None if self.tokens is None else f"{self.tokens:,}",
            "data": ", ".join(self.data) or None,
            "evaluation loss": None if self.eval_loss is None else f"{self.eval_loss:.4f}",
            "code": self.commit,
            "begun from": self.base_model,
        }
        lines = ["---", *(f"{key}: {_yaml(value)}" for key, value in header.items() if value is not None), "---", ""]
        lines += [f"# {self.name}", "", "Trained with Ponente.", ""]
        told = [f"| {key} | {_cell(value)} |" for key, value in rows.items() if value is not None]
        lines += ["| | |", "|---|---|", *told, ""] if told else []
        if code:
            lines += [_OF_ITS_OWN.format(files=", ".join(code)), ""]
        return "\n".join(lines)


def _yaml(value: object) -> str:
    return msgspec.json.encode(value).decode()  # JSON is YAML, and nothing in it needs care


def _cell(value: str) -> str:
    return value.replace("|", "\\|").replace("\n", " ")
