"""Can a small model learn to write like Shakespeare in two minutes on a laptop? From text to a model, as a graph.

Run:   make quickstart                                        # or:
       python experiments/tutorials/first_model.py --dry_run  # the plan: what would run, and why
       python experiments/tutorials/first_model.py            # the second time every step is a hit
Cost:  about two minutes on 2 cores.   Expected: a loss of about 4.5 nats a token, 2.5 bits a byte.

Change STEPS or MODEL below and run it again: the text is not tokenized again, and `--dry_run` names the field.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import fsspec

from ponente.config import execution
from ponente.evaluate.command import EvalConfig
from ponente.executor import ExecutorStep, Summary, executor_main, this_output_path
from ponente.experiment.tokenize import default_tokenize
from ponente.experiment.training import (
    EvaluateStepConfig,
    SampleStepConfig,
    TrainStepConfig,
    evaluate_step,
    sample_step,
    train_step,
)
from ponente.generate.sampling import SamplingConfig
from ponente.models.llama import LlamaConfig
from ponente.store.documents import Document, read_documents, write_documents
from ponente.store.sources import UrlSourceConfig
from ponente.tokens.bpe import train_bpe
from ponente.train.config import TrainConfig
from ponente.train.data.config import TrainComponentConfig, TrainDataConfig
from ponente.train.optimizers import AdamConfig
from ponente.train.trainer import TrainerConfig

STEPS = 300
MODEL = LlamaConfig(
    max_seq_len=128, hidden_dim=128, intermediate_dim=384, num_layers=4, num_heads=4, num_kv_heads=2,
    tie_word_embeddings=True, gradient_checkpointing=False,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DocumentsConfig:
    """A text that is known by its content, as documents of so many speeches; the last tenth is for validation."""

    sha256: str
    speeches: int = 40
    path: str = execution()
    output_path: str = this_output_path()


def split_text(config: DocumentsConfig) -> Summary:
    """Writes train.parquet and validation.parquet."""
    data = Path(config.path).read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != config.sha256:
        raise ValueError(f"found {config.path} with sha256 {found}; needed {config.sha256}. Restore it from git")
    speeches = data.decode().split("\n\n")
    groups = [speeches[first : first + config.speeches] for first in range(0, len(speeches), config.speeches)]
    documents = [
        Document(id=f"scene-{number:04d}", text="\n\n".join(group), source="tinyshakespeare", metadata={})
        for number, group in enumerate(groups)
    ]
    border = len(documents) * 9 // 10
    write_documents(f"{config.output_path}/train.parquet", documents[:border])
    write_documents(f"{config.output_path}/validation.parquet", documents[border:])
    return Summary(values={"documents": len(documents)})


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """A byte-level BPE of a text."""

    documents: str
    vocab_size: int = 2048
    output_path: str = this_output_path("tokenizer")


def learn_tokenizer(config: TokenizerConfig) -> None:
    """Learns the tokenizer from the documents that are trained on."""
    train_bpe((one.text for one in read_documents(config.documents)), config.output_path, vocab_size=config.vocab_size)


documents = ExecutorStep(
    name="first_model/documents",
    fn=split_text,
    config=DocumentsConfig(
        sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        path=str(Path(__file__).with_name("shakespeare.txt")),
    ),
)
tokenizer = ExecutorStep(
    name="first_model/tokenizer", fn=learn_tokenizer, config=TokenizerConfig(documents=documents / "train.parquet")
)
source = UrlSourceConfig(train_urls=(documents / "train.parquet",), validation_urls=(documents / "validation.parquet",))
tokens = default_tokenize("first_model", source, tokenizer / "tokenizer")
data = TrainDataConfig(tokenizer=tokenizer / "tokenizer", components={"plays": TrainComponentConfig(source=source)})
caches = {"plays": tokens / "tokens"}
model = ExecutorStep(
    name="first_model/model",
    fn=train_step,
    config=TrainStepConfig(
        train=TrainConfig(
            data=data,
            model=MODEL,
            optimizer=AdamConfig(learning_rate=3e-3, warmup=50),
            trainer=TrainerConfig(num_train_steps=STEPS, train_batch_size=16, steps_per_eval=100),
        ),
        caches=caches,
    ),
)
scores = ExecutorStep(
    name="first_model/scores",
    fn=evaluate_step,
    config=EvaluateStepConfig(
        model=model / "hf",
        evaluation=EvalConfig(data=data, trainer=TrainerConfig(train_batch_size=16), train_seq_len=128),
        caches=caches,
    ),
)
samples = ExecutorStep(
    name="first_model/samples",
    fn=sample_step,
    config=SampleStepConfig(
        model=model / "hf",
        prompts=("ROMEO:\n", "To be, or not to be", "First Citizen:\nBefore we proceed"),
        sampling=SamplingConfig(max_new_tokens=100, temperature=0.8, top_k=50),
    ),
)

if __name__ == "__main__":
    outcome = executor_main(steps=[scores, samples], description=__doc__)
    if outcome is not None and samples in outcome and scores in outcome:
        places = {
            "documents": documents,
            "tokenizer": tokenizer / "tokenizer",
            "token cache": tokens / "tokens",
            "model (Hugging Face)": model / "hf",
            "scores": scores / "metrics.json",
            "samples": samples / "samples.json",
        }
        for name, place in places.items():
            print(f"  {name:<22}{outcome.path(place)}")
        with fsspec.open(outcome.path(scores / "metrics.json")) as file:
            metrics = json.load(file)
        print(f"\nvalidation loss {metrics['eval/loss']:.3f}, {metrics['eval/bpb']:.3f} bits a byte. It writes:\n")
        with fsspec.open(outcome.path(samples / "samples.json")) as file:
            first = json.load(file)[0]
        print(f"{first['prompt']}{first['text']}")
