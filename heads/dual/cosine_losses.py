"""Losses of dual encoders, from the cosines of documents and candidate labels; sum over labels, mean over documents."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def decoupled_softmax(cosines: Tensor, truth: Tensor, temperature: float) -> Tensor:
    r"""A softmax for each label of a document, whose denominator has no other label of the document.

    Gupta et al. 2024, "Dual-Encoders for Extreme Multi-Label Classification" (https://arxiv.org/abs/2310.10636), DEXML:

    .. math:: L = -\sum_{l \in P} \log \frac{e^{s_l / \tau}}{e^{s_l / \tau} + \sum_{n \notin P} e^{s_n / \tau}}

    An ordinary softmax makes the labels of a document compete with each other.

    Args:
        cosines: (docs, labels) s.
        truth: (docs, labels) bool, labels of the document P.
        temperature: tau.
    """
    logits = cosines / temperature
    # The least float and not -inf: documents without a negative would have gradients that are not numbers.
    negative = logits.masked_fill(truth, torch.finfo(logits.dtype).min).logsumexp(1, keepdim=True)
    return (F.softplus(negative - logits) * truth).sum() / len(logits)


def margin_loss(cosines: Tensor, truth: Tensor, margin: float, hardest: int | None = None) -> Tensor:
    r"""Every label of a document should be more similar to it than all others, by a margin.

    Dahiya et al. 2023, "NGAME: Negative Mining-aware Mini-batching for Extreme Classification"
    (https://arxiv.org/abs/2207.04452), Eq. 1:

    .. math:: L = \sum_{l \in P} \sum_{n \notin P} \max(0, s_n - s_l + \gamma)

    Args:
        cosines: (docs, labels) s.
        truth: (docs, labels) bool, labels of the document P.
        margin: gamma.
        hardest: only this many negatives with the largest s count. Default: all.
    """
    negatives = cosines.masked_fill(truth, -torch.inf)
    if hardest is not None and hardest < negatives.shape[1]:
        negatives = negatives.topk(hardest, dim=1).values
    document, label = truth.nonzero(as_tuple=True)
    violations = (negatives[document] - cosines[document, label].unsqueeze(1) + margin).clamp_min(0)
    return violations.sum() / len(cosines)
