"""Tree heads on documents of words: labels of one field share words and should share a cluster."""

import functools

import torch
from scipy.sparse import csr_array

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from heads import PLT, AttentionXML, TransitionContext
from heads.tree.plt import TreeSettings
from tests.support.httn import seeded

FIELDS, EACH, DIM, LENGTH = 8, 8, 24, 8
LABELS = FIELDS * EACH
WORDS = LABELS + FIELDS + 20  # of labels, of fields, of none
VECTORS = torch.randn(WORDS, DIM, generator=seeded(0))


def corpus(documents, seed):
    """Each document has two labels of a field: a word of each, the field's word twice, and others."""
    generator = seeded(seed)
    field = torch.randint(FIELDS, (documents, 1), generator=generator)
    labels = EACH * field + torch.rand(documents, EACH, generator=generator).argsort(1)[:, :2]
    others = torch.randint(LABELS + FIELDS, WORDS, (documents, LENGTH - 4), generator=generator)
    words = torch.cat([labels, LABELS + labels // EACH, others], dim=1)
    tokens = VECTORS[words] + 0.2 * torch.randn(documents, LENGTH, DIM, generator=generator)
    features = Features(tokens, torch.ones(documents, LENGTH).bool(), tokens.mean(1), (tokens,))
    return words, features, Targets.from_lists(labels.tolist())


def word_counts(words):
    counts = torch.zeros(len(words), WORDS)
    return csr_array(counts.scatter_add(1, words, torch.ones(words.shape)).numpy())


@functools.cache
def trained(kind, epochs=12):
    words, features, targets = corpus(1200, seed=1)
    space = LabelSpace([str(i) for i in range(LABELS)], targets.indices.bincount().tolist(), len(targets), WORDS)
    torch.manual_seed(0)
    settings = {"tree": TreeSettings(clusters=FIELDS), "beam": 4} if kind is PLT else {}
    head = kind(DIM, space, hidden=[32], **settings)
    if kind is PLT:
        head.build_tree(TransitionContext(words=word_counts(words), targets=targets))
    optimizer = torch.optim.Adam(head.parameters(), lr=0.01)
    for _ in range(epochs):
        for rows in torch.randperm(len(targets)).split(60):
            optimizer.zero_grad()
            tokens = features.tokens[rows]
            batch = Features(tokens, features.mask[rows], features.pooled[rows], (tokens,))
            truth = Targets.from_lists(targets.indices.view(-1, 2)[rows].tolist())
            head.loss(batch, truth, "train")["loss"].backward()
            optimizer.step()
    return head


@torch.no_grad()
def precision(head, k=2):
    _, features, targets = corpus(400, seed=2)
    hits = head.rank(features, k).labels.unsqueeze(-1) == targets.indices.view(-1, 1, 2)
    return hits.any(-1).float().mean().item()


def test_labels_of_a_field_share_a_cluster():
    clusters = trained(PLT).trees[0].cluster_of.view(FIELDS, EACH)
    together = (clusters.unsqueeze(1) == clusters.unsqueeze(2)).float().mean()
    assert together > 0.7  # by chance a quarter


def test_the_beam_finds_the_clusters_and_bounds_the_precision():
    head, (_, features, targets) = trained(PLT), corpus(400, seed=2)
    found = head.checks(features, targets)
    assert found["clusters@beam"].mean() > 0.95
    assert precision(head) <= found["labels@beam"].mean() + 1e-6


def test_plt_is_as_precise_as_attention_over_all_labels():
    assert precision(trained(PLT), k=1) > max(0.9, precision(trained(AttentionXML), k=1) - 0.02)
