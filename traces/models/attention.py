"""Defines multi-head attention, the feed-forward layer and the encoder layer of the Transformer, BERT and GPT-2, in
PyTorch.

Every projection is a linear layer of its own, so that a trace has its times and the moment its gradient is ready.
(torch's MultiheadAttention holds them as bare parameters.)
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape [N, length, width] to [N, heads, length, width / heads]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """Undo `split_heads`."""
    return x.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Attention of `x` [N, length, width] to `memory` [N, other length, width], or to itself. With `causal`, position i
    attends to positions 0 to i only."""

    def __init__(self, width: int, heads: int, dropout: float, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal, self.rate = heads, causal, dropout
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        query = split_heads(self.query(x), self.heads)
        key = split_heads(self.key(memory), self.heads)
        value = split_heads(self.value(memory), self.heads)
        rate = self.rate if self.training else 0.0
        y = scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=self.causal)
        return self.output(join_heads(y))


def feed_forward(width: int, hidden: int, activation: nn.Module) -> nn.Sequential:
    """Two linear layers with `activation` between them."""
    return nn.Sequential(nn.Linear(width, hidden), activation, nn.Linear(hidden, width))


class EncoderLayer(nn.Module):
    """Attention to itself and a feed-forward layer, each with a residual sum and layer norm."""

    def __init__(
        self, width: int, heads: int, hidden: int, dropout: float, activation: nn.Module, epsilon: float = 1e-5
    ) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout)
        self.norm1 = nn.LayerNorm(width, eps=epsilon)
        self.feed_forward = feed_forward(width, hidden, activation)
        self.norm2 = nn.LayerNorm(width, eps=epsilon)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.attention(x)))
        return self.norm2(x + self.dropout(self.feed_forward(x)))
