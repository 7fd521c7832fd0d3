"""Label texts and the vectors of labels: encoded once per evaluation, and searched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ReferenceType, ref

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from backbones.base import Backbone, Features
from datamodules.batch import Batch, LabelSpace, Targets
from heads.base import Head, Ranking, TransitionContext, probabilities
from heads.dual.label_search import Graph, exact, recall
from heads.tail.platt import fit_sigmoid
from heads.tail.rankings import relevant
from zoo.core.console import note
from zoo.core.errors import UserError, check_low, check_width

MakeBackbone = Callable[[LabelSpace], Backbone]

SCALE, OFFSET = 20.0, -10.0  # probability sigmoid(SCALE cos + OFFSET) until `calibrate`
NEVER = -1e4  # logit of labels with neither text nor row
AT_ONCE = 2**15  # tokens of label texts that are encoded at a time
MANY_LABELS = 50_000  # from here on, encoding them takes a while
CALIBRATED = 100  # candidates of a validation document that `calibrate` looks at
FEWEST = 20  # correct candidates that a calibration of its own needs
CHECKED = 32  # documents of a batch whose approximate search is compared with the exact one


class LabelTextHead(Head):
    """Base class of heads that rank labels by the cosine of a label's vector with the document's; implement `loss`.

    The vector of a label is its row if it uses one, and else that of its text. The vectors of all labels are computed
    once after the weights have changed.
    """

    words: Tensor  # (num_scored, label_length) int32 tokens of label texts, padded with -1
    uses_row: Tensor  # (num_scored,) bool
    vectors: Tensor  # (num_scored, width + 1) a v and b: logits are dot products with documents and a coordinate 1
    calibration: Tensor  # (texts rows, a b)
    steps: Tensor  # (2,) bool: texts are read, `vectors` are those of the current weights

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        label_encoder: MakeBackbone | None,
        hidden: int | None,
        label_length: int,
        rows: bool,
        sparse: bool,
        approximate_above: int,
    ) -> None:
        super().__init__(dim, space)
        check_width(hidden=hidden, label_length=label_length)
        check_low(0, approximate_above=approximate_above)
        if dim < 2:
            raise UserError("DualEncoder needs a backbone with document vectors, such as Bow, unlike Words")
        self.space, self.has_rows, self.label_length = space, rows, label_length
        self.approximate_above, self.num_scored, self.width = approximate_above, space.num_scored, hidden or dim
        self.label_encoder = label_encoder(space) if label_encoder else None
        if self.label_encoder is not None and self.label_encoder.self_contained():
            name = type(self.label_encoder).__name__
            raise UserError(f"`label_encoder={name}` reads files: make it the backbone, which labels then share")
        self.shared: ReferenceType[Backbone] | None = None
        self.project: nn.Module = nn.Linear(dim, hidden) if hidden else nn.Identity()
        self.project_label: nn.Module = self.project
        if self.label_encoder is not None:
            self.project_label = nn.Linear(self.label_encoder.dim, self.width)
        self.rows = nn.Embedding(space.num_labels if rows else 0, self.width, sparse=sparse)
        nn.init.normal_(self.rows.weight, std=self.width**-0.5)
        self.rows.weight.requires_grad = rows
        self.register_buffer("words", torch.full((self.num_scored, label_length), -1, dtype=torch.int32))
        self.register_buffer("uses_row", (torch.arange(self.num_scored) < space.num_labels) & rows)
        self.register_buffer("vectors", torch.zeros(self.num_scored, self.width + 1))
        self.register_buffer("calibration", torch.tensor([[SCALE, OFFSET], [SCALE, OFFSET]]))
        self.register_buffer("steps", torch.zeros(2, dtype=torch.bool))
        self.texts_read = self.is_encoded = False  # `steps` as Python values: reading a buffer would make a GPU wait
        self.versions: tuple[int, ...] | None = None  # of the weights that `vectors` were computed with
        self.graph: Graph | None = None

    def share(self, backbone: Backbone) -> None:
        """Encode label texts with this encoder, unless the head has its own; only a weak reference is kept."""
        self.shared = ref(backbone)

    @property
    def encoders(self) -> list[Backbone]:
        """The encoder of label texts; empty before `share`."""
        found = self.label_encoder or (None if self.shared is None else self.shared())
        return [] if found is None else [found]

    @property
    def pending(self) -> tuple[str, ...]:
        return () if self.texts_read else ("read_label_texts",)

    @property
    def has_text(self) -> Tensor:
        """Labels with a text of known words, (num_scored,) bool."""
        return self.words[:, 0] >= 0

    def label_vectors(self) -> Tensor | None:
        return self.rows.weight if self.has_rows else None

    # --- vectors

    def document_vectors(self, features: Features) -> Tensor:
        """Unit vectors (batch, width)."""
        return F.normalize(self.project(features.pooled).float(), dim=-1)

    def text_vectors(self, labels: Tensor) -> Tensor:
        """Unit vectors of the texts of labels, (n, width)."""
        words = self.words[labels]
        words = words[:, : max(int((words >= 0).sum(1).max()), 1)].long()
        none = Targets(labels.new_zeros(len(labels) + 1), labels.new_zeros(0))
        batch = Batch(words.masked_fill(words < 0, self.space.pad_id), words >= 0, none, labels)
        if not self.encoders:
            raise RuntimeError("label texts are encoded with the backbone: call `share` with it")
        (encoder,) = self.encoders
        return F.normalize(self.project_label(encoder(batch).pooled).float(), dim=-1)

    def vectors_of(self, labels: Tensor) -> Tensor:
        """Unit vectors of labels, (n, width): rows, or else texts, or else zeros."""
        found = self.calibration.new_zeros(len(labels), self.width)
        if self.has_rows:  # also of labels that use none: DDP waits for a gradient
            own = F.normalize(self.rows(labels.clamp_max(self.num_labels - 1)), dim=-1)
            found = own * self.uses_row[labels].unsqueeze(1)
        by_text = (self.has_text[labels] & ~self.uses_row[labels]).nonzero().flatten()
        if len(by_text):
            found = found.index_put((by_text,), self.text_vectors(labels[by_text]).to(found.dtype))
        return found

    # --- rankings

    def rank(self, features: Features, k: int) -> Ranking:
        with torch.autocast(features.pooled.device.type, enabled=False):
            return self.search(self.document_vectors(features.float()), k)

    def search(self, documents: Tensor, k: int) -> Ranking:
        """Rank the k best labels of documents given by their unit vectors."""
        self.encode_labels()
        queries = F.pad(documents, (0, 1), value=1.0)
        if self.graph is None:
            found = exact(queries, self.vectors, k)
        else:
            found = self.graph.search(queries, k)
            found = Ranking(found.scores.to(queries.device), found.labels.to(queries.device))
        known = (found.labels >= 0) & (found.scores > NEVER / 2)
        return Ranking(probabilities(found.scores) * known, found.labels.masked_fill(~known, -1))

    def checks(self, features: Features, targets: Targets) -> dict[str, Tensor]:
        """Recall of the approximate search at 10, of some documents."""
        if self.graph is None:
            return {}
        documents = self.document_vectors(features.float())[:CHECKED]
        wanted = exact(F.pad(documents, (0, 1), value=1.0), self.vectors, 10)
        labels = wanted.labels.masked_fill(wanted.scores < NEVER / 2, -1)
        found = documents.new_full((len(features.pooled),), torch.nan)
        found[: len(documents)] = recall(self.search(documents, 10).labels, labels)
        return {"search_recall@10": found}

    def outdate(self) -> None:
        """Note that the weights are about to change."""
        if self.is_encoded:
            self.is_encoded = False
            self.steps[1] = False

    @torch.no_grad()
    def encode_labels(self) -> None:
        """Compute the vectors of all labels, unless neither weights nor texts have changed since."""
        now = self._versions()
        if not self.is_encoded or self.versions not in (None, now):
            with evaluating(self, *self.encoders):
                self._encode_all()
            self.is_encoded, self.graph = True, None
            self.steps[1] = True
        if self.graph is None and self.num_scored > self.approximate_above:
            scored = (self.has_text | self.uses_row).nonzero().flatten()
            self.graph = Graph(self.vectors[scored], scored)
        self.versions = now

    def _encode_all(self) -> None:
        sizes = (self.words >= 0).sum(1).clamp_min(1)
        sizes[self.uses_row] = 1
        order = sizes.argsort(descending=True, stable=True)
        parts = torch.split(order, max(1, AT_ONCE // int(sizes.max())))
        scale, offset = self.calibration[self.uses_row.long()].T
        if len(order) > MANY_LABELS:
            note(f"computing the vectors of {len(order):,} labels")
        for part in parts:
            vectors = self.vectors_of(part).float() * scale[part].unsqueeze(1)
            self.vectors[part] = torch.cat([vectors, offset[part].unsqueeze(1)], dim=1)
        self.vectors[~(self.has_text | self.uses_row), -1] = NEVER

    def _versions(self) -> tuple[int, ...]:
        """Counts of the changes in place of all that the vectors depend on: optimizer steps and loaded weights."""
        modules = [self.project, self.project_label, self.rows, *self.encoders]
        tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
        return tuple(tensor._version for tensor in (*tensors, self.words, self.uses_row, self.calibration))

    # --- transitions

    @torch.no_grad()
    def read_label_texts(self, ctx: TransitionContext) -> None:
        """Keep the tokens of all label texts; labels that have one no longer use a row."""
        table = torch.zeros_like(self.words)
        for batch in ctx.label_batches(unseen=True):
            rows, ids, mask = (part.to(table.device) for part in (batch.rows, batch.ids, batch.mask))
            kept, width = (rows >= 0) & (rows < len(table)), min(self.label_length, ids.shape[1])
            tokens = ((ids + 1) * mask)[kept, :width]  # 0 is no token; negative rows are padding of processes
            table[rows[kept], :width] = tokens.to(table.dtype)
        self.words.copy_(ctx.sum(table) - 1)  # rows of other processes are zeros
        if not self.has_rows and not self.has_text[: self.num_labels].any():
            raise UserError("no label has a text with known words: give `data.label_texts`, or set `rows=true`")
        self.uses_row &= ~self.has_text
        self.texts_read = bool(self.steps[0].fill_(True))
        if self.label_encoder is not None and self.label_encoder.reads_counts:
            self.label_encoder.learn_counts(ctx.train_words())

    @torch.no_grad()
    def calibrate(self, ctx: TransitionContext) -> None:
        """Fit the probabilities of labels with rows, and of those with texts alone, to the validation documents."""
        self.calibration[:, 0], self.calibration[:, 1] = 1, 0  # logits are cosines
        self.encode_labels()
        scored = self.has_text | self.uses_row
        groups = [(self.uses_row == use).logical_and(scored).nonzero().flatten() for use in (False, True)]
        cosines: list[list[Tensor]] = [[], []]
        hits: list[list[Tensor]] = [[], []]
        for features, batch in ctx.val_features():
            queries = F.pad(self.document_vectors(features), (0, 1), value=1.0)
            for group, labels in enumerate(groups):
                if len(labels):
                    found = exact(queries, self.vectors[labels], min(CALIBRATED, len(labels)))
                    right = relevant(labels[found.labels], batch.targets)
                    cosines[group].append(found.scores.double().flatten())
                    hits[group].append(right.double().flatten())
        none = [self.calibration.new_zeros(0, dtype=torch.float64)]
        pairs = [(torch.cat(none + one), torch.cat(none + other)) for one, other in zip(cosines, hits, strict=True)]
        every, correct = (torch.cat(part) for part in zip(*pairs, strict=True))
        together = fit_sigmoid(every, correct, ctx.sum)
        for group, (own, right) in enumerate(pairs):
            enough = float(ctx.sum(right.sum())) >= FEWEST
            fitted = fit_sigmoid(own, right, ctx.sum) if enough else together
            self.calibration[group] = torch.tensor(fitted)
            ctx.log({f"calibration/{('texts', 'rows')[group]}_{name}": v for name, v in zip("ab", fitted, strict=True)})

    # --- labels that come later

    @torch.no_grad()
    def learn_labels(
        self,
        space: LabelSpace,
        examples: Iterable[tuple[Features, Targets]],
        texts: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Add labels by their texts, or by a row: the sum of the vectors of text and mean document, of unit length."""
        known, texts = self.num_labels, texts or {}
        sums = self.words.new_zeros(space.num_labels, self.width, dtype=torch.float32)
        for features, targets in examples:
            if bool((targets.indices < known).any()):
                raise UserError("DualEncoder adds labels and does not update known ones: leave those out")
            sums.index_add_(0, targets.indices, self.document_vectors(features.float())[targets.rows])
        self.grow(space)
        for label, name in enumerate(space.labels[: self.num_scored]):
            if len(tokens := texts.get(name, ())):
                self.words[label] = -1
                self.words[label, : self.label_length] = F.pad(
                    torch.tensor(tokens, dtype=torch.int32)[: self.label_length],
                    (0, max(0, self.label_length - len(tokens))),
                    value=-1,
                )
        new = torch.arange(known, space.num_labels, device=self.words.device)
        has_documents = sums[new].any(1) & self.has_rows
        if not bool((has_documents | self.has_text[new]).all()):
            name = space.names[int(new[~(has_documents | self.has_text[new])][0])]
            raise UserError(f"no document and no text with known words for the new label {name!r}: give one of them")
        start = self.vectors_of(new) + F.normalize(sums[new], dim=-1)  # zeros without a text
        if self.has_rows:
            self.rows.weight[new] = F.normalize(start, dim=-1)
            self.uses_row[new] = has_documents

    def grow(self, space: LabelSpace) -> None:
        """Make room for the new labels; what is known of unseen labels moves to their new numbers."""
        device, before = self.words.device, {name: i for i, name in enumerate(self.space.labels[: self.num_scored])}
        place = torch.tensor([before.get(name, -1) for name in space.labels[: space.num_scored]], device=device)
        there = place >= 0
        self.words = torch.where(there[:, None], self.words[place], -1)
        trained = torch.arange(space.num_scored, device=device) < self.num_labels
        self.uses_row = there & trained & self.uses_row[place]
        if self.has_rows:
            rows = nn.Embedding(space.num_labels, self.width, sparse=self.rows.sparse).to(device)
            rows.weight.zero_()[: self.num_labels] = self.rows.weight
            rows.weight.requires_grad = self.rows.weight.requires_grad
            self.rows = rows
        self.vectors = self.vectors.new_zeros(space.num_scored, self.width + 1)
        self.space, self.num_labels, self.num_scored = space, space.num_labels, space.num_scored
        self.outdate()
        self.versions = self.graph = None

    # --- checkpoints

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self.steps &= all(f"{prefix}{name}" in state_dict for name in ("words", "vectors", "uses_row", "calibration"))
        self.texts_read, self.is_encoded = self.steps.tolist()
        self.versions = self.graph = None

    def check_indices(self) -> None:
        """Refuse a checkpoint with tokens outside the vocabulary."""
        if self.words.min() < -1 or self.words.max() >= self.space.vocab_size:
            raise UserError("the label texts of the checkpoint have tokens outside its vocabulary: it is damaged")


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Put modules into evaluation mode for a while."""
    modes = {part: part.training for module in modules for part in module.modules()}
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training
