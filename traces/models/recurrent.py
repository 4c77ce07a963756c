"""Defines LSTM language models in plain PyTorch, the medium and large ones by Zaremba et al., and a small one.

Parameters with a vocabulary of 10,000, checked in the tests: 19,780,400 (650 units) and 66,034,000 (1500); the paper
rounds to 20 M and 66 M. torch's LSTM has two biases where the paper has one, a difference of less than 0.1 %.

Source: Zaremba, Sutskever, Vinyals, "Recurrent Neural Network Regularization" (2014): two layers, dropout on
non-recurrent connections (0.5 and 0.65), uniform initialisation within 0.05 and 0.04. The state starts at zero in every
sample instead of that of the previous batch: our choice, as samples are drawn at random.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn


class LSTMModel(nn.Module):
    """Tokens int64 [N, length] to logits [N, length, vocabulary] of the token that follows each. Every layer is a
    module of its own, so that a trace times and orders them separately."""

    def __init__(self, vocabulary: int, width: int, layers: int = 2, dropout: float = 0.5, start: float = 0.05) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)
        self.dropout = nn.Dropout(dropout)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -start, start)

    def forward(self, tokens: Tensor) -> Tensor:
        y = self.dropout(self.embedding(tokens))
        for layer in self.layers:
            y = self.dropout(layer(y)[0])
        return self.head(y)


# Models by name; parameters with the default vocabulary, 10,000 or 128.
lstm = partial(LSTMModel, width=650)  # medium: 19,780,400
lstm_large = partial(LSTMModel, width=1500, dropout=0.65, start=0.04)  # 66,034,000
char_lstm = partial(LSTMModel, width=192, layers=1, dropout=0.0)  # for characters, our choice: 345,728
