"""Makes the golden logits and gradients of tests/parity/models from transformers.

Run:  .venv/bin/python tests/parity/make_model_goldens.py   (needs torch==2.13.0 and transformers; half a minute)
In:   the variants of model_variants.py. Out: models/NAME.npz with logits and the gradient of every tensor.
"""

import numpy as np
import torch
import transformers
from model_variants import GOLDENS, VARIANTS, tokens, weight


def main() -> None:
    GOLDENS.mkdir(exist_ok=True)
    for name, config in VARIANTS.items():
        logits, gradients = theirs(config)
        arrays = {f"gradient {tensor}": gradient for tensor, gradient in gradients.items()}
        np.savez_compressed(GOLDENS / f"{name}.npz", logits=logits, **arrays)
        print(name, logits.shape, len(gradients))


def theirs(config: dict[str, object]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Logits, and the gradient of the mean cross-entropy of the next token by every tensor, in float32."""
    settings = transformers.AutoConfig.for_model(**config)
    settings._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(settings).float().eval()
    with torch.no_grad():
        for tensor, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(weight(tensor, tuple(parameter.shape))))
    ids = torch.from_numpy(tokens())
    logits = model(ids).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    gradients = {tensor: parameter.grad.numpy() for tensor, parameter in model.named_parameters()}
    return logits.detach().numpy(), gradients


if __name__ == "__main__":
    main()
