"""DXML: label embeddings, loss and neighbours against loops."""

import numpy as np
import pytest
import torch

from datamodules.batch import Targets
from heads import DXML, TransitionContext
from heads.graph.dxml import LIMIT, factorize, netmf
from heads.graph.label_graph import co_occurrence
from tests.support.documents import label_space, seeded, vector_features
from tests.support.errors import raises
from tests.support.transitions import Recorded
from zoo.core.errors import UserError

TRAIN = [[0, 1], [0, 1, 2], [0], [2, 3], [4], [0, 7]]  # 7 is a label that training never saw
SPACE = label_space([4, 2, 2, 1, 1], len(TRAIN))
DIM, EMBED = 6, 4


def documents(size=6, seed=0):
    return vector_features(torch.randn(size, DIM, generator=seeded(seed)))


def context(**settings):
    return TransitionContext(documents(), Targets.from_lists(TRAIN), batch_size=4, **settings)


def made(**settings):
    torch.manual_seed(0)
    return DXML(DIM, SPACE, embed=EMBED, hidden=5, **settings)


@pytest.mark.parametrize(("window", "negatives"), [(1, 1), (3, 2)])
def test_walks_have_the_closed_form_of_deepwalk(window, negatives):
    counts = co_occurrence(Targets.from_lists(TRAIN), 5)
    weights = counts.toarray()
    degrees = weights.sum(1)
    walks = [np.linalg.matrix_power(weights / degrees[:, None], r) for r in range(1, window + 1)]
    expected = np.zeros((5, 5))
    for i in range(5):
        for j in range(5):
            mean = sum(walk[i, j] for walk in walks) / window
            expected[i, j] = np.log(max(1, degrees.sum() * mean / (degrees[j] * negatives)))
    assert np.allclose(netmf(counts, window, negatives).numpy(), expected, atol=1e-5)


def test_embeddings_are_the_truncated_decomposition():
    matrix = netmf(co_occurrence(Targets.from_lists(TRAIN), 5), 2, 1)
    left, values, _ = torch.linalg.svd(matrix)
    expected = left[:, :3] * values[:3].sqrt()
    got = factorize(matrix, 3, seed=0)
    assert torch.allclose(got.abs(), expected.abs(), atol=1e-3)  # signs are arbitrary
    assert torch.equal(got, factorize(matrix, 3, seed=0))
    assert not factorize(matrix, 9, seed=0)[:, 5:].any()


def test_labels_of_the_same_documents_are_close():
    head = made()
    head.embed_labels(context())
    unit = torch.nn.functional.normalize(head.vectors, dim=1)
    assert torch.allclose(head.vectors.norm(dim=1), torch.full((5,), EMBED**0.5))
    assert (unit[0] @ unit[1]) > (unit[0] @ unit[4])


def test_the_loss_equals_the_equation():
    head, given = made(delta=0.5), documents()
    rows, targets = [], [*TRAIN[:4], [], TRAIN[5]]
    for vector, labels in zip(given.pooled, targets, strict=True):
        known = [label for label in labels if label < 5]
        total = torch.zeros(())
        if known:
            for got, wanted in zip(head.network(vector), head.vectors[known].mean(0), strict=True):
                gap = (got - wanted).abs()
                total = total + (0.5 * gap**2 if gap < 0.5 else 0.5 * (gap - 0.25))
        rows.append(total)
    got = head.loss(given, Targets.from_lists(targets), "train")["loss"]
    assert got.item() == pytest.approx(torch.stack(rows).mean().item(), rel=1e-5)


def test_scores_are_those_of_the_nearest_documents():
    head, given = made(neighbours=3), documents(7, seed=1)
    head.memorize(context())
    stored = torch.nn.functional.normalize(head.network(documents().pooled), dim=1)
    expected = torch.zeros(7, 5)
    for row, vector in zip(expected, torch.nn.functional.normalize(head.network(given.pooled), dim=1), strict=True):
        cosines = (stored @ vector).tolist()
        nearest = sorted(range(len(TRAIN)), key=lambda i: -cosines[i])[:3]
        total = sum(max(cosines[i], 0) for i in nearest)
        for i in nearest:
            for label in TRAIN[i]:
                if label < 5 and total:
                    row[label] += max(cosines[i], 0) / total
    with torch.no_grad():
        assert torch.allclose(head.by_neighbours(head.embedded(given)), expected, atol=1e-5)
        ranking = head.rank(given, 5)
    assert torch.allclose(ranking.scores, expected.gather(1, ranking.labels), atol=1e-5)


def test_two_processes_memorize_what_one_does():
    expected, shares = made(), [made(), made()]
    expected.memorize(context())
    given = documents(), Targets.from_lists(TRAIN)
    contexts = [Recorded(*given, share=(i, 2)) for i in range(2)]
    for head, one in zip(shares, contexts, strict=True):
        head.memorize(one)
    again = Recorded(*given, share=(0, 2), others=[contexts[1].sums[0]])
    shares[0].memorize(again)
    assert torch.allclose(shares[0].memory, expected.memory, atol=1e-6)


def test_a_checkpoint_restores_both_steps():
    head, other = made(), made()
    assert head.pending == ("embed_labels", "memorize")
    head.embed_labels(context())
    assert head.pending == ("memorize",)
    head.memorize(context())
    other.load_state_dict(head.state_dict())
    assert not other.pending
    assert torch.equal(other.rank(documents(), 5).labels, head.rank(documents(), 5).labels)


def test_too_many_labels_are_refused():
    with raises(UserError, "DXML embeds at most 16,384 labels, and there are 16,385"):
        DXML(DIM, label_space([1] * (LIMIT + 1), 20))


def test_rankings_do_not_depend_on_autocast():
    head, given = made(), documents()
    head.memorize(context())
    expected = head.rank(given, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(head.rank(given, 5).scores, expected.scores)
