"""The shapes that are measured on one H200, and what a token of each costs."""

from dataclasses import dataclass

PEAK_FLOPS = 989.4e12  # dense bf16, by the datasheet
FIRST, LAST = 20, 60  # the steps that count


@dataclass(frozen=True)
class Shape:
    """A Llama: 24 layers, 2048 wide, of 1.6 billion weights beside embeddings and head, unless it says otherwise."""

    layers: int = 24
    width: int = 2048
    mlp: int = 8192
    heads: int = 16
    vocabulary: int = 128_256
    length: int = 2048
    tokenizer: str = "llama3.1"

    @property
    def weights(self) -> int:
        """Of the matrices that each token goes through."""
        return self.layers * (4 * self.width**2 + 3 * self.width * self.mlp) + self.width * self.vocabulary

    def flops_per_token(self, pairs: float | None = None) -> float:
        """Forward and backward; pairs of tokens that see each other, for each token: by default half the row."""
        seen = self.length / 2 if pairs is None else pairs
        return 6 * self.weights + 12 * self.layers * self.width * seen

    def mfu(self, tokens_per_second: float, pairs: float | None = None) -> float:
        return tokens_per_second * self.flops_per_token(pairs) / PEAK_FLOPS


SHAPES = {
    "dclm1b": Shape(),
    "long8k": Shape(length=8192),
    "small150m": Shape(layers=12, width=768, mlp=3072, heads=12, vocabulary=50_304, length=1024, tokenizer="gpt2"),
}
