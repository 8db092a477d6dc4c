"""What is asserted, in PyTorch, of folders that are exported with code of their own.

test_models.py calls it, and make_model_goldens.py before it writes.

In: a variant of model_variants.py. Out: nothing, or an assertion that fails. Needs torch and transformers.
"""

import hashlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
import transformers
from hf_models import BF16, write_model
from model_variants import GENERATED, PROMPT, VOCABULARY, tokens, weight

from ponente.models.families import lm_config_from_hf
from ponente.models.hf_connections import CODE, connected_code
from ponente.models.hf_export import save_hf_model
from ponente.models.hf_folder import open_hf_model
from ponente.models.hf_import import load_hf_weights
from ponente.models.lm import Tokens, logits

CLOSE = 1e-5  # as a share
WRONG_KEYS = ("missing_keys", "unexpected_keys", "mismatched_keys")


def code_hash() -> str:
    """Of the code that goldens were made with."""
    return hashlib.sha256(connected_code()[CODE]).hexdigest()


def check_exported(name: str, folder: Path) -> dict[str, float]:
    """Asserts all of it for one variant; gives back how far logits are from ours, as a share of them."""
    ours = _read(write_model(folder / "by_hand", name))
    save_hf_model(str(folder / "ours"), ours, ours.config, vocab_size=VOCABULARY, tokenizer_files={}, card="")
    model = _load(folder / "ours")
    for tensor, parameter in model.named_parameters():
        assert np.array_equal(parameter.detach().numpy(), weight(tensor, tuple(parameter.shape))), tensor
    exact = _our_logits(ours, np.float32)
    apart = {kind: _apart(_logits(_load(folder / "ours", kind)), exact) for kind in ("eager", "sdpa")}
    apart["ours in bfloat16"] = _apart(_our_logits(ours, BF16), exact)
    apart["bfloat16"] = _apart(_logits(_load(folder / "ours", dtype=torch.bfloat16)), exact)
    assert max(apart["eager"], apart["sdpa"]) <= CLOSE and apart["bfloat16"] <= 2 * apart["ours in bfloat16"], apart
    _check_generate(model)
    _check_padding(model)
    _check_training(_load(folder / "ours"))
    _check_autocast(_load(folder / "ours"))
    _check_first_values(type(model)(model.config))
    _check_hidden_states(model)
    model.save_pretrained(folder / "theirs")
    assert (folder / "theirs" / CODE).read_bytes() == connected_code()[CODE]
    assert np.array_equal(_logits(_load(folder / "theirs")), _logits(model))
    assert jax.tree.all(jax.tree.map(np.array_equal, _read(folder / "theirs"), _read(folder / "ours")))
    return apart


def _our_logits(model: Any, dtype: Any) -> np.ndarray:
    model, ids = jax.tree.map(lambda array: array.astype(dtype), model), tokens()
    return np.asarray(jax.jit(lambda model: logits(model, model.hidden(Tokens.plain(ids))))(model))


def _logits(model: Any) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(tokens())).logits.float().numpy()


def _apart(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def _read(place: Path) -> Any:
    folder = open_hf_model(str(place))
    return load_hf_weights(folder, lm_config_from_hf(folder.config), VOCABULARY, None)


def _load(place: Path, kind: str = "sdpa", dtype: Any = torch.float32) -> Any:
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        place, trust_remote_code=True, attn_implementation=kind, dtype=dtype, output_loading_info=True
    )
    assert not any(report[key] for key in WRONG_KEYS), report
    return model.eval()


def generated(model: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    """The tokens that the model goes on with, each the likeliest."""
    options = {"attention_mask": torch.ones_like(ids), **options}
    count = {"max_new_tokens": GENERATED, "min_new_tokens": GENERATED}
    return model.generate(ids, do_sample=False, pad_token_id=0, **count, **options)[:, ids.shape[1] :]


def _check_generate(model: Any) -> None:
    """The cache changes nothing, and is used: each step after the first reads one token."""
    ids = torch.from_numpy(tokens())[:, :PROMPT]
    lengths: list[int] = []
    hook = model.model.embed_tokens.register_forward_hook(lambda _, given, __: lengths.append(given[0].shape[1]))
    with_cache = generated(model, ids)
    hook.remove()
    assert lengths == [PROMPT] + [1] * (GENERATED - 1)
    assert torch.equal(with_cache, generated(model, ids, use_cache=False))
    two = generated(model, ids, num_beams=2)  # reorders the cache
    assert torch.equal(two, generated(model, ids, num_beams=2, use_cache=False))


def _check_padding(model: Any) -> None:
    """A row padded on the left goes on as it does alone."""
    long, short = torch.from_numpy(tokens())[:, :PROMPT]
    padded = torch.stack([long, torch.cat([torch.zeros(3, dtype=torch.long), short[3:]])])
    mask = torch.ones_like(padded)
    mask[1, :3] = 0
    both = generated(model, padded, attention_mask=mask)
    assert torch.equal(both[0], generated(model, long[None])[0])
    assert torch.equal(both[1], generated(model, short[3:][None])[0])


def _check_training(model: Any) -> None:
    """The loss is that of the logits, every weight has a gradient, and checkpointing changes none."""
    ids = torch.from_numpy(tokens())
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.train().zero_grad()
        out = model(ids, labels=ids)
        plain = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        assert torch.allclose(out.loss, plain)
        out.loss.backward()
        gradients.append({name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None})
    assert {name for name, _ in model.named_parameters()} == set(gradients[0])
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], atol=1e-6), name


def _check_autocast(model: Any) -> None:
    """Sums over states, and what weighs them, stay in float32; with 0 in the networks' way there is nothing else."""
    kinds: list[torch.dtype] = []
    for connection, states in _states(model):
        if connection.w_in is not None:
            connection.w_out.register_forward_hook(lambda _, __, made: kinds.append(made.dtype))
            torch.nn.init.zeros_(connection.w_in.weight)
        exact = connection(*states)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = connection(*states)
        assert all(map(torch.equal, found, exact))
    assert set(kinds) <= {torch.float32} and bool(kinds) == model.config.mudd_dynamic


def _check_first_values(model: Any) -> None:
    """At first the model is that without connections: all ways take the last state."""
    for connection, (last, *earlier) in _states(model):
        assert all(torch.equal(stream, last) for stream in connection(last, *earlier)[1:])
        assert connection.w_in is None or 0.5 < connection.w_in.weight.std() * model.config.hidden_size**0.5 < 2
        assert connection.norm_after is None or torch.all(connection.norm_after.weight == torch.tensor(1e-3))


def _states(model: Any) -> list[tuple[Any, list[torch.Tensor]]]:
    """Each connection, and random states for it, the last one first."""
    states = torch.randn(len(model.model.connections) + 1, 2, 5, model.config.hidden_size)
    return [
        (connection, [states[number], *states[:number]])
        for number, connection in enumerate(model.model.connections, start=1)
    ]


def _check_hidden_states(model: Any) -> None:
    """They are given where asked for, by argument or config; weights of attention are refused."""
    ids = torch.from_numpy(tokens())
    assert model(ids).hidden_states is None
    found = model(ids, output_hidden_states=True).hidden_states
    assert len(found) == model.config.num_hidden_layers + 1
    assert torch.equal(model.lm_head(found[-1]), model(ids).logits)
    try:
        model(ids, output_attentions=True)
    except ValueError as error:
        assert "needed false" in str(error)
    else:
        raise AssertionError("output_attentions was not refused")
