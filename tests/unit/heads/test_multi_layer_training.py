"""Experts on documents whose labels depend on a key word or on the topic of the whole text."""

import pytest
import torch

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from heads import Experts
from heads.experts.multi_layer import ExpertSettings
from zoo.training.ranking_metrics import RankingMetrics

A1, D = ExpertSettings("label_attention", 1), ExpertSettings("cls", -1)
# Two experts are better at all of the settings tried; the effect of diversity is small and varies with them.
ALPHA, STEPS = 2.0, 80
KEYWORDS, TOPICS, DIM, LENGTH = 12, 6, 24, 8
WEIGHTS = torch.tensor([2.0 ** -(i / 2) for i in range(KEYWORDS)])  # a long tail


def documents(size, seed):
    """Layer 1 has words, one of them a key word; layer 2 has the topic, with much noise."""
    random = torch.Generator().manual_seed(seed)
    words = torch.randn(KEYWORDS + 30, DIM, generator=torch.Generator().manual_seed(9))
    topics = torch.randn(TOPICS, DIM, generator=torch.Generator().manual_seed(8))
    keyword = WEIGHTS.multinomial(size, replacement=True, generator=random)
    topic = torch.randint(TOPICS, (size,), generator=random)
    ids = torch.randint(KEYWORDS, KEYWORDS + 30, (size, LENGTH), generator=random)
    ids[torch.arange(size), torch.randint(LENGTH, (size,), generator=random)] = keyword
    first = words[ids] + 0.3 * torch.randn(size, LENGTH, DIM, generator=random)
    vector = topics[topic] + 1.2 * torch.randn(size, DIM, generator=random)
    last = vector.unsqueeze(1).expand(-1, LENGTH, -1)
    mask = torch.ones(size, LENGTH).bool()
    truth = Targets.from_lists([[k, KEYWORDS + t] for k, t in zip(keyword.tolist(), topic.tolist(), strict=True)])
    return Features(last, mask, vector, (first, last), (first[:, 0], vector)), truth


@pytest.fixture(scope="module")
def trained():
    """Metrics and the divergence on new documents, of each expert alone, of both, and of both with diversity."""
    features, truth = documents(600, 1)
    counts = truth.dense(KEYWORDS + TOPICS).sum(0).long().clamp_min(1).tolist()
    space = LabelSpace([str(i) for i in range(len(counts))], counts, num_documents=600, vocab_size=50)
    unseen, answers = documents(600, 2)

    def train(experts, diversity):
        torch.manual_seed(0)
        head = Experts(DIM, space, experts, diversity=diversity, hidden=16, dropout=0.0)
        optimizer = torch.optim.Adam(head.parameters(), lr=0.02)
        for step in range(STEPS):
            if step == STEPS // 4:
                head.start_diversity(None)
            optimizer.zero_grad()
            head.loss(features, truth, "any")["loss"].backward()
            optimizer.step()
        metrics = RankingMetrics(space)
        with torch.no_grad():
            best = head.rank(unseen, 5)
            terms = head.loss(unseen, answers, "any")
        metrics.update(best.scores, best.labels, answers)
        kl = [value.item() for name, value in terms.items() if name.startswith("kl/")]
        return {name: value.item() for name, value in metrics.compute().items()} | {"kl": sum(kl)}

    return {
        "A": train([A1], 0.0),
        "D": train([D], 0.0),
        "both": train([A1, D], 0.0),
        "diverse": train([A1, D], ALPHA),
    }


def test_two_experts_are_at_least_as_good_as_the_better_one(trained):
    for name in ("P@5", "PSP@5"):
        assert trained["both"][name] >= max(trained["A"][name], trained["D"][name]), name


def test_diversity_increases_the_divergence(trained):
    assert trained["diverse"]["kl"] > trained["both"]["kl"]


def test_diversity_costs_little_recall_of_rare_labels(trained):
    # 19.0 against 21.3 % on one processor, not less on another: rounding decides
    assert trained["diverse"]["macroR@5/few"] >= trained["both"]["macroR@5/few"] - 0.05
