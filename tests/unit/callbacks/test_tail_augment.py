"""The purpose of Taug: without it, weight norms grow with label frequency."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.stats import spearmanr

from datamodules.augment import Augmentation
from datamodules.batch import LabelSpace, Targets
from heads import Decoupled, OneVsRestSvm, TransitionContext

pytest.importorskip("liblinear")
LABELS, DOCUMENTS, WORDS = 80, 600, 800


def long_tailed(seed):
    """Labels with Zipf frequencies and words of their own; documents of one to three labels, half of them noise."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, LABELS + 1)
    own = rng.integers(2, WORDS, (LABELS, 12))
    drawn = [np.unique(rng.choice(LABELS, rng.integers(1, 4), p=weights / weights.sum())) for _ in range(DOCUMENTS)]
    tokens = [np.concatenate([rng.choice(own[d].ravel(), 12), rng.integers(2, WORDS, 12)]) for d in drawn]
    counts = csr_array((np.ones(24 * DOCUMENTS, np.float32), np.concatenate(tokens), np.arange(DOCUMENTS + 1) * 24))
    counts = csr_array((counts.data, counts.indices, counts.indptr), (DOCUMENTS, WORDS))
    counts.sum_duplicates()
    number = np.bincount(np.concatenate(drawn), minlength=LABELS)
    order = np.argsort(-number, kind="stable")[: (number > 0).sum()]
    place = {label: i for i, label in enumerate(order.tolist())}
    targets = Targets.from_lists([[place[label] for label in document.tolist()] for document in drawn])
    names = [f"l{i}" for i in range(len(order))]
    return counts, targets, LabelSpace(names, number[order].tolist(), num_documents=DOCUMENTS, vocab_size=WORDS)


class WithCopies(TransitionContext):
    """The transition of a stage with `TailAugment`."""

    def __init__(self, words, targets, space, augmentation):
        super().__init__(words=words, targets=targets)
        self.space, self.augmentation = space, augmentation

    def augmented(self, words, targets, rows=None):
        rows = np.arange(DOCUMENTS) if rows is None else rows.numpy()
        copies = self.augmentation.with_copies(rows, self.targets, self.space)[len(rows) :]
        return self.augmentation.append_copies(words, targets, rows, copies, DOCUMENTS)


def engine(dim, space):
    return OneVsRestSvm(dim, space, workers=1)


def test_augmentation_raises_the_weight_norms_of_rare_labels():
    words, targets, space = long_tailed(0)
    plain = engine(1, space)
    plain.fit(TransitionContext(words=words, targets=targets))
    taug = Decoupled(1, space, engine, engine, fraction=0.1)
    taug.head.fit(TransitionContext(words=words, targets=targets))
    taug.tail.fit(WithCopies(words, targets, space, Augmentation("tail", copies=4, fraction=0.1)))
    before = plain.weight_norms().numpy()
    after = taug.weight_norms().numpy()
    rank = [spearmanr(norms, space.counts).statistic for norms in (before, after)]
    assert rank[0] > 0.5
    assert rank[1] < rank[0]
    size = taug.head.num_labels
    ratio = [norms[:size].mean() / norms[size:].mean() for norms in (before, after)]
    assert ratio[1] < 0.8 * ratio[0]  # the order hardly changes, the norms do
