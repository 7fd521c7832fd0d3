"""LSFA: features and scores against slow loops, and the terms of its loss."""

import math

import pytest
import torch
import torch.nn.functional as F

from backbones.base import Features
from datamodules.batch import Targets
from heads.augment.contrastive import contrastive_loss, psc_factor
from tests.support.documents import label_space
from tests.support.httn import seeded
from tests.support.lsfa import adjusting, build, documents, ignore_noise, prepared, some

SPACE = label_space([30, 20, 12, 9, 3, 1], 60)
TRUTH = [[0, 3], [1], [], [2, 5, 7], [0, 1, 2, 3, 4, 5]]  # 7 is a label that training never saw


def slow_feature(head, features, document, label):
    """Attention over the real tokens of one document, and the projection after it."""
    tokens = features.tokens[document][features.mask[document]]
    attended = torch.softmax(tokens @ head.query[label], dim=0) @ tokens
    return attended if head.project is None else F.linear(attended, head.project.weight, head.project.bias).relu()


def slow_features(head, features):
    labels = range(head.num_labels)
    return torch.stack([torch.stack([slow_feature(head, features, i, j) for j in labels]) for i in range(len(TRUTH))])


@pytest.mark.parametrize("feat_dim", [5, None])
@pytest.mark.parametrize("classifier", ["per_label", "shared"])
@pytest.mark.parametrize("bias", [False, True])
def test_scores_equal_a_loop(feat_dim, classifier, bias):
    head, features = build(SPACE, feat_dim=feat_dim, classifier=classifier, bias=bias), documents(len(TRUTH))
    logits = head(features)
    for i in range(len(TRUTH)):
        for j in range(6):
            weight = head.classifier.weight[0 if classifier == "shared" else j]
            expected = weight @ slow_feature(head, features, i, j) + (SPACE.prior()[j].logit() if bias else 0)
            assert logits[i, j].item() == pytest.approx(expected.item(), abs=1e-5)
    assert head.classifier.weight.shape == (1 if classifier == "shared" else 6, head.width)


@pytest.mark.parametrize("feat_dim", [5, None])
def test_the_pooled_vector_replaces_label_specific_features(feat_dim):
    head, features = build(SPACE, feat_dim=feat_dim, label_specific=False, bias=True), documents(len(TRUTH))
    assert not head.needs_tokens
    assert "query" not in dict(head.named_parameters())
    pooled = features.pooled if feat_dim is None else head.project(features.pooled).relu()
    assert torch.allclose(head(features), F.linear(pooled, head.classifier.weight, head.classifier.bias), atol=1e-6)
    targets = Targets.from_lists(TRUTH).below(6)
    assert torch.allclose(head.pair_features(features, targets), pooled[targets.rows], atol=1e-6)
    no_tokens = Features(features.tokens[:, :0], features.mask, features.pooled, ())
    assert torch.equal(head(no_tokens), head(features))
    assert torch.equal(head.loss(no_tokens, targets, "any")["loss"], head.loss(features, targets, "any")["loss"])


@pytest.mark.parametrize("feat_dim", [5, None])
def test_pair_features_are_those_that_are_scored(feat_dim):
    head, features = build(SPACE, feat_dim=feat_dim), documents(len(TRUTH))
    targets = Targets.from_lists(TRUTH).below(6)
    got = head.pair_features(features, targets)
    assert got.shape == (11, head.width)
    assert torch.allclose(got, slow_features(head, features)[targets.rows, targets.indices], atol=1e-6)
    none, empty = some(features, targets, torch.tensor([2]))  # a document without labels
    assert head.pair_features(none, empty).shape == (0, head.width)


@pytest.mark.parametrize("classifier", ["per_label", "shared"])
@pytest.mark.parametrize("label_specific", [True, False])
def test_loss_and_gradients_equal_those_of_the_scores(classifier, label_specific):
    head = build(SPACE, classifier=classifier, label_specific=label_specific, bias=True)
    features, targets = documents(len(TRUTH)), Targets.from_lists(TRUTH)
    parameters = [p for p in head.parameters() if p.requires_grad]
    assert len(parameters) == 4 + label_specific
    loss = head.loss(features, targets, "any")["loss"]
    expected = F.binary_cross_entropy_with_logits(head(features), targets.dense(6), reduction="none").sum(1).mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for got, right in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        assert torch.allclose(got, right, atol=1e-6)


def contrast(features, labels, prototypes, support=None, temperature=1.0):
    support = torch.ones(len(prototypes)).long() if support is None else torch.tensor(support)
    return contrastive_loss(features, torch.tensor(labels).long(), prototypes, support, temperature)


def test_contrastive_loss_by_hand():
    loss = contrast(torch.tensor([[1.0, 0.0]]), [0], torch.eye(2)).item()
    assert loss == pytest.approx(math.log(1 + math.exp(-1)), abs=1e-6)
    assert loss == pytest.approx(0.313262, abs=1e-6)
    assert loss != pytest.approx(0.861995, abs=0.1)  # the own prototype twice in the denominator
    assert loss != pytest.approx(-1.0, abs=0.1)  # or not at all


def random_pairs(size=7, labels=4, seed=0):
    features, prototypes = torch.randn(size + labels, 3, generator=seeded(seed)).split([size, labels])
    return features, torch.randint(labels, (size,), generator=seeded(seed)).tolist(), prototypes


@pytest.mark.parametrize("support", [[3, 2, 1, 5], [3, 0, 1, 0]], ids=["all", "two-without-documents"])
def test_contrastive_loss_equals_a_double_loop(support):
    features, labels, prototypes = random_pairs()
    terms = []
    for v, label in zip(features, labels, strict=True):
        if not support[label]:
            continue
        total = 0.0
        for j, p in enumerate(prototypes):
            if support[j]:
                total += math.exp(v @ p / (v.norm() * p.norm()) / 0.3)
        own = prototypes[label]
        terms.append(-math.log(math.exp(v @ own / (v.norm() * own.norm()) / 0.3) / total))
    assert 0 < len(terms) <= len(labels)
    got = contrast(features, labels, prototypes, support, temperature=0.3)
    assert got.item() == pytest.approx(sum(terms), rel=1e-5)


@pytest.mark.parametrize("labels", [[], [3], [3, 3]])
def test_contrastive_loss_without_pairs_is_zero(labels):
    features = torch.randn(len(labels), 3, generator=seeded()).requires_grad_()
    loss = contrast(features, labels, torch.eye(4)[:, :3], [1, 1, 1, 0])
    assert loss.item() == 0
    loss.backward()
    assert not features.grad.any()


def test_a_feature_of_zeros_has_a_finite_gradient():
    features = torch.zeros(1, 3, requires_grad=True)
    contrast(features.relu(), [0], torch.eye(3), temperature=0.07).backward()
    assert features.grad.isfinite().all()


def test_contrast_joins_the_loss_once_there_are_prototypes():
    head, context = prepared(psc_weight=0.4, unseen=1)
    assert head.loss(context.features, context.targets, "any").keys() == {"bce", "loss"}
    head.refresh_prototypes(context)
    terms = head.loss(context.features, context.targets, "any")
    known = context.targets.below(6)
    pairs = head.pair_features(context.features, known)
    expected = contrastive_loss(pairs, known.indices, head.prototypes, head.support, head.temperature)
    assert terms.keys() == {"bce", "psc", "loss"}
    assert terms["psc"].item() == pytest.approx(0.4 * expected.item() / len(context.targets), rel=1e-6)
    assert terms["loss"].item() == pytest.approx(terms["bce"].item() + terms["psc"].item(), rel=1e-6)
    of_psc = torch.autograd.grad(terms["psc"], [head.query, head.project.weight, head.project.bias])
    assert all(grad.any() for grad in of_psc)


def test_gradient_of_generated_features_by_hand():
    logits = torch.tensor([2.0, -1.0, 0.5], requires_grad=True)
    target = logits.detach().sigmoid()
    target[1] = 1
    trick = torch.autograd.grad(F.binary_cross_entropy_with_logits(logits, target), logits)[0]  # the official code's
    assert trick.tolist() == pytest.approx([0, -0.243686, 0], abs=1e-6)
    assert torch.autograd.grad(-F.logsigmoid(logits[1]), logits)[0][1].item() == pytest.approx(-0.731059, abs=1e-6)

    head, _ = adjusting(counts=(30, 20, 12, 3), samples=20, feat_dim=1, bias=True)  # one tail label, 3, of 60 documents
    head.generate = lambda labels: torch.ones(len(labels), 1)
    with torch.no_grad():
        head.classifier.weight[3], head.classifier.bias[3] = -3.0, 2.0
    parameters = [head.classifier.weight, head.classifier.bias]
    weight, bias = torch.autograd.grad(head.augmented_loss(6), parameters)
    share = 20 / 60  # generated features for each document
    assert weight.flatten().tolist() == pytest.approx([0, 0, 0, -0.731059 * share], abs=1e-6)
    assert bias.tolist() == pytest.approx([0, 0, 0, -0.731059 * share], abs=1e-6)


def test_generated_features_change_their_own_classifiers_only():
    head, _ = adjusting(bias=True)
    before = {name: p.detach().clone() for name, p in head.named_parameters()}
    ignore_noise(head)
    decoder = head.pvae.decode[0].weight.clone()
    tail, drawn = head.tail_labels.tolist(), head.generate(head.tail_labels)
    logits = (head.classifier.weight[tail] * drawn).sum(1) + head.classifier.bias[tail]
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    torch.manual_seed(0)
    head.augmented_loss(1000).backward()
    optimizer.step()
    assert tail == [3, 4, 5]
    assert ((head.classifier.weight[tail] * drawn).sum(1) + head.classifier.bias[tail] > logits).all()
    for name in ("classifier.weight", "classifier.bias"):
        now = dict(head.named_parameters())[name]
        assert torch.equal(now[:3], before[name][:3])
        assert (now[3:] != before[name][3:]).reshape(3, -1).any(1).all()
    for name, parameter in head.named_parameters():
        if not name.startswith(("classifier", "pvae.decode.0")):
            assert torch.equal(parameter, before[name]), name
    assert torch.equal(head.pvae.decode[0].weight, decoder)
    assert all(p.grad is None for p in head.pvae.parameters())


@pytest.mark.parametrize("classifier", ["per_label", "shared"])
def test_augmented_loss_is_unbiased(classifier):
    head, _ = adjusting(samples=7, classifier=classifier)
    ignore_noise(head)
    weight = head.classifier.weight.detach().expand(6, -1)
    made = head.generate(torch.arange(6))
    expected = sum(7 * math.log(1 + math.exp(-float(weight[j] @ made[j]))) for j in (3, 4, 5)) / 60
    torch.manual_seed(1)
    with torch.no_grad():
        drawn = torch.stack([head.augmented_loss(4) for _ in range(1000)])
    assert drawn.mean().item() == pytest.approx(expected, abs=4 * drawn.std().item() / 1000**0.5)
    assert drawn.std() < 0.3 * expected  # so that the line above says something


@pytest.mark.parametrize(("batch", "size"), [(40, 20), (1, 1), (5, 2)])
def test_number_of_generated_features(batch, size):
    head, _ = adjusting(samples=10)  # 30 for 60 documents
    sizes, generate = [], head.generate
    head.generate = lambda labels: sizes.append(len(labels)) or generate(labels)
    head.augmented_loss(batch)
    assert sizes == [size]


def test_generated_features_replace_the_contrast_while_adjusting():
    head, context = adjusting(augment_weight=0.5)
    torch.manual_seed(0)
    terms = head.loss(context.features, context.targets, "any")
    torch.manual_seed(0)
    expected = 0.5 * head.augmented_loss(60)
    assert terms.keys() == {"bce", "augmented", "loss"}
    assert torch.equal(terms["augmented"], expected)
    assert terms["loss"].item() == pytest.approx((terms["bce"] + expected).item(), rel=1e-6)


def scaled(scale, **settings):
    """A head with prototypes, its documents, and the logits and positive pairs of these."""
    head, context = prepared(psc_scale=scale, psc_weight=0.1, **settings)
    head.refresh_prototypes(context)
    pairs = head.pair_features(context.features, context.targets)
    contrasts = [
        contrast(pairs[i : i + 1], [int(label)], head.prototypes, head.support.tolist(), head.temperature)
        for i, label in enumerate(context.targets.indices)
    ]
    truth = context.targets.dense(6)
    errors = F.binary_cross_entropy_with_logits(head(context.features), truth, reduction="none")
    return head, head.loss(context.features, context.targets, "any"), errors, torch.stack(contrasts)


def test_scale_of_the_sum_is_that_of_the_equations():
    _, terms, errors, contrasts = scaled("sum")
    expected = (errors.sum() + 0.1 * contrasts.sum()) / len(errors)  # Eq. 6 and 9, mean over documents
    assert terms["loss"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_scale_of_the_authors_is_that_of_mean_reductions():
    _, terms, errors, contrasts = scaled("authors")
    expected = errors.mean() + 0.1 * contrasts.mean() / len(errors)
    assert terms["loss"].item() / errors.shape[1] == pytest.approx(expected.item(), rel=1e-5)


def test_gradients_of_the_two_scales_differ_by_labels_over_pairs():
    gradients = {}
    for scale in ("sum", "authors"):
        head, terms, errors, contrasts = scaled(scale)
        of_psc = torch.autograd.grad(terms["psc"], head.query, retain_graph=True)[0]
        of_bce = torch.autograd.grad(terms["bce"], head.query)[0]
        gradients[scale] = float(of_psc.norm() / of_bce.norm())
    documents, labels, pairs = len(errors), errors.shape[1], len(contrasts)
    assert gradients["authors"] / gradients["sum"] == pytest.approx(labels / pairs, rel=1e-4)
    assert psc_factor("authors", documents, pairs, labels) * documents == pytest.approx(labels / pairs)
