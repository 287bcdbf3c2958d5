"""The language model of the experiment: a transformer of two layers."""

import torch
from torch import nn


class LanguageModel(nn.Module):
    """Predicts each token from those before it."""

    def __init__(self, outputs: int, block: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(outputs, width), nn.Embedding(block, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.outputs = nn.Linear(width, outputs)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (n, t, outputs), for tokens, shape (n, t)."""
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        hidden = self.tokens(tokens) + self.places(torch.arange(length, device=tokens.device))
        return self.outputs(self.layers(hidden, mask=mask, is_causal=True))


def language_model(*, outputs: int, block: int = 32, width: int = 32, heads: int = 2, layers: int = 2) -> nn.Module:
    """Return a model of ``outputs`` tokens, which follow from the data, and of texts of up to ``block`` tokens."""
    return LanguageModel(outputs, block, width, heads, layers)
