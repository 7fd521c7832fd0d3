"""Document vectors from the cache in place of a pass through an encoder that is not trained."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from backbones.base import Backbone, Features
from datamodules import Batch, TextDataModule
from datamodules.prepare.corpus import SPLITS
from datamodules.prepare.dense_vectors import FOLDER
from heads.base import Head


class KnownVectors:
    """Cached document vectors of the corpus, found by the tokens of a document.

    They are valid as long as the encoder has the weights that they were computed with.

    Args:
        data: corpus.
        backbone: encoder.
        precision: precision of the trainer.
    """

    def __init__(self, data: TextDataModule, backbone: Backbone, precision: str) -> None:
        self.data, self.backbone, self.precision = data, backbone, precision
        self.version: tuple[int, ...] = ()
        self.parts: list[tuple[Tensor, dict[bytes, int]]] = []  # vectors of a split, and rows by digests of tokens

    def find(self, batch: Batch) -> Tensor | None:
        """Vectors of the documents, on the device of the batch; None if one of them is unknown."""
        # Tensors count their changes in place: optimizer steps and loaded weights.
        version = tuple(tensor._version for tensor in (*self.backbone.parameters(), *self.backbone.buffers()))
        if version != self.version:
            self.version = version
            self.refresh()
        if not self.parts:
            return None
        ids, mask = batch.ids.cpu().numpy(), batch.mask.cpu().numpy()
        found = [self._vector(name_of(row[there])) for row, there in zip(ids, mask, strict=True)]
        known = [vector for vector in found if vector is not None]
        return torch.stack(known).to(batch.ids.device) if len(known) == len(found) else None

    def _vector(self, name: bytes) -> Tensor | None:
        return next((vectors[rows[name]] for vectors, rows in self.parts if name in rows), None)

    def refresh(self) -> None:
        """Read what is in the cache."""
        self.parts = []
        if not (self.data.cache_dir / FOLDER).is_dir():
            return
        key = cache_key(self.backbone, self.precision)
        for split in SPLITS:
            rows = self.data.prepared.rows(split)
            if len(rows) and (vectors := self.data.vector_cache(split, key, self.backbone.dim).load()) is not None:
                self.parts.append((vectors, {name_of(tokens): row for row, tokens in enumerate(rows.tokens())}))


def cache_key(backbone: Backbone, precision: str) -> str:
    """What the vectors of a document depend on besides its tokens."""
    return f"{backbone.digest()} {precision}"


def name_of(tokens: np.ndarray) -> bytes:
    return blake2b(np.ascontiguousarray(tokens, dtype=np.int32).data, digest_size=16).digest()


def reads_vectors_only(head: Head) -> bool:
    """Whether the head reads neither token states nor other layers than the last."""
    return not head.needs_tokens and head.needs_layers == 1


def of_vectors(vectors: Tensor, batch: Batch) -> Features:
    """Features without token states."""
    none = vectors.new_zeros(len(batch), 0, vectors.shape[1])
    return Features(none, batch.mask[:, :0], vectors, (none,))
