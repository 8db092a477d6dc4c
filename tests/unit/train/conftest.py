"""A training config over tiny caches."""

import json
from pathlib import Path

import pytest

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|endoftext|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture
def config(tiny_corpus: Path, tiny_tokenizer: str, tiny_texts: list[str], tmp_path: Path) -> Path:
    """A mixture of text and chat; caches are built on first use."""
    chats = tmp_path / "chats.jsonl"
    turns = [
        [{"role": "user", "content": f"Wind {n}?"}, {"role": "assistant", "content": "Ponente."}] for n in range(30)
    ]
    chats.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in turns))
    path = tmp_path / "config.yaml"
    path.write_text(
        f"""
data:
  tokenizer: {tiny_tokenizer}
  cache_dir: {tmp_path / "caches"}
  components:
    web: {{source: {{train_urls: ["{tiny_corpus}"], validation_urls: ["{tiny_corpus}"]}}}}
    chat:
      source: {{train_urls: ["{chats}"]}}
      format: {{type: chat, chat_template: {json.dumps(CHAT_TEMPLATE)}}}
      tags: [sft, winds]
  train_weights: {{web: 0.75, chat: 0.25}}
trainer: {{train_batch_size: 8, num_train_steps: 40, mp: "p=f32"}}
model: {{type: llama, seq_len: 64, hidden_dim: 32}}
"""
    )
    return path
