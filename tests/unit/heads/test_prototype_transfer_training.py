"""HTTN against joint training on labels that share factors, many of them with one document."""

import torch
import torch.nn.functional as F
from torch import nn

from datamodules.batch import LabelSpace, Targets
from heads import Linear, PrototypeTransfer
from tests.support.httn import seeded, transition, wrap

FACTORS, WORDS, LENGTH = 12, 400, 60
COUNTS = [60] * 50 + [8] * 20 + [3] * 20 + [1] * 30  # half of the documents have a frequent label as well
GROUPS = [20 * 50, 20 * 20, 20 * 20, 20 * 30]  # of the test documents, 20 for each label


def factor_corpus(seed):
    """Word counts and labels of training documents, and of a balanced test set; a label is a mix of three factors."""
    generator = seeded(seed)
    factors = F.normalize(torch.rand(FACTORS, WORDS, generator=generator) ** 8, p=1, dim=1)  # each has few words
    weights = torch.rand(len(COUNTS), FACTORS, generator=generator)
    weights = weights * torch.zeros_like(weights).scatter(1, weights.topk(3, dim=1).indices, 1.0)
    words = 0.9 * F.normalize(weights, p=1, dim=1) @ factors + 0.1 / WORDS

    def documents(spread):
        drawn = spread.multinomial(LENGTH, replacement=True, generator=generator)
        return torch.zeros(len(spread), WORDS).scatter_add(1, drawn, torch.ones_like(drawn).float())

    label = torch.arange(len(COUNTS)).repeat_interleave(torch.tensor(COUNTS))
    other = torch.randint(50, label.shape, generator=generator)
    other = torch.where(torch.rand(label.shape, generator=generator) < 0.5, other, label)
    targets = Targets.from_lists(torch.stack([label, other], dim=1).tolist())
    test = torch.arange(len(COUNTS)).repeat_interleave(20)
    return documents((words[label] + words[other]) / 2), targets, documents(words[test]), test


class BagOfWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(WORDS, 64)

    def forward(self, counts):
        return wrap(torch.relu(self.hidden(F.normalize(counts.sqrt(), dim=1))))


def fit(encoder, head, words, targets, rows, epochs=8):
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=3e-3)
    lists = [part.tolist() for part in targets.indices.split(targets.counts.tolist())]
    for _ in range(epochs):
        for chosen in rows[torch.randperm(len(rows))].split(64):
            optimizer.zero_grad()
            batch = Targets.from_lists([lists[i] for i in chosen])
            head.loss(encoder(words[chosen]), batch, "train")["loss"].backward()
            optimizer.step()


@torch.no_grad()
def recalls(encoder, head, words, label):
    """recall@5 of frequent labels, and of those with 8, 3 and 1 documents."""
    hit = (head.rank(encoder(words), 5).labels == label[:, None]).any(1).float()
    return [round(part.mean().item(), 3) for part in hit.split(GROUPS)]


def end_to_end(seed, **settings):
    """Recalls of the joint model, and of HTTN before and after the transfer."""
    words, targets, *test = factor_corpus(seed)
    counts = targets.indices.bincount(minlength=len(COUNTS)).tolist()
    space = LabelSpace([f"l{i}" for i in range(len(COUNTS))], counts, len(words), WORDS)
    torch.manual_seed(seed)
    joint, linear = BagOfWords(), Linear(64, space, hidden=32)
    fit(joint, linear, words, targets, torch.arange(len(words)))
    encoder, head = BagOfWords(), PrototypeTransfer(64, space, hidden=32, tail_count=8, **settings)
    fit(encoder, head, words, targets, head.head_documents(targets, 0))
    before = recalls(encoder, head, *test)
    head.transfer(transition(encoder(words).pooled.detach(), targets, batch_size=500))
    return recalls(joint, linear, *test), before, recalls(encoder, head, *test)


def test_transfer_finds_labels_with_one_document():
    joint, before, after = end_to_end(0, attention=False)
    assert joint[3] < 0.05
    assert after[3] > 0.4
    assert after[2] > joint[2]
    assert after[0] > before[0] - 0.05
    assert before[1:] == [0, 0, 0]
