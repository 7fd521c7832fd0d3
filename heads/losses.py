"""Losses of (document, label) pairs, for dense logits, blocks of labels, and candidate labels."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from datamodules.batch import LabelSpace, Targets
from heads.loss_base import Labels, clamp_pairs
from heads.loss_base import Loss as Loss  # losses of your own derive from it
from zoo.core.errors import LARGEST, UserError, check_low, check_range

TINY = 1e-12


class BCE(Loss):
    r"""Binary cross-entropy.

    .. math:: L = \sum_l \log(1 + e^{x_l}) - y_l x_l
    """

    def pairs(self, logits: Tensor, truth: Tensor, labels: Labels, documents: Tensor | None) -> Tensor:
        return F.softplus(logits) - logits * truth

    def start_logits(self, space: LabelSpace) -> Tensor:
        return space.prior().logit()

    def over_block(
        self,
        logits: Tensor,
        rows: Tensor,
        columns: Tensor,
        labels: Labels,
        weight: Tensor | None,
        documents: Tensor | None,
    ) -> Tensor:
        """As in the base class, without a dense truth matrix."""
        rows, columns, inside = clamp_pairs(logits, rows, columns)
        positives = (logits[rows, columns] * inside).sum()
        softplus = F.softplus(logits)
        return (softplus if weight is None else softplus * weight).sum() - positives


class Focal(Loss):
    r"""Focal loss: pairs that are classified well count less.

    Lin et al. 2017, "Focal Loss for Dense Object Detection" (https://arxiv.org/abs/1708.02002), Eq. 5:

    .. math:: L = -\sum_l \alpha_t (1 - p_t)^\gamma \log p_t, \quad p_t = p_l \text{ if } y_l = 1 \text{ else } 1 - p_l

    Args:
        gamma: focusing exponent; 0 is BCE.
        alpha: weight of positive pairs; negative pairs have 1 - alpha. None weights both by 1.
    """

    def __init__(self, space: LabelSpace, gamma: float = 2.0, alpha: float | None = None) -> None:
        super().__init__(space)
        check_low(0, gamma=gamma)
        check_range(0, 1, alpha=alpha)
        self.gamma, self.alpha = gamma, alpha

    def pairs(self, logits: Tensor, truth: Tensor, labels: Labels, documents: Tensor | None) -> Tensor:
        values = focal(torch.where(truth, logits, -logits), self.gamma)
        return values if self.alpha is None else values * torch.where(truth, self.alpha, 1 - self.alpha)


class ClassBalanced(Loss):
    r"""Class-balanced loss: each label is weighted by the inverse of its effective number of documents.

    Cui et al. 2019, "Class-Balanced Loss Based on Effective Number of Samples" (https://arxiv.org/abs/1901.05555),
    Eq. 3 and 9, applied to each label of a multi-label problem as in Huang et al. 2021, "Balancing Methods for
    Multi-label Text Classification with Long-Tailed Class Distribution" (https://arxiv.org/abs/2109.04712):

    .. math:: L = -\sum_l w_l (1 - p_t)^\gamma \log p_t, \quad w_l \propto \frac{1 - \beta}{1 - \beta^{n_l}}

    The weights have mean 1 over the labels, as in the paper.

    Args:
        beta: 0 weights all labels equally; towards 1 the weights become those of the inverse count.
        gamma: focusing exponent, as in `Focal`.
    """

    weight: Tensor  # (num_labels,)

    def __init__(self, space: LabelSpace, beta: float = 0.9, gamma: float = 0.0) -> None:
        super().__init__(space)
        check_low(0, gamma=gamma)
        check_range(0, 1, beta=beta)
        if beta == 1:
            raise UserError(f"`beta={beta}` is too high: it must be below 1, such as 0.9999")
        self.gamma = gamma
        weight = (1 - beta) / (1 - beta ** counts_of(space))
        self.register_buffer("weight", (weight / weight.mean()).float(), persistent=False)

    def pairs(self, logits: Tensor, truth: Tensor, labels: Labels, documents: Tensor | None) -> Tensor:
        return focal(torch.where(truth, logits, -logits), self.gamma) * self.weight[labels]


class Asymmetric(Loss):
    r"""Asymmetric loss (ASL): stronger focusing on negatives, and easy negatives are discarded.

    Ridnik et al. 2021, "Asymmetric Loss For Multi-Label Classification" (https://arxiv.org/abs/2009.14119), Eq. 4-7:

    .. math::
        L = -\sum_l y_l (1 - p_l)^{\gamma_+} \log p_l + (1 - y_l) p_m^{\gamma_-} \log(1 - p_m), \quad
        p_m = \max(p_l - m, 0)

    The gradient is that of the equation; the official code, by default, treats the focusing factors as constants.

    Args:
        gamma_pos: focusing exponent of positive pairs.
        gamma_neg: focusing exponent of negative pairs.
        margin: probability shift m; negatives with a lower probability have no loss.
    """

    def __init__(self, space: LabelSpace, gamma_pos: float = 0.0, gamma_neg: float = 4.0, margin: float = 0.05) -> None:
        super().__init__(space)
        check_low(0, gamma_pos=gamma_pos, gamma_neg=gamma_neg)
        check_range(0, 1, margin=margin)
        self.gamma_pos, self.gamma_neg, self.margin = gamma_pos, gamma_neg, margin

    def pairs(self, logits: Tensor, truth: Tensor, labels: Labels, documents: Tensor | None) -> Tensor:
        return torch.where(truth, focal(logits, self.gamma_pos), self.negatives(logits))

    def negatives(self, logits: Tensor) -> Tensor:
        if self.margin == 0:
            return focal(-logits, self.gamma_neg)
        # The lower bound keeps the gradient of the power finite where p < m; the logarithm is 0 there.
        shifted = (logits.sigmoid() - self.margin).clamp_min(TINY)
        # 1 - p as the sigmoid of -x, which is exact for large x.
        return -(shifted**self.gamma_neg) * ((-logits).sigmoid() + self.margin).clamp_max(1).log()


class DistributionBalanced(Loss):
    r"""Distribution-balanced loss: re-balanced weights and negative-tolerant regularization.

    Wu et al. 2020, "Distribution-Balanced Loss for Multi-Label Classification in Long-Tailed Datasets"
    (https://arxiv.org/abs/2007.09654), Eq. 3-10:

    .. math::
        L &= \sum_l \hat r_l \left[ y_l \log(1 + e^{-(x_l - \nu_l)})
            + \tfrac{1}{\lambda} (1 - y_l) \log(1 + e^{\lambda (x_l - \nu_l)}) \right] \\
        \hat r_l &= \alpha + \sigma(\beta (r_l - \mu)), \quad
            r_l = \frac{1 / n_l}{\sum_{j: y_j = 1} 1 / n_j}, \quad \nu_l = \kappa \log(N / n_l - 1)

    r is the probability of a document under class-balanced sampling of label l, relative to that under re-sampling
    by all its labels. The paper averages over labels; we sum. For a document without labels r is infinite, and all
    weights are alpha + 1, as in the official code, which also divides nu by lambda.

    Args:
        alpha: lowest weight.
        beta: steepness of the map from r to the weight.
        mu: value of r at which the map is steepest.
        neg_scale: lambda, how much faster the gradient of negatives falls.
        bias_scale: kappa, scale of the label-specific bias; 0 turns it off.
        gamma: focusing exponent, as in `Focal`; 0 leaves it out.
    """

    inverse: Tensor  # (num_labels,) 1 / n
    shift: Tensor  # (num_labels,) nu

    def __init__(
        self,
        space: LabelSpace,
        alpha: float = 0.1,
        beta: float = 10.0,
        mu: float = 0.2,
        neg_scale: float = 2.0,
        bias_scale: float = 0.05,
        gamma: float = 0.0,
    ) -> None:
        super().__init__(space)
        check_low(0, alpha=alpha, beta=beta, bias_scale=bias_scale, gamma=gamma)
        check_range(-LARGEST, LARGEST, mu=mu)
        check_low(TINY, neg_scale=neg_scale)
        self.alpha, self.beta, self.mu, self.neg_scale, self.gamma = alpha, beta, mu, neg_scale, gamma
        self.register_buffer("inverse", (1 / counts_of(space)).float(), persistent=False)
        self.register_buffer("shift", -bias_scale * space.prior().logit(), persistent=False)

    def document_values(self, targets: Targets) -> Tensor:
        """Sum of 1 / n over the labels of each document."""
        known = targets.below(len(self.inverse))
        return self.inverse.new_zeros(len(known)).index_add_(0, known.rows, self.inverse[known.indices])

    def pairs(self, logits: Tensor, truth: Tensor, labels: Labels, documents: Tensor | None) -> Tensor:
        shifted = logits - self.shift[labels]
        negative = focal(-self.neg_scale * shifted, self.gamma) / self.neg_scale
        values = torch.where(truth, focal(shifted, self.gamma), negative)
        if documents is None:  # in `start_logits`, which knows no documents
            return values
        ratio = self.inverse[labels] / documents.clamp_min(TINY).unsqueeze(1)
        return values * (self.alpha + (self.beta * (ratio - self.mu)).sigmoid())


class PropensityBCE(Loss):
    r"""Propensity-weighted BCE: positives count more where labels are often missing.

    A label that is relevant is observed with its propensity :math:`q_l`; we use the model of Jain et al. 2016,
    "Extreme Multi-label Loss Functions for Recommendation, Tagging, Ranking & Other Missing Label Applications".
    The unbiased estimate of the loss on complete labels is (Schultheis and Babbar 2021, "Unbiased Loss Functions for
    Multilabel Classification with Missing Labels", https://arxiv.org/abs/2109.11282)

    .. math::
        L = \sum_l \frac{y_l}{q_l} \ell_+(x_l) + \left(1 - \frac{y_l}{q_l}\right) \ell_-(x_l)
          = \sum_l \log(1 + e^{x_l}) - \frac{y_l}{q_l} x_l

    It has no lower bound. Qaraei et al. 2021, "Convex Surrogates for Unbiased Loss Functions in Extreme Classification
    With Missing Labels", start from the unbiased 0-1 loss and arrive at a convex upper bound of it:

    .. math:: L = \sum_l y_l \left(\frac{2}{q_l} - 1\right) \ell_+(x_l) + (1 - y_l) \ell_-(x_l)

    with :math:`\ell_\pm(x) = \log(1 + e^{\mp x})` in both.

    Args:
        form: `convex`, or `unbiased`, which may diverge when training documents are fitted well.
    """

    inverse: Tensor  # (num_labels,) 1 / q

    def __init__(self, space: LabelSpace, form: Literal["convex", "unbiased"] = "convex") -> None:
        super().__init__(space)
        self.form = form
        inverse = space.inverse_propensity()[: space.num_labels]
        self.register_buffer("inverse", inverse.float(), persistent=False)

    def pairs(self, logits: Tensor, truth: Tensor, labels: Labels, documents: Tensor | None) -> Tensor:
        inverse = self.inverse[labels]
        if self.form == "unbiased":
            return F.softplus(logits) - truth * inverse * logits
        return F.softplus(torch.where(truth, -logits, logits)) * torch.where(truth, 2 * inverse - 1, 1.0)


class SquaredHinge(Loss):
    r"""Squared hinge loss, as in linear SVMs such as DiSMEC (Babbar and Schölkopf 2017).

    .. math:: L = \sum_l \max(0, m - s_l x_l)^2, \quad s_l = 2 y_l - 1

    Labels are ranked by their logits, as always. Scores are the sigmoid of the logits: they lie in [0, 1], in the
    same order, but are not probabilities.

    Args:
        margin: distance m from 0 beyond which a logit of the right sign has no loss.
    """

    def __init__(self, space: LabelSpace, margin: float = 1.0) -> None:
        super().__init__(space)
        check_low(0, margin=margin)
        self.margin = margin

    def pairs(self, logits: Tensor, truth: Tensor, labels: Labels, documents: Tensor | None) -> Tensor:
        return (self.margin - torch.where(truth, logits, -logits)).clamp_min(0).square()


def bce(logits: Tensor, targets: Targets) -> Tensor:
    """Binary cross-entropy, summed over labels and averaged over documents."""
    value: Tensor = BCE()(logits, targets)
    return value


def focal(margins: Tensor, gamma: float) -> Tensor:
    """-(1 - p)^gamma log(p) with p = sigmoid(margin); finite with finite gradients for any finite margin."""
    values = F.softplus(-margins)
    return values if gamma == 0 else (-gamma * F.softplus(margins)).exp() * values


def counts_of(space: LabelSpace) -> Tensor:
    """Training documents of each label, at least 1, (num_labels,) float64."""
    return torch.tensor(space.counts, dtype=torch.float64).clamp_min(1)
