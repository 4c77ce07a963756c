"""Defines the Transformer (base), encoder and decoder, in plain PyTorch.

Parameters with a shared vocabulary of 37,000, checked in the tests: 63,082,496; table 3 of the paper says 65
million for a vocabulary of "about 37,000".

Source: Vaswani et al., "Attention Is All You Need" (2017): six layers each, width 512, 8 heads, 2048 hidden
units, layer norm after each residual sum, sine and cosine positions, dropout 0.1, one matrix for both
embeddings and the output. Initialisation: normal of deviation width**-0.5 for the embedding, Xavier's uniform
for the rest (as in tensor2tensor [recalled]).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gradwire.traces.models.attention import Attention, EncoderLayer, feed_forward


def positions(length: int, width: int, device: torch.device) -> Tensor:
    """Return the position encoding of section 3.5, float32 [length, width]: sines in even columns, cosines in
    odd ones."""
    position = torch.arange(length, dtype=torch.float32, device=device)[:, None]
    rate = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(10_000.0) / width))
    return torch.stack([torch.sin(position * rate), torch.cos(position * rate)], dim=-1).flatten(1)


class DecoderLayer(nn.Module):
    """Causal attention to itself, attention to the encoder's output, feed-forward."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout, causal=True)
        self.norm1 = nn.LayerNorm(width)
        self.cross = Attention(width, heads, dropout)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = feed_forward(width, hidden, nn.ReLU())
        self.norm3 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.attention(x)))
        x = self.norm2(x + self.dropout(self.cross(x, memory)))
        return self.norm3(x + self.dropout(self.feed_forward(x)))


class Transformer(nn.Module):
    """Source int64 [N, S] and target int64 [N, T] to logits [N, T, vocabulary] of the token after each target token."""

    def __init__(
        self,
        vocabulary: int = 37_000,
        width: int = 512,
        heads: int = 8,
        hidden: int = 2048,
        layers: int = 6,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder = nn.ModuleList(EncoderLayer(width, heads, hidden, dropout, nn.ReLU()) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderLayer(width, heads, hidden, dropout) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.dropout = nn.Dropout(dropout)
        for module in self.modules():
            if isinstance(module, nn.Linear) and module is not self.head:
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.head.weight = self.embedding.weight

    def _embed(self, tokens: Tensor) -> Tensor:
        width = self.embedding.embedding_dim
        x = self.embedding(tokens) * math.sqrt(width)
        return self.dropout(x + positions(tokens.shape[1], width, tokens.device).to(x.dtype))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self._embed(source)
        for layer in self.encoder:
            memory = layer(memory)
        y = self._embed(target)
        for layer in self.decoder:
            y = layer(y, memory)
        return self.head(y)


transformer_base = Transformer  # 63,082,496 parameters with 37,000 tokens
