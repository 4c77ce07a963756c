"""Defines GPT-2 (small) in plain PyTorch, and a very small one for characters.

Parameters with the published vocabulary of 50,257, checked in the tests: 124,439,808; of the small one, two layers of
width 128 (our choice), with 128 characters: 445,952.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), and the released code: 12 layers,
width 768, 12 heads, learned positions (1024), layer norm before attention and feed-forward and once at the end,
tanh-approximated GELU, one linear layer for queries, keys and values, dropout 0.1, normal initialisation of deviation
0.02, smaller by sqrt(2 layers) before a residual sum. The output matrix is the embedding.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from gradwire.traces.models.attention import feed_forward, join_heads, split_heads


class CausalAttention(nn.Module):
    """Attention of each position of [N, length, width] to itself and earlier ones, with one fused projection."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.rate = heads, dropout
        self.fused = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (split_heads(part, self.heads) for part in self.fused(x).chunk(3, dim=-1))
        rate = self.rate if self.training else 0.0
        y = scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=True)
        return self.output(join_heads(y))


class DecoderBlock(nn.Module):
    """Layer norm before attention and before feed-forward, each added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = feed_forward(width, 4 * width, nn.GELU(approximate="tanh"))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.feed_forward(self.norm2(x)))


class GPT2(nn.Module):
    """Tokens int64 [N, length] to logits [N, length, vocabulary] of the token that follows each."""

    def __init__(
        self,
        vocabulary: int = 50_257,
        width: int = 768,
        heads: int = 12,
        layers: int = 12,
        length: int = 1024,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(DecoderBlock(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.dropout = nn.Dropout(dropout)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding) and module is not self.head:
                ends = name.endswith(("attention.output", "feed_forward.2"))
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * layers) if ends else 0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        y = self.dropout(self.embedding(tokens) + self.position(positions))
        for block in self.blocks:
            y = block(y)
        return self.head(self.norm(y))


# Models by name; parameters with the default vocabulary, 50,257 or 128.
gpt2_small = GPT2  # 124,439,808
char_gpt = partial(GPT2, width=128, heads=4, layers=2, length=256, dropout=0.0)  # for characters: 445,952
