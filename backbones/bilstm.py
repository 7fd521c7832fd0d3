"""The recurrent encoder of HTTN, LSFA, AttentionXML and LightAttention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from backbones.base import Features, WordBackbone
from backbones.dropout import Dropout
from backbones.pooling import MaskedPool, Pooling
from datamodules.batch import Batch, LabelSpace
from zoo.core.errors import check_range, check_width
from zoo.core.exporting import is_exporting

LSTM_MODE = 2  # of `mkldnn_rnn_layer`


class BiLSTM(WordBackbone):
    """Word vectors and a bidirectional LSTM layer.

    Each direction is a separate LSTM over padded tensors. The backward one reads every document reversed within its own
    length: padding comes last, and no packing is needed, which is more than 20 times slower on a CPU.

    Args:
        embed_dim: width of the word vectors.
        hidden: hidden width of each direction.
        embed_dropout: dropout rate of the word vectors.
        dropout: dropout rate of the token states.
        pooling: how token states are pooled; attention as in HTTN.
        learned_state: learn the initial state, which is zero otherwise.
        freeze_embedding: do not train the word vectors.
        first: read only the first tokens of a document, if another part of the model reads more. Default: all.
    """

    def __init__(
        self,
        space: LabelSpace,
        embed_dim: int = 300,
        hidden: int = 256,
        embed_dropout: float = 0.2,
        dropout: float = 0.5,
        pooling: Pooling = "attention",
        learned_state: bool = True,
        freeze_embedding: bool = False,
        first: int | None = None,
    ) -> None:
        check_width(hidden=hidden)
        check_range(0, 1, dropout=dropout)
        super().__init__(space, embed_dim, embed_dropout, freeze_embedding, first)
        self.dim = 2 * hidden
        self.forward_lstm = nn.LSTM(embed_dim, hidden, batch_first=True)
        self.backward_lstm = nn.LSTM(embed_dim, hidden, batch_first=True)
        # (direction, hidden and cell state, width)
        self.state = nn.Parameter(torch.zeros(2, 2, hidden)) if learned_state else None
        self.dropout = Dropout(dropout)
        self.pool = MaskedPool(self.dim, pooling)

    def forward(self, batch: Batch) -> Features:
        batch = batch.first(self.first)
        words = self.embed(batch)
        reverse = reversed_positions(batch.mask)
        ahead = self.run(self.forward_lstm, words, 0)
        back = take(self.run(self.backward_lstm, take(words, reverse), 1), reverse)
        tokens = self.dropout(torch.cat([ahead, back], -1)) * batch.mask.unsqueeze(-1)
        return Features(tokens, batch.mask, self.pool(tokens, batch.mask), (tokens,))

    def run(self, lstm: nn.LSTM, words: Tensor, direction: int) -> Tensor:
        """States (batch, length, hidden) of one direction."""
        start: tuple[Tensor, Tensor] | None = None
        if self.state is not None:
            hidden, cell = self.state[direction].unsqueeze(1).expand(-1, words.shape[0], -1).contiguous()
            start = (hidden.unsqueeze(0), cell.unsqueeze(0))
        if is_exporting():
            return exported_lstm(lstm, words, start)
        states: Tensor = lstm(words, start)[0]
        return states


def exported_lstm(lstm: nn.LSTM, words: Tensor, start: tuple[Tensor, Tensor] | None) -> Tensor:
    """States of a one-layer LSTM as a single operation: tracing `nn.LSTM` would unroll it to the example's length."""
    zero = words.new_zeros(1, words.shape[0], lstm.hidden_size)
    hidden, cell = start or (zero, zero)
    weights = (lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.bias_ih_l0, lstm.bias_hh_l0)
    states: Tensor = torch.ops.aten.mkldnn_rnn_layer(
        words.transpose(0, 1).contiguous(), *weights, hidden[0], cell[0], False, [], LSTM_MODE, lstm.hidden_size,
        1, True, False, False, False
    )[0]  # fmt: skip
    return states.transpose(0, 1)


def reversed_positions(mask: Tensor) -> Tensor:
    """Position of each token in its reversed document (batch, length); padding stays where it is."""
    place = torch.arange(mask.shape[1], device=mask.device)
    return torch.where(mask, mask.sum(1, keepdim=True) - 1 - place, place)


def take(x: Tensor, positions: Tensor) -> Tensor:
    """x[b, positions[b, t]] for x (batch, length, width)."""
    return x.gather(1, positions.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
