"""Dual encoders: losses against slow loops, candidates, label vectors, search, and calibration."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from backbones import Bow
from datamodules.batch import Batch, LabelSpace, Targets
from heads import DualEncoder, Linear, Ranking, TransitionContext
from heads.dual.cosine_losses import decoupled_softmax, margin_loss
from heads.dual.label_search import Graph, exact, recall
from heads.dual.negatives import Siblings, best_wrong
from zoo.core.errors import UserError
from zoo.training.ranking_model import share_backbone

PARENTS = [0, 5, 1, 5, 2, 5, 3, 4]  # labels 0, 1 and 2 are children of 5, and 3 of 4
SPACE = LabelSpace(
    [f"l{i}" for i in range(6)],
    [9, 7, 5, 3, 2, 1],
    num_documents=8,
    vocab_size=12,
    unseen=["u", "v"],
    unseen_texts=["a text", ""],
    parents=PARENTS,
)
WORDS = [[2, 3], [4], [5, 6, 7], [8, 2], [9], [], [10, 11], []]  # of the label texts; labels 5 and 7 have none
TRUTH = [[0, 1], [2], [0, 3], [4, 5], [], [1], [0, 6], [2, 4]]  # 6 was never trained


def batch_of(rows, words):
    width = max(map(len, words))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in words])
    return Batch(ids, ids > 0, Targets.from_lists([[] for _ in words]), torch.tensor(rows))


@pytest.fixture
def documents():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, 12, (len(TRUTH), 6), generator=generator)
    return Batch(ids, ids > 0, Targets.from_lists(TRUTH), torch.arange(len(TRUTH)))


def made(space=SPACE, **settings):
    torch.manual_seed(0)
    backbone = Bow(space, dim=10, dropout=0.0, min_documents=1)
    backbone.tfidf.idf[1:] = 1.0
    head = DualEncoder(10, space, **{"hidden": 8} | settings)
    share_backbone(head, backbone)
    return head, backbone


def context(head, backbone, documents, **settings):
    texts = [(label, words) for label, words in enumerate(WORDS[: head.num_scored]) if words]
    labels = [(None, batch_of(*zip(*texts, strict=True)))]
    features = replace(backbone(documents), batch=documents)
    below = documents.targets.below(head.num_labels)
    return TransitionContext(features, below, labels=labels, backbone=backbone, val=(features, below), **settings)


def with_texts(documents, **settings):
    head, backbone = made(**settings)
    head.read_label_texts(context(head, backbone, documents))
    return head, backbone


COSINES = torch.rand(4, 7, generator=torch.Generator().manual_seed(3)) * 2 - 1
IS_TRUE = torch.tensor([[1, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1], [0] * 7, [1] * 7]).bool()


def test_decoupled_softmax_is_the_slow_loop():
    total = 0.0
    for scores, truth in zip(COSINES.tolist(), IS_TRUE.tolist(), strict=True):
        wrong = [math.exp(s / 0.1) for s, is_true in zip(scores, truth, strict=True) if not is_true]
        right = [math.exp(s / 0.1) for s, is_true in zip(scores, truth, strict=True) if is_true]
        total -= sum(math.log(value / (value + sum(wrong))) for value in right)
    cosines = COSINES.clone().requires_grad_()
    loss = decoupled_softmax(cosines, IS_TRUE, 0.1)
    assert loss.item() == pytest.approx(total / 4, rel=1e-5)
    loss.backward()
    assert cosines.grad.isfinite().all()
    assert not cosines.grad[2:].any()  # documents without positives, and without negatives


@pytest.mark.parametrize("hardest", [None, 2, 50])
def test_the_margin_loss_is_the_slow_loop(hardest):
    total = 0.0
    for scores, truth in zip(COSINES.tolist(), IS_TRUE.tolist(), strict=True):
        wrong = sorted((s for s, is_true in zip(scores, truth, strict=True) if not is_true), reverse=True)[:hardest]
        right = [s for s, is_true in zip(scores, truth, strict=True) if is_true]
        total += sum(max(0.0, w - r + 0.3) for r in right for w in wrong)
    assert margin_loss(COSINES, IS_TRUE, 0.3, hardest).item() == pytest.approx(total / 4, rel=1e-5)


@pytest.mark.parametrize(
    "settings", [{}, {"objective": "margin"}, {"random_negatives": 3, "siblings": 1, "positives": 1}]
)
def test_the_loss_of_the_head_is_that_of_its_vectors(documents, settings):
    head, backbone = with_texts(documents, **settings)
    features = replace(backbone(documents), batch=documents)
    torch.manual_seed(1)
    labels = head.candidates(documents, documents.targets.below(6))
    torch.manual_seed(1)
    loss = head.loss(features, documents.targets, "texts")["loss"]
    truth = documents.targets.dense(6)[:, labels].bool()
    cosines = torch.stack(
        [
            torch.stack([F.cosine_similarity(d, v, dim=0) for v in head.vectors_of(labels)])
            for d in head.document_vectors(features)
        ]
    )
    expected = (
        margin_loss(cosines, truth, 0.3) if settings.get("objective") else decoupled_softmax(cosines, truth, 0.05)
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
def test_gradients_reach_the_label_encoder(documents, own):
    settings = {"label_encoder": lambda space: Bow(space, dim=6, dropout=0.0, min_documents=1)} if own else {}
    head, backbone = made(**settings)
    if own:
        head.label_encoder.tfidf.idf[1:] = 1.0
        head.label_encoder.reads_counts = False
    head.read_label_texts(context(head, backbone, documents))
    features = replace(backbone(documents), batch=documents)
    detached = replace(features, pooled=features.pooled.detach())
    head.loss(detached, documents.targets, "texts")["loss"].backward()
    words = (head.label_encoder or backbone).words.weight
    used = sorted({word for text in WORDS[:5] for word in text})
    assert words.grad[used].abs().sum(1).gt(0).all()
    assert not words.grad[[10, 11]].any()  # words of the label that was never trained


def test_labels_without_a_text_have_rows_and_others_have_none(documents):
    head, _ = with_texts(documents)
    assert head.uses_row.tolist() == [False] * 5 + [True, False, False]
    assert head.has_text.tolist() == [True] * 5 + [False, True, False]
    assert torch.allclose(head.vectors_of(torch.tensor([5])), F.normalize(head.rows.weight[5:6], dim=1))
    with pytest.raises(UserError, match="label_texts"):
        made(rows=False)[0].read_label_texts(TransitionContext())


def test_the_ranking_is_that_of_all_cosines(documents):
    head, backbone = with_texts(documents)
    features = backbone(documents)
    with torch.no_grad():
        vectors = head.vectors_of(torch.arange(8))
        logits = 20 * head.document_vectors(features) @ vectors.T - 10
    expected = logits[:, :7].sort(dim=1, descending=True)
    found = head.rank(features, 8)
    assert torch.equal(found.labels[:, :7], expected.indices)  # 6 is unseen, and takes part
    assert torch.allclose(found.scores[:, :7], expected.values.sigmoid(), atol=1e-6)
    assert (found.labels[:, 7] == -1).all()  # 7 has neither a text nor a row


def test_labels_are_encoded_once_until_weights_change(documents, monkeypatch):
    head, backbone = with_texts(documents)
    calls = []
    monkeypatch.setattr(head, "text_vectors", lambda labels: calls.append(1) or DualEncoder.text_vectors(head, labels))
    features = backbone(documents)
    first = head.rank(features, 3)
    assert torch.equal(head.rank(features, 3).scores, first.scores)
    assert len(calls) == 1
    with torch.no_grad():
        backbone.words.weight.mul_(-1)
    head.rank(features, 3)
    assert len(calls) == 2
    other, encoder = made()
    encoder.load_state_dict(backbone.state_dict())
    other.load_state_dict(head.state_dict())
    monkeypatch.setattr(other, "text_vectors", None)  # the checkpoint has the vectors
    assert torch.equal(other.rank(features, 3).labels, head.rank(features, 3).labels)
    assert other.pending == ()


def test_hard_negatives_are_the_best_wrong_labels(documents):
    head, backbone = with_texts(documents, random_negatives=0, hard_negatives=2)
    head.own_negatives(context(head, backbone, documents))
    ranked = head.rank(backbone(documents), 8).labels.tolist()
    for truth, labels, found in zip(TRUTH, ranked, head.hard_labels.tolist(), strict=True):
        assert found == [label for label in labels if 0 <= label < 6 and label not in truth][:2]
    labels = head.candidates(documents, documents.targets.below(6)).tolist()
    assert set(labels) == {0, 1, 2, 3, 4, 5} | {label for row in head.hard_labels.tolist() for label in row}
    part = documents.take(torch.tensor([1]))
    labels = head.candidates(part, part.targets).tolist()
    assert labels == sorted({2, *head.hard_labels[1].tolist()})
    other = made(random_negatives=0, hard_negatives=2)[0]
    other.load_state_dict(head.state_dict())
    assert torch.equal(other.hard_labels, head.hard_labels)


def test_best_wrong_labels_are_never_labels_of_the_document():
    generator = torch.Generator().manual_seed(0)
    labels = torch.stack([torch.randperm(9, generator=generator) for _ in range(50)])
    labels[:, 6:] = -1
    truth = [torch.randperm(9, generator=generator)[: i % 9].tolist() for i in range(50)]
    found = best_wrong(Ranking(torch.zeros(50, 9), labels), Targets.from_lists(truth), 4)
    for row, own, ranked in zip(found.tolist(), truth, labels.tolist(), strict=True):
        wrong = [label for label in ranked if label >= 0 and label not in own][:4]
        assert row == wrong + [-1] * (4 - len(wrong))


class Engine(Linear):
    """Ranks all labels in their order for each training document."""

    def out_of_fold(self, ctx, folds, k):
        size = len(ctx.train_targets())
        return Ranking(torch.zeros(size, k), torch.arange(k).expand(size, k))


def test_negatives_of_an_engine(documents):
    head, backbone = with_texts(documents, random_negatives=0, hard_negatives=2, engine=Engine)
    head.engine_negatives(context(head, backbone, documents))
    assert head.hard_labels[0].tolist() == [2, 3]
    assert head.hard_labels[4].tolist() == [0, 1]
    with pytest.raises(UserError, match="engine"):
        made(random_negatives=0, hard_negatives=2)[0].engine_negatives(context(head, backbone, documents))


def test_siblings_share_a_parent():
    torch.manual_seed(0)
    related = Siblings(SPACE)
    assert set(related.draw(torch.tensor([0]), 40).tolist()) == {0, 1, 2}
    assert set(related.draw(torch.tensor([3]), 5).tolist()) == {3}
    assert related.draw(torch.tensor([4, 5]), 5).numel() == 0  # without parents


def test_rows_start_at_the_texts_and_are_trained_without_the_encoder(documents):
    head, backbone = with_texts(documents, row_documents=3)
    before = head.rank(backbone(documents), 7)
    head.start_rows(context(head, backbone, documents))
    assert head.uses_row.tolist() == [True] * 4 + [False, True, False, False]
    after = head.rank(backbone(documents), 7)
    assert torch.equal(before.labels, after.labels)
    assert torch.allclose(before.scores, after.scores, atol=1e-6)
    optimizer = torch.optim.Adam(head.rows.parameters(), lr=0.05)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = head.loss(backbone(documents), documents.targets, "rows")["loss"]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert not torch.equal(head.rank(backbone(documents), 7).scores, after.scores)


def test_calibrated_probabilities_sum_to_the_hits(documents):
    head, backbone = with_texts(documents)
    ctx = context(head, backbone, documents)
    head.calibrate(ctx)
    assert set(ctx.logged) == {f"calibration/{kind}_{name}" for kind in ("texts", "rows") for name in "ab"}
    found = head.rank(backbone(documents), 7)
    assert found.scores.sum().item() == pytest.approx(len(documents.targets.below(6).indices), rel=0.2)


def test_exact_search_equals_dense_and_the_graph_finds_nearly_all(monkeypatch):
    monkeypatch.setattr("heads.dual.label_search.BLOCK", 700)  # a few documents at a time
    torch.manual_seed(0)
    vectors, queries = F.normalize(torch.randn(300, 16), dim=1), F.normalize(torch.randn(20, 16), dim=1)
    dense = (queries @ vectors.T).topk(10)
    found = exact(queries, vectors, 10)
    assert torch.equal(found.labels, dense.indices)
    assert torch.allclose(found.scores, dense.values)
    some = torch.arange(0, 300, 2)
    near = Graph(vectors[some], some).search(queries, 10)
    wanted = some[exact(queries, vectors[some], 10).labels]
    assert recall(near.labels, wanted).mean() > 0.95
    assert (near.scores.diff(dim=1) <= 0).all()
    assert near.labels.remainder(2).eq(0).all()
    assert recall(torch.tensor([[4, 1, -1]]), torch.tensor([[1, 2, -1]])).tolist() == [0.5]


def test_above_a_number_of_labels_the_search_is_approximate(documents):
    head, backbone = with_texts(documents, approximate_above=3)
    few, backbone_of_few = with_texts(documents)
    features = backbone(documents)
    assert torch.equal(head.rank(features, 4).labels, few.rank(backbone_of_few(documents), 4).labels)
    assert head.checks(features, documents.targets)["search_recall@10"].tolist() == [1.0] * len(TRUTH)
    assert few.checks(features, documents.targets) == {}
    assert (head.rank(features, 8).labels[:, 7] == -1).all()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"hard_negatives": 2}, "random_negatives"),
        ({"siblings": 2, "random_negatives": 0, "space": replace(SPACE, parents=[])}, "siblings=2"),
    ],
)
def test_contradictory_settings_are_refused(settings, named):
    with pytest.raises(UserError, match=named):
        made(**settings)


def test_damaged_checkpoints_are_refused(documents):
    head, _ = with_texts(documents, random_negatives=0, hard_negatives=2)
    head.words[0, 0] = SPACE.vocab_size
    with pytest.raises(UserError, match="vocabulary"):
        head.check_indices()
    for wrong in (torch.zeros(3, 1), torch.full((3, 2), 6, dtype=torch.int32)):
        with pytest.raises(UserError, match="hard negatives"):
            head.set_extra_state({"hard_labels": wrong})


def test_labels_are_added_by_texts_and_by_documents(documents):
    head, backbone = with_texts(documents)
    before = head.rank(backbone(documents), 7)
    space = SPACE.grown({"new": 0, "u": 0, "few": 2})  # "u" was unseen, and has a text
    examples = documents.take(torch.tensor([1, 3]))
    examples.targets = Targets.from_lists([[8], [8]])
    head.learn_labels(space, [(backbone(examples), examples.targets)], {"new": [4, 5]})
    assert (head.num_labels, head.num_scored) == (9, 10)
    assert head.has_text.tolist() == [True] * 5 + [False, True, True, False, False]
    assert head.words[7, :2].tolist() == WORDS[6]
    assert head.uses_row.tolist() == [False] * 5 + [True, False, False, True, False]
    mean = F.normalize(head.document_vectors(backbone(examples)).sum(0), dim=0)
    assert torch.allclose(head.rows.weight[8], mean)
    after = head.rank(backbone(documents), 9)
    for one, other in zip(before.labels.tolist(), after.labels.tolist(), strict=True):
        known = [label for label in other if label not in (6, 8)]  # "u" is label 7 now
        assert known == [{6: 7}.get(label, label) for label in one]
    other = DualEncoder(10, space, hidden=8)
    share_backbone(other, backbone)
    other.load_state_dict(head.state_dict())
    assert torch.equal(other.rank(backbone(documents), 9).labels, after.labels)
    with pytest.raises(UserError, match="'empty'"):
        head.learn_labels(space.grown({"empty": 0}), [], {})
    with pytest.raises(UserError, match="known"):
        head.learn_labels(space.grown({"v": 1}), [(backbone(documents), documents.targets)], {})
