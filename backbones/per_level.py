"""An encoder of its own for each level of a label tree."""

from __future__ import annotations

from collections.abc import Callable

import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from backbones.base import Backbone, Features
from datamodules.batch import Batch, LabelSpace
from datamodules.errors import UserError


class PerLevel(Backbone):
    """Copies of an encoder, trained one after the other; to a head they are layers, the first copy the first of them.

    AttentionXML has a network for each level of its tree, which begins as that of the level above. A head begins a
    level with `begin`, and from the first on copies of levels that are to come do not run.

    Args:
        encoder: what is copied; one with word vectors of its own.
        levels: how many copies.
    """

    level: Tensor  # the last copy that runs, from 0: where they are trained one by one, the one that is trained now

    def __init__(self, space: LabelSpace, encoder: Callable[[LabelSpace], Backbone], levels: int = 2) -> None:
        super().__init__()
        if levels < 1:
            raise UserError(f"--model.backbone.levels={levels} is too low: the lowest is 1")
        copies = [encoder(space) for _ in range(levels)]
        if copies[0].self_contained():
            raise UserError(f"PerLevel cannot copy {type(copies[0]).__name__}: let all levels read one encoder")
        self.encoders = nn.ModuleList(copies)
        self.dim, self.has_tokens, self.num_layers = copies[0].dim, copies[0].has_tokens, levels
        self.max_length = copies[0].max_length
        self.reads_counts, self.reads_values = copies[0].reads_counts, copies[0].reads_values
        self.register_buffer("level", torch.tensor(levels - 1))

    def begin(self, level: int) -> None:
        """Go on with the encoder of a level, which starts from the weights of the one above."""
        if level >= len(self.encoders):
            raise UserError(f"level {level + 1} has no encoder: set --model.backbone.levels={level + 1} or more")
        if level:
            self.encoders[level].load_state_dict(self.encoders[level - 1].state_dict())
        self.level.fill_(level)

    def forward(self, batch: Batch) -> Features:
        level = int(self.level)
        each = [encoder(batch) for encoder in self.encoders[: level + 1]]
        each += each[-1:] * (len(self.encoders) - len(each))
        layers, vectors = tuple(f.tokens for f in each), tuple(f.pooled for f in each)
        return Features(layers[-1], each[-1].mask, vectors[-1], layers, vectors)

    def learn_counts(self, counts: csr_array) -> None:
        for encoder in self.encoders:
            assert isinstance(encoder, Backbone)
            encoder.learn_counts(counts)

    def load_vectors(self, vectors: Tensor) -> None:
        for encoder in self.encoders:
            assert isinstance(encoder, Backbone)
            try:
                encoder.load_vectors(vectors)
            except UserError as error:  # names a setting, which is elsewhere here
                raise UserError(
                    str(error).replace("--model.backbone.", "--model.backbone.encoder.init_args.")
                ) from None
