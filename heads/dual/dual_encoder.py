"""Labels by their texts: one vector for the document, one for the label, and their cosine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from backbones.base import Features
from datamodules.batch import Batch, LabelSpace, Targets
from heads.base import Head, Ranking, TransitionContext
from heads.dual.cosine_losses import decoupled_softmax, margin_loss
from heads.dual.label_text_head import LabelTextHead, MakeBackbone
from heads.dual.negatives import Siblings, best_wrong
from heads.tail.reranker import OutOfFold
from zoo.core.errors import MANY, UserError, check_low, check_range, check_width

FOLDS = 3  # of `engine_negatives`


class DualEncoder(LabelTextHead):
    r"""Scores a label by the cosine of its text's vector with the document's, so that it needs no training documents.

    Two methods are settings of it, and share all that is not in their names:

    - DEXML (Gupta et al. 2024, "Dual-Encoders for Extreme Multi-Label Classification",
      https://arxiv.org/abs/2310.10636): `objective: softmax`, with all labels as candidates (`random_negatives: null`).
    - NGAME (Dahiya et al. 2023, "NGAME: Negative Mining-aware Mini-batching for Extreme Classification",
      https://arxiv.org/abs/2207.04452): `objective: margin`, hard negatives (`own_negatives`), and then a stage that
      trains classifier rows, which start at the vectors of the texts (`start_rows`).

    The candidate labels of a batch are the labels of all its documents, `random_negatives` others, and for each
    document `hard_negatives` labels that a model ranks high although they are wrong: the head itself (`own_negatives`
    in `each_epoch`) or a linear engine (`engine_negatives`). NGAME puts similar documents into a batch instead, so that
    a document finds its hard negatives among the labels of the others.

    A label is scored by its row if it has one, and by its text otherwise. Labels without a text always have a row. With
    `data.unseen_labels=score`, labels without training documents are ranked by their texts. Scores are
    sigmoid(a cos + b); `calibrate` fits a and b on validation documents, for rows and for texts.

    Args:
        label_encoder: encoder of label texts. Default: the backbone, shared with the documents.
        hidden: width of a linear projection of the vectors. Default: none with a shared encoder, else the backbone's.
        label_length: maximum number of tokens of a label text; the rest is truncated.
        objective: `softmax` of DEXML or `margin` of NGAME.
        temperature: of `softmax`.
        margin: of `margin`.
        hardest: number of negatives of a document that `margin` counts, those with the largest cosine. Default: all.
        positives: maximum number of labels of a document, drawn at random, that become candidates. Default: all.
        random_negatives: number of random candidate labels per batch. Default: all labels are candidates.
        hard_negatives: number of hard negatives per document.
        siblings: number of random siblings in the hierarchy, per label of a document, that become candidates.
        engine: linear engine of `engine_negatives`, such as Parabel.
        rows: whether labels can have classifier rows.
        row_documents: least number of training documents of a label that gets a row in `start_rows`.
        sparse: sparse gradients of the rows, which need an optimizer such as RowAdam.
        approximate_above: number of labels above which the search is approximate, with hnswlib; its recall is measured.
    """

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        label_encoder: MakeBackbone | None = None,
        hidden: int | None = None,
        label_length: int = 32,
        objective: Literal["softmax", "margin"] = "softmax",
        temperature: float = 0.05,
        margin: float = 0.3,
        hardest: int | None = None,
        positives: int | None = None,
        random_negatives: int | None = None,
        hard_negatives: int = 0,
        siblings: int = 0,
        engine: Callable[[int, LabelSpace], Head] | None = None,
        rows: bool = True,
        row_documents: int = 1,
        sparse: bool = False,
        approximate_above: int = 200_000,
    ) -> None:
        super().__init__(dim, space, label_encoder, hidden, label_length, rows, sparse, approximate_above)
        check_width(hardest=hardest, positives=positives)
        check_low(1e-3, temperature=temperature)
        check_range(0, 2, margin=margin)
        check_range(0, MANY, hard_negatives=hard_negatives, siblings=siblings)
        check_low(0, random_negatives=random_negatives)
        check_low(1, row_documents=row_documents)
        if random_negatives is None and (hard_negatives or siblings or positives):
            raise UserError(
                "all labels are candidates: give `random_negatives`, or no hard_negatives, siblings, positives"
            )
        if siblings and not space.parents:
            raise UserError(f"`siblings={siblings}` needs parents in the label descriptions (`data.label_texts`)")
        self.objective, self.temperature, self.margin, self.hardest = objective, temperature, margin, hardest
        self.positives, self.random_negatives, self.hard_negatives, self.siblings = (
            positives,
            random_negatives,
            hard_negatives,
            siblings,
        )
        self.row_documents, self.make_engine = row_documents, engine
        self.related = Siblings(space) if siblings else None
        self.hard_labels: Tensor | None = None  # (documents, hard) int32, padded with -1

    # --- training

    def loss(self, features: Features, targets: Targets, stage: str) -> dict[str, Tensor]:
        self.outdate()
        known = targets.below(self.num_labels)
        labels = self.candidates(features.batch, known)
        truth = torch.zeros(len(known), len(labels), dtype=torch.bool, device=labels.device)
        place = torch.searchsorted(labels, known.indices).clamp_max(len(labels) - 1)
        there = labels[place] == known.indices
        truth[known.rows[there], place[there]] = True
        cosines = self.document_vectors(features) @ self.vectors_of(labels).T
        with torch.autocast(cosines.device.type, enabled=False):
            if self.objective == "softmax":
                return {"loss": decoupled_softmax(cosines.float(), truth, self.temperature)}
            return {"loss": margin_loss(cosines.float(), truth, self.margin, self.hardest)}

    def candidates(self, batch: Batch | None, known: Targets) -> Tensor:
        """Distinct candidate labels of a batch, ascending, (n,)."""
        device = known.indices.device
        if self.random_negatives is None:
            return torch.arange(self.num_labels, device=device)
        own = known.indices
        if self.positives is not None and len(own):
            order = torch.rand(len(own), device=device).argsort()
            order = order[known.rows[order].argsort(stable=True)]  # shuffled within each document
            own = own[order[known.places < self.positives]]
        found = [own, torch.randint(self.num_labels, (self.random_negatives,), device=device)]
        if self.hard_labels is not None and batch is not None:
            rows = batch.rows[(batch.rows >= 0) & (batch.rows < len(self.hard_labels))]  # others are augmented copies
            found.append(self.hard_labels[rows.cpu()].flatten().to(device).long())
        if self.related is not None:
            found.append(self.related.draw(own, self.siblings))
        labels = torch.cat(found)
        distinct: Tensor = torch.unique(labels[labels >= 0] if len(labels) else labels.new_zeros(1))
        return distinct

    # --- transitions

    @torch.no_grad()
    def own_negatives(self, ctx: TransitionContext) -> None:
        """Let the hard negatives of each document be the wrong labels that this head ranks first."""
        targets, depth = ctx.train_targets().to("cpu"), self._depth(ctx)
        table = torch.zeros(len(targets), self.hard_negatives, dtype=torch.int32)
        for features, batch in ctx.train_features():
            found = best_wrong(self._trained_only(self.rank(features, depth)), batch.targets, self.hard_negatives)
            table[batch.rows.cpu()] = found.int().cpu() + 1
        self.hard_labels = ctx.sum(table.to(self.calibration.device)).cpu() - 1  # rows of other processes are zeros

    @torch.no_grad()
    def engine_negatives(self, ctx: TransitionContext) -> None:
        """Let the hard negatives of each document be the wrong labels that a linear engine ranks first, out of fold."""
        if self.make_engine is None:
            raise UserError("engine_negatives: give `engine`, such as Parabel")
        engine = self.make_engine(self.dim, self.space).to(self.calibration.device)
        if not isinstance(engine, OutOfFold):
            raise UserError(f"`engine={type(engine).__name__}` has no out-of-fold scores: choose a linear engine")
        ranking = engine.out_of_fold(ctx, FOLDS, self._depth(ctx))
        self.hard_labels = best_wrong(ranking, ctx.train_targets().to("cpu"), self.hard_negatives).int()

    def _depth(self, ctx: TransitionContext) -> int:
        if not self.hard_negatives:
            raise UserError("`hard_negatives=0`: give the number of hard negatives per document")
        return (
            min(self.num_labels, self.hard_negatives + int(ctx.train_targets().counts.max()))
            + self.num_scored
            - self.num_labels
        )

    def _trained_only(self, ranking: Ranking) -> Ranking:
        """Without labels that have no training documents: whether they are wrong is not known."""
        return Ranking(ranking.scores, ranking.labels.masked_fill(ranking.labels >= self.num_labels, -1))

    @torch.no_grad()
    def start_rows(self, ctx: TransitionContext) -> None:
        """Give labels with enough training documents a classifier row that starts at the vector of the text."""
        if not self.has_rows:
            raise UserError("start_rows: labels have no rows with `rows=false`")
        counts = torch.tensor(self.space.counts, device=self.words.device)
        starting = (counts >= self.row_documents) & ~self.uses_row[: self.num_labels]
        self.encode_labels()
        self.rows.weight[starting] = F.normalize(self.vectors[: self.num_labels, :-1], dim=-1)[starting]
        self.uses_row[: self.num_labels] |= starting

    # --- checkpoints

    def grow(self, space: LabelSpace) -> None:
        super().grow(space)
        self.related = Siblings(space).to(self.words.device) if self.siblings else None

    def get_extra_state(self) -> dict[str, Any] | None:
        return None if self.hard_labels is None else {"hard_labels": self.hard_labels}

    def set_extra_state(self, state: dict[str, Any] | None) -> None:
        found = None if state is None else state.get("hard_labels")
        if state is not None:
            if not isinstance(found, Tensor) or found.dtype != torch.int32 or found.shape[1:] != (self.hard_negatives,):
                raise UserError("the hard negatives of the checkpoint are damaged")
            if bool(((found < -1) | (found >= self.num_labels)).any()):
                raise UserError("the hard negatives of the checkpoint are no labels: it is damaged")
        self.hard_labels = found
