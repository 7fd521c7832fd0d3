"""Means of rankings against a loop."""

import pytest
import torch

from heads import Ranking
from zoo.training.ensemble_tagger import mean_ranking


def slow_mean(rankings, k):
    """Rankings as lists of (label, mean score), best first."""
    found = []
    for doc in range(len(rankings[0].labels)):
        total: dict[int, float] = {}
        for ranking in rankings:
            for label, score in zip(ranking.labels[doc].tolist(), ranking.scores[doc].tolist(), strict=True):
                if label >= 0:
                    total[label] = total.get(label, 0.0) + score / len(rankings)
        found.append(sorted(total.items(), key=lambda item: -item[1])[:k])
    return found


def random_ranking(seed, docs=6, num_labels=9, depth=5):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.stack([torch.randperm(num_labels, generator=generator)[:depth] for _ in range(docs)])
    scores = torch.rand(docs, depth, generator=generator).sort(1, descending=True).values
    short = torch.arange(depth) >= depth - seed % 3  # short rows end in -1
    return Ranking(scores.masked_fill(short, 0), labels.masked_fill(short, -1))


@pytest.mark.parametrize("members", [1, 2, 3, 4])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_equals_a_loop(members, k):
    rankings = [random_ranking(seed) for seed in range(members)]
    made, expected = mean_ranking(rankings, k), slow_mean(rankings, k)
    for labels, scores, pairs in zip(made.labels.tolist(), made.scores.tolist(), expected, strict=True):
        assert labels[: len(pairs)] == [label for label, _ in pairs]
        assert set(labels[len(pairs) :]) <= {-1}
        assert scores[: len(pairs)] == pytest.approx([score for _, score in pairs])


def test_one_ranking_stays_as_it_is():
    ranking = random_ranking(0)
    made = mean_ranking([ranking], 5)
    assert torch.equal(made.labels, ranking.labels)
    assert torch.allclose(made.scores, ranking.scores)
