"""Makes the golden logits and gradients of tests/parity/models from transformers.

Run:  PYTHONPATH=tests .venv/bin/python tests/parity/make_model_goldens.py   (needs torch==2.13.0; two minutes)
In:   the variants of model_variants.py, or those of them that are named behind the command.
Out:  models/NAME.npz with logits and gradients of every tensor; of models whose code is ours some have no gradients,
      but all have tokens that `generate` gives and a hash of the code, once folders held (exported_in_torch.py).
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_MODULES_CACHE", tempfile.mkdtemp())  # where transformers copies code of folders to

import numpy as np
import torch
import transformers
from exported_in_torch import check_exported, code_hash, generated
from model_variants import GOLDENS, OF_OUR_CODE, PROMPT, VARIANTS, WITH_GRADIENTS, tokens, weight

from ponente.models.hf_code import modeling_mudd

STORED = {"gpt_neox": {"lm_head.weight": "embed_out.weight"}}  # tensors that files call otherwise than torch does
OURS = {
    "mudd": (modeling_mudd.MuddConfig, modeling_mudd.MuddForCausalLM),
    "mudd_pythia": (modeling_mudd.MuddPythiaConfig, modeling_mudd.MuddPythiaForCausalLM),
}


def main() -> None:
    GOLDENS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or VARIANTS:
        logits, gradients = theirs(VARIANTS[name])
        arrays = {f"gradient {tensor}": gradient for tensor, gradient in gradients.items() if name in WITH_GRADIENTS}
        if name in OF_OUR_CODE:
            with tempfile.TemporaryDirectory() as folder:
                print(name, "apart from ours:", check_exported(name, Path(folder)))
            ids = torch.from_numpy(tokens())[:, :PROMPT]
            arrays |= {"generated": generated(built(VARIANTS[name]), ids).numpy(), "code": np.array(code_hash())}
        np.savez_compressed(GOLDENS / f"{name}.npz", logits=logits, **arrays)
        print(name, logits.shape, len(gradients))


def theirs(config: dict[str, object]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Logits, and the gradient of the mean cross-entropy of the next token by every tensor, in float32."""
    model = built(config)
    ids = torch.from_numpy(tokens())
    logits = model(ids).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    parameters = _parameters(model, config)
    unused = {tensor: torch.zeros_like(parameter) for tensor, parameter in parameters.items() if parameter.grad is None}
    gradients = {tensor: unused.get(tensor, parameter.grad).numpy() for tensor, parameter in parameters.items()}
    return logits.detach().numpy(), gradients


def built(config: dict[str, object]) -> Any:
    """The model in torch, with weights by the formula."""
    kind = str(config["model_type"])
    if kind in OURS:
        settings = OURS[kind][0](**config)
        settings._attn_implementation = "eager"
        model = OURS[kind][1](settings)
    else:
        settings = transformers.AutoConfig.for_model(**config)
        settings._attn_implementation = "eager"
        model = transformers.AutoModelForCausalLM.from_config(settings)
    with torch.no_grad():
        for tensor, parameter in _parameters(model, config).items():
            parameter.copy_(torch.from_numpy(weight(tensor, tuple(parameter.shape))))
    return model.float().eval()


def _parameters(model: Any, config: dict[str, object]) -> dict[str, Any]:
    """By the names that files have."""
    stored = STORED.get(str(config["model_type"]), {})
    return {stored.get(tensor, tensor): parameter for tensor, parameter in model.named_parameters()}


if __name__ == "__main__":
    main()
