"""One encoder per level of a label tree."""

from __future__ import annotations

from collections.abc import Callable

import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from backbones.base import Backbone, Features
from datamodules.batch import Batch, LabelSpace
from zoo.core.errors import MANY, UserError, check_range


class PerLevel(Backbone):
    """Several encoders of one kind, which heads see as the layers of one backbone.

    AttentionXML has an encoder per level of its tree, initialized from that of the level above. A head starts a level
    with `begin`; encoders of later levels then do not run.

    Args:
        encoder: builds an encoder, one with word vectors.
        levels: number of encoders.
    """

    level: Tensor  # () last encoder that runs, from 0, and the one that is trained

    def __init__(self, space: LabelSpace, encoder: Callable[[LabelSpace], Backbone], levels: int = 2) -> None:
        super().__init__()
        check_range(1, MANY, levels=levels)
        copies = [encoder(space) for _ in range(levels)]
        if copies[0].self_contained():
            raise UserError(f"PerLevel cannot copy {type(copies[0]).__name__}: use one encoder for all levels")
        self.encoders = nn.ModuleList(copies)
        self.dim, self.has_tokens, self.num_layers = copies[0].dim, copies[0].has_tokens, levels
        self.max_length = copies[0].max_length
        self.reads_counts, self.reads_values = copies[0].reads_counts, copies[0].reads_values
        self.register_buffer("level", torch.tensor(levels - 1))

    def check_indices(self) -> None:
        if not 0 <= int(self.level) < len(self.encoders):
            raise UserError(f"the checkpoint trains encoder {int(self.level)}, which does not exist")

    def begin(self, level: int) -> None:
        """Start the encoder of a level from the weights of the level above."""
        if level >= len(self.encoders):
            raise UserError(f"level {level + 1} has no encoder: set `levels={level + 1}` or higher")
        if level:
            self.encoders[level].load_state_dict(self.encoders[level - 1].state_dict())
        self.level.fill_(level)

    def forward(self, batch: Batch) -> Features:
        level = int(self.level)
        each = [encoder(batch) for encoder in self.encoders[: level + 1]]
        each += each[-1:] * (len(self.encoders) - len(each))
        layers, vectors = tuple(f.tokens for f in each), tuple(f.pooled for f in each)
        return Features(layers[-1], each[-1].mask, vectors[-1], layers, vectors)

    def word_embeddings(self) -> list[nn.Embedding]:
        return [table for encoder in self._each() for table in encoder.word_embeddings()]

    def on_tokens(self, values: Tensor, batch: Batch) -> Tensor:
        return self._each()[0].on_tokens(values, batch)

    def _each(self) -> list[Backbone]:
        return [encoder for encoder in self.encoders if isinstance(encoder, Backbone)]

    def learn_counts(self, counts: csr_array) -> None:
        for encoder in self._each():
            encoder.learn_counts(counts)

    def load_vectors(self, vectors: Tensor) -> None:
        for encoder in self._each():
            try:
                encoder.load_vectors(vectors)
            except UserError as error:
                error.owner = "encoder"  # the message names its settings
                raise
