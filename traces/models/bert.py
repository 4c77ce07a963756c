"""Defines BERT-base in plain PyTorch, with the masked-token head.

Parameters with the published vocabulary of 30,522, checked in the tests: 109,514,298, as in Hugging Face's
"BertForMaskedLM"; the paper rounds to 110 M. The head for "next sentence" (592,130 more) is left out, as plain text has
no marked sentences.

Source: Devlin et al., "BERT" (2019): 12 layers, width 768, 12 heads, 3072 hidden units, layer norm after each residual
sum, learned positions (512), GELU, dropout 0.1, normal initialisation of deviation 0.02. The output matrix is the
embedding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gradwire.traces.models.attention import EncoderLayer

EPSILON = 1e-12  # of the layer norms, as published


class BERT(nn.Module):
    """Tokens int64 [N, length] to logits [N, length, vocabulary] of the true token at each position. `chosen` bool [N,
    length] restricts the head to those positions; the logits are then [chosen, vocabulary]. All tokens are of segment
    0."""

    def __init__(
        self,
        vocabulary: int = 30_522,
        width: int = 768,
        heads: int = 12,
        layers: int = 12,
        length: int = 512,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.segment = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self.layers = nn.ModuleList(
            EncoderLayer(width, heads, 4 * width, dropout, nn.GELU(), EPSILON) for _ in range(layers)
        )
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, eps=EPSILON))
        self.head = nn.Linear(width, vocabulary)
        self.dropout = nn.Dropout(dropout)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding) and module is not self.head:
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, chosen: Tensor | None = None) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        segments = torch.zeros_like(tokens)
        y = self.embedding(tokens) + self.position(positions) + self.segment(segments)
        y = self.dropout(self.norm(y))
        for layer in self.layers:
            y = layer(y)
        return self.head(self.transform(y if chosen is None else y[chosen]))


bert_base = BERT  # 109,514,298 parameters with 30,522 tokens
