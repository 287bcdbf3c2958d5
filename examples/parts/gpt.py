"""A small GPT, for language_model.toml (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners")."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Causal self-attention and a network of two layers, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activations, shape (n, t, width)."""
        n, t, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(n, t, width))
        return x + self.network(self.norm_2(x))


class GPT(nn.Module):
    """Embeddings, blocks, and outputs that share the weights of the token embedding."""

    def __init__(self, outputs: int, block: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(outputs, width), nn.Embedding(block, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, outputs, bias=False)
        self.out.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (n, t, outputs), for tokens, shape (n, t)."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.out(self.norm(self.blocks(x)))


def gpt(*, outputs: int, block: int = 64, width: int = 64, layers: int = 2, heads: int = 2) -> nn.Module:
    """Return a GPT for ``outputs`` tokens and texts of up to ``block`` tokens."""
    return GPT(outputs, block, width, layers, heads)
