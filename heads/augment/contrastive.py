"""Prototypical supervised contrastive loss (PSC) of label-specific features.

Equation numbers are those of Xu et al. 2023 (see `PvaeAugmentor`).
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

PscScale = Literal["sum", "authors"]


def contrastive_loss(
    features: Tensor, labels: Tensor, prototypes: Tensor, support: Tensor, temperature: float
) -> Tensor:
    """Cross-entropy of the cosines between a pair's feature and all prototypes, summed over pairs: L_PSC / alpha.

    Eq. 9 with the sign corrected, and with the own prototype in the denominator, which bounds the loss. Labels
    without a prototype are left out.
    """
    with torch.autocast(features.device.type, enabled=False):  # the temperature magnifies rounding errors
        cosines = F.normalize(features.float(), dim=-1) @ F.normalize(prototypes, dim=-1).T  # (pairs, num_labels)
    logits = (cosines / temperature).masked_fill(support == 0, -torch.inf)
    counted = support[labels] > 0
    # Pairs without a prototype would have an infinite loss: use any valid label, times 0.
    losses = F.cross_entropy(logits, labels.where(counted, support.argmax()), reduction="none")
    return (losses * counted).sum()


def psc_factor(scale: PscScale, documents: int, pairs: int, num_labels: int) -> float:
    """Factor of a batch's sum over pairs, added to a BCE that is summed over labels and averaged over documents.

    `sum` is Eq. 9 added to Eq. 6, both with the same reduction. The authors' code averages the BCE over labels too, and
    the contrastive loss over pairs and once more over documents: `authors` is their total times the number of labels.
    """
    return 1 / documents if scale == "sum" else num_labels / (documents * max(pairs, 1))
