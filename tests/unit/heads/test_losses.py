"""Each loss against a slow loop over its paper's equation, and what all losses have in common."""

import inspect
import math

import pytest
import torch
from torch import nn

import heads.losses as losses
from backbones import Transformer
from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from heads import DXML, AttentionXML, DualEncoder, Linear
from heads.attention.label_attention import labelwise_loss, sample_labels
from heads.loss_base import Loss
from heads.losses import BCE, Asymmetric, ClassBalanced, DistributionBalanced, Focal, PropensityBCE, SquaredHinge
from heads.tree.candidates import Level
from tests.contract.test_pairs import HEADS, OWN, Pair, build, documents, enter, train
from zoo.core.errors import UserError

COUNTS = [60, 40, 22, 9, 3, 1, 0]  # the last label has no training documents
LABELS = len(COUNTS)
SPACE = LabelSpace([f"l{i}" for i in range(LABELS)], COUNTS, num_documents=80, vocab_size=9, unseen=["u"])
TRUTH = [[0, 3], [1, 6], [], [2, 4, 5], [0, 7]]  # one document without labels; 7 is beyond the label space
TARGETS = Targets.from_lists(TRUTH)
DOCS = len(TRUTH)
CASES = {
    "bce": (BCE, {}),
    "focal": (Focal, {}),
    "focal-alpha": (Focal, {"gamma": 0.5, "alpha": 0.25}),
    "class-balanced": (ClassBalanced, {}),
    "class-balanced-focal": (ClassBalanced, {"beta": 0.999, "gamma": 2.0}),
    "asymmetric": (Asymmetric, {}),
    "asymmetric-no-margin": (Asymmetric, {"gamma_pos": 1.0, "gamma_neg": 3.0, "margin": 0.0}),
    "asymmetric-no-focus": (Asymmetric, {"gamma_neg": 0.0, "margin": 0.2}),
    "asymmetric-root": (Asymmetric, {"gamma_neg": 0.5, "margin": 0.1}),
    "distribution-balanced": (DistributionBalanced, {}),
    "distribution-balanced-focal": (DistributionBalanced, {"gamma": 2.0, "mu": 0.5, "neg_scale": 5.0}),
    "propensity": (PropensityBCE, {}),
    "propensity-unbiased": (PropensityBCE, {"form": "unbiased"}),
    "squared-hinge": (SquaredHinge, {}),
    "squared-hinge-margin": (SquaredHinge, {"margin": 0.3}),
}
every_loss = pytest.mark.parametrize("case", CASES)


def made(case) -> Loss:
    kind, settings = CASES[case]
    return kind(SPACE, **settings)


def random_logits(seed=0, scale=3.0):
    return scale * torch.randn(DOCS, LABELS, generator=torch.Generator().manual_seed(seed))


def log(p):
    return torch.log(p)


def pair(loss, x, positive, label, labels):
    """The loss of one pair by the equation, in double precision. `labels` are all known labels of the document."""
    n = [max(count, 1) for count in COUNTS]
    p = torch.sigmoid(x)
    p_t = p if positive else 1 - p
    match loss:
        case BCE():
            return -log(p_t)
        case Focal():
            alpha = 1 if loss.alpha is None else loss.alpha if positive else 1 - loss.alpha
            return -alpha * (1 - p_t) ** loss.gamma * log(p_t)
        case ClassBalanced():
            beta = 0.999 if loss.gamma else 0.9  # as in CASES
            weights = [(1 - beta) / (1 - beta**count) for count in n]
            return -weights[label] / (sum(weights) / LABELS) * (1 - p_t) ** loss.gamma * log(p_t)
        case Asymmetric():
            if positive:
                return -((1 - p) ** loss.gamma_pos) * log(p)
            shifted = p - loss.margin
            return -(shifted**loss.gamma_neg) * log(1 - shifted) if shifted > 0 else 0 * x
        case DistributionBalanced():
            total = sum(1 / n[j] for j in labels)
            r = 1 / n[label] / total if total else math.inf
            weight = loss.alpha + (1 / (1 + math.exp(-loss.beta * (r - loss.mu))) if r < math.inf else 1)
            share = (COUNTS[label] + 0.5) / (SPACE.num_documents + 1)  # never 0
            x = x - 0.05 * math.log(1 / share - 1)
            x, scale = (x, 1) if positive else (-loss.neg_scale * x, loss.neg_scale)
            q = torch.sigmoid(x)
            return -weight / scale * (1 - q) ** loss.gamma * log(q)
        case PropensityBCE():
            a, b = SPACE.propensity_a, SPACE.propensity_b
            c = (math.log(SPACE.num_documents) - 1) * (b + 1) ** a
            inverse = 1 + c * (COUNTS[label] + b) ** -a
            plus, minus = -log(p), -log(1 - p)
            if loss.form == "unbiased":
                return inverse * plus + (1 - inverse) * minus if positive else minus
            return (2 * inverse - 1) * plus if positive else minus
        case SquaredHinge():
            return torch.clamp(loss.margin - (x if positive else -x), min=0) ** 2
    raise AssertionError(loss)


def slow(loss, logits):
    """Sum over labels, mean over documents."""
    total = torch.zeros((), dtype=torch.float64)
    for doc, truth in enumerate(TRUTH):
        labels = [label for label in truth if label < LABELS]
        for label in range(LABELS):
            total = total + pair(loss, logits[doc, label].double(), label in labels, label, labels)
    return total / DOCS


def over_blocks(loss, logits):
    documents, total = loss.document_values(TARGETS), 0
    for docs in (slice(0, 2), slice(2, DOCS)):
        for chunk in (slice(0, 3), slice(3, LABELS)):
            some = None if documents is None else documents[docs]
            rows, columns = TARGETS.rows - docs.start, TARGETS.indices - chunk.start
            total = total + loss.over_block(logits[docs, chunk], rows, columns, chunk, None, some)
    return total / DOCS


def over_candidates(loss, logits):
    """Every label is a candidate, in another order for each document, with padding between."""
    generator = torch.Generator().manual_seed(1)
    nodes = torch.stack([torch.randperm(LABELS, generator=generator) for _ in TRUTH])
    nodes = torch.cat([nodes[:, :2], torch.full((DOCS, 2), -1), nodes[:, 2:]], dim=1)
    labels, real = nodes.clamp_min(0), nodes >= 0
    truth = TARGETS.dense(LABELS).bool().gather(1, labels) & real
    return loss.over_candidates(logits.gather(1, labels), truth, labels, real, loss.document_values(TARGETS)) / DOCS


# --- equations


@every_loss
def test_value_and_gradient_are_those_of_the_equation_in_every_form(case):
    loss, expected_from = made(case), random_logits().requires_grad_()
    expected = slow(loss, expected_from)
    (expected_grad,) = torch.autograd.grad(expected, expected_from)
    for form in (loss, over_blocks, over_candidates):
        logits = random_logits().requires_grad_()
        got = form(logits, TARGETS) if form is loss else form(loss, logits)
        (grad,) = torch.autograd.grad(got, logits)
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(grad, expected_grad, rtol=1e-4, atol=1e-5)


ONE = LabelSpace(["l"], [4], num_documents=9, vocab_size=9)
POSITIVE, NEGATIVE = Targets.from_lists([[0]]), Targets.from_lists([[]])
PROPENSITY = 1 + (math.log(9) - 1) * 2.5**0.55 * 5.5**-0.55  # 1 / q for n = 4, N = 9
THIRD = -math.log(3)  # the logit of 1 / 4
HINGE = (1 + math.log(3)) ** 2


@pytest.mark.parametrize(
    ("loss", "logit", "targets", "expected"),
    [
        (BCE(ONE), 0.0, POSITIVE, math.log(2)),
        (BCE(ONE), THIRD, NEGATIVE, math.log(4 / 3)),
        (Focal(ONE), 0.0, POSITIVE, math.log(2) / 4),
        (Focal(ONE, alpha=0.25), THIRD, NEGATIVE, 0.75 / 16 * math.log(4 / 3)),
        (ClassBalanced(ONE), 0.0, POSITIVE, math.log(2)),  # the weight of a single label is 1
        (ClassBalanced(ONE, gamma=1), THIRD, POSITIVE, 0.75 * math.log(4)),
        (Asymmetric(ONE), 0.0, POSITIVE, math.log(2)),
        (Asymmetric(ONE), 0.0, NEGATIVE, -(0.45**4) * math.log(0.55)),
        (Asymmetric(ONE, margin=0.3), THIRD, NEGATIVE, 0.0),
        # r = 1 on the positive pair; the bias is off
        (DistributionBalanced(ONE, bias_scale=0), 0.0, POSITIVE, (0.1 + 1 / (1 + math.exp(-8))) * math.log(2)),
        (DistributionBalanced(ONE, bias_scale=0), 0.0, NEGATIVE, 1.1 * math.log(2) / 2),
        (PropensityBCE(ONE), 0.0, POSITIVE, (2 * PROPENSITY - 1) * math.log(2)),
        (PropensityBCE(ONE, "unbiased"), THIRD, POSITIVE, math.log(4 / 3) + PROPENSITY * math.log(3)),
        (SquaredHinge(ONE), 0.25, POSITIVE, 0.5625),
        (SquaredHinge(ONE), THIRD, POSITIVE, HINGE),
        (SquaredHinge(ONE), -1.5, NEGATIVE, 0.0),
    ],
)
def test_values_by_hand(loss, logit, targets, expected):
    assert loss(torch.tensor([[logit]]), targets).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "loss",
    [
        Focal(SPACE, gamma=0),
        ClassBalanced(SPACE, beta=0),
        Asymmetric(SPACE, gamma_pos=0, gamma_neg=0, margin=0),
        DistributionBalanced(SPACE, alpha=0.5, beta=0, neg_scale=1, bias_scale=0),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_reduces_to_bce(loss):
    logits = random_logits()
    torch.testing.assert_close(loss(logits, TARGETS), BCE()(logits, TARGETS))


@pytest.mark.parametrize("form", ["convex", "unbiased"])
def test_propensity_one_is_bce(form):
    loss, logits = PropensityBCE(SPACE, form), random_logits()
    loss.inverse.fill_(1.0)
    torch.testing.assert_close(loss(logits, TARGETS), BCE()(logits, TARGETS))


def test_focal_and_asymmetric_agree_without_margin():
    logits = random_logits()
    same = Asymmetric(SPACE, gamma_pos=2, gamma_neg=2, margin=0)
    torch.testing.assert_close(same(logits, TARGETS), Focal(SPACE, gamma=2)(logits, TARGETS))


def test_negatives_below_the_margin_have_no_gradient():
    logits = torch.tensor([[-4.0, -2.0, 0.0]], requires_grad=True)  # p = 0.018, 0.12, 0.5
    Asymmetric(SPACE, margin=0.05)(logits, NEGATIVE).backward()
    assert logits.grad[0, 0] == 0
    assert (logits.grad[0, 1:] > 0).all()


def test_class_balanced_weights_have_mean_one_and_follow_rarity():
    weight = ClassBalanced(SPACE, beta=0.99).weight
    assert weight.mean().item() == pytest.approx(1)
    assert (weight[:-1].diff() > 0).all()
    assert weight[-1] == weight[-2]  # no documents count as one


def test_propensity_weights_only_positives_and_rare_ones_more():
    logits = torch.zeros(1, LABELS)
    assert PropensityBCE(SPACE)(logits, NEGATIVE).item() == pytest.approx(LABELS * math.log(2))
    values = [PropensityBCE(SPACE)(logits, Targets.from_lists([[label]])).item() for label in range(LABELS)]
    assert values == sorted(values)


def test_a_document_without_labels_has_the_highest_weight_of_distribution_balanced():
    loss = DistributionBalanced(SPACE, bias_scale=0)
    got = loss(torch.zeros(1, LABELS), NEGATIVE).item()
    assert got == pytest.approx(1.1 * LABELS * math.log(2) / 2, rel=1e-5)


# --- what all have in common


@every_loss
def test_sum_over_labels_and_mean_over_documents(case):
    loss, logits = made(case), random_logits()
    each = [loss(logits[d : d + 1], TARGETS.take(torch.tensor([d]))) for d in range(DOCS)]
    torch.testing.assert_close(loss(logits, TARGETS), torch.stack(each).mean())
    twice = loss(logits.repeat(2, 1), Targets.from_lists(TRUTH * 2))
    torch.testing.assert_close(twice, loss(logits, TARGETS))


@every_loss
def test_labels_beyond_the_label_space_are_ignored(case):
    loss, logits = made(case), random_logits()
    known = Targets.from_lists([[label for label in truth if label < LABELS] for truth in TRUTH])
    assert torch.equal(loss(logits, TARGETS), loss(logits, known))


@every_loss
@pytest.mark.parametrize("size", [30.0, 100.0, 1e4])
def test_extreme_logits_have_a_finite_loss_and_gradient(case, size):
    loss = made(case)
    for sign in (-1, 1):
        logits = torch.full((DOCS, LABELS), sign * size, requires_grad=True)
        value = loss(logits, TARGETS)
        value.backward()
        assert value.isfinite()
        assert logits.grad.isfinite().all()


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_summed_in_single_precision(case, dtype):
    loss, logits = made(case), random_logits().to(dtype)
    got = loss(logits, TARGETS)
    assert got.dtype == torch.float32
    assert torch.equal(got, loss(logits.float(), TARGETS))


@every_loss
def test_a_logit_nearer_to_the_truth_costs_no_more(case):
    if case == "propensity-unbiased":
        pytest.skip("has no lower bound, but falls too")
    loss, logits = made(case), random_logits()
    nearer = logits + torch.where(TARGETS.dense(LABELS) > 0, 0.5, -0.5)
    assert loss(nearer, TARGETS) <= loss(logits, TARGETS)


@every_loss
def test_buffers_stay_out_of_checkpoints(case):
    assert not made(case).state_dict()


@every_loss
def test_sampled_negatives_give_the_full_loss_on_average(case):
    """Positive pairs count once; only labels that no document of the batch has are weighted."""
    loss, logits = made(case), random_logits()
    targets = Targets.from_lists([[0, 3], [1], [], [2], [0]])  # 4, 5 and 6 are labels of no document
    documents = loss.document_values(targets)
    totals = []
    for drawn in (4, 5, 6):  # every draw of one negative is as likely
        chosen, weight = torch.tensor([0, 1, 2, 3, drawn]), torch.tensor([1.0, 1, 1, 1, 3])
        block = logits[:, chosen], targets.rows, targets.indices  # positive labels keep their places
        totals.append(loss.over_block(*block, chosen, weight, documents) / DOCS)
    torch.testing.assert_close(torch.stack(totals).mean(), loss(logits, targets))
    torch.manual_seed(0)
    seen = set()
    for _ in range(50):
        chosen, weight = sample_labels(targets.indices, LABELS, 1)
        assert chosen[:-1].tolist() == [0, 1, 2, 3]
        assert weight.tolist() == [1, 1, 1, 1, 3]
        seen.add(int(chosen[-1]))
    assert seen == {4, 5, 6}


@every_loss
def test_start_logits_have_the_least_expected_loss(case):
    """Against a grid, over a corpus in which every document has the prior of each label."""
    loss, prior = made(case), SPACE.prior().double()
    start = loss.start_logits(SPACE)
    grid = torch.linspace(-16, 16, 6401, dtype=torch.float64).unsqueeze(1).expand(-1, LABELS)
    positive, negative = (
        loss.pairs(grid, torch.full(grid.shape, truth), slice(0, LABELS), None) for truth in (True, False)
    )
    best = grid.gather(0, (prior * positive + (1 - prior) * negative).argmin(0, keepdim=True))[0]
    torch.testing.assert_close(start.double(), best, rtol=0, atol=0.011)


def test_start_logits_of_bce_are_those_of_the_prior():
    assert torch.equal(BCE().start_logits(SPACE), SPACE.prior().logit())
    torch.testing.assert_close(Loss.start_logits(BCE(), SPACE), SPACE.prior().logit(), rtol=1e-5, atol=1e-5)
    assert torch.equal(Linear(4, SPACE).classifier.bias, SPACE.prior().logit())
    torch.testing.assert_close(SquaredHinge(SPACE).start_logits(SPACE), 2 * SPACE.prior() - 1)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (Focal, {"gamma": -1}, "`gamma=-1` is too low"),
        (Focal, {"gamma": math.nan}, "`gamma=nan` is not a number"),
        (Focal, {"alpha": 1.5}, "`alpha=1.5` is too high"),
        (ClassBalanced, {"beta": -0.1}, "`beta=-0.1` is too low"),
        (ClassBalanced, {"beta": 1.0}, "`beta=1.0` is too high"),
        (ClassBalanced, {"gamma": -2.0}, "`gamma=-2.0` is too low"),
        (Asymmetric, {"gamma_pos": -1}, "`gamma_pos=-1` is too low"),
        (Asymmetric, {"gamma_neg": -1}, "`gamma_neg=-1` is too low"),
        (Asymmetric, {"margin": 2}, "`margin=2` is too high"),
        (DistributionBalanced, {"neg_scale": 0}, "`neg_scale=0` is too low"),
        (DistributionBalanced, {"alpha": -1}, "`alpha=-1` is too low"),
        (DistributionBalanced, {"beta": -1}, "`beta=-1` is too low"),
        (DistributionBalanced, {"bias_scale": -1}, "`bias_scale=-1` is too low"),
        (SquaredHinge, {"margin": -1}, "`margin=-1` is too low"),
    ],
)
def test_settings_out_of_range(kind, settings, message):
    with pytest.raises(UserError, match=message):
        kind(SPACE, **settings)


# --- heads


class Given(nn.Module):
    """Scores a label by the logit that stands in its token: one token for each document."""

    def per_label(self):
        return (torch.arange(LABELS),)


class GivenLevel(Level):
    """The same as a level of a tree: the vector of a node picks its logit."""

    def __init__(self):
        super().__init__(LABELS, LABELS, sparse=False)
        with torch.no_grad():
            self.table.weight.copy_(torch.eye(LABELS))

    def per_token(self, features):
        return (features.tokens,), features.mask

    def score(self, tokens, mask, rows):
        return torch.matmul(tokens[0], rows.mT).squeeze(1)


@every_loss
def test_the_same_logits_have_the_same_loss_under_every_kind_of_head(case):
    loss, logits = made(case), random_logits()
    tokens, mask = logits.unsqueeze(1), torch.ones(DOCS, 1, dtype=torch.bool)
    linear = Linear(LABELS, SPACE, loss=lambda space: loss)
    with torch.no_grad():
        linear.classifier.weight.copy_(torch.eye(LABELS))
        linear.classifier.bias.zero_()
    dense = linear.loss(Features(tokens, mask, logits, (tokens,)), TARGETS, "any")["loss"]
    known = TARGETS.below(LABELS)
    blocks = labelwise_loss(Given(), lambda t, _, which: t[0][:, 0, which[0]], loss, (tokens,), mask, known)
    nodes = torch.stack([torch.randperm(LABELS) for _ in TRUTH])
    truth = TARGETS.dense(LABELS).bool().gather(1, nodes)
    features, values = Features(tokens, mask, logits, (tokens,)), loss.document_values(known)
    tree, _ = GivenLevel().loss(features, nodes, truth, nodes >= 0, loss, values)
    torch.testing.assert_close(dense, loss(logits, TARGETS))
    torch.testing.assert_close(blocks, dense)
    torch.testing.assert_close(tree / DOCS, dense)


class Spy(Focal):
    """Counts how often a head asks for the loss of pairs."""

    asked = 0

    def pairs(self, logits, truth, labels, documents):
        Spy.asked += 1
        return super().pairs(logits, truth, labels, documents)


@pytest.mark.parametrize("kind", HEADS, ids=lambda kind: kind.__name__)
def test_every_head_trains_with_the_chosen_loss_or_has_heads_inside_that_do(kind, monkeypatch):
    taken = {name for base in kind.__mro__[:-1] for name in inspect.signature(base.__init__).parameters}
    if "loss" not in taken:
        if kind not in (DXML, DualEncoder):  # losses of their own: of label vectors, and of cosines
            assert build(kind, 8, SPACE).inner_heads, f"{kind.__name__} makes logits and has no setting `loss`"
        return
    monkeypatch.setitem(OWN, kind.__name__, OWN.get(kind.__name__, {}) | {"loss": Spy})
    pair, batch = Pair(Transformer, kind), documents()
    monkeypatch.setattr(Spy, "asked", 0)  # `start_logits` asks too
    before = train(pair, batch, steps=2)
    if pair.head.pending:
        enter(pair, batch)
    after = train(pair, batch, steps=2)
    assert torch.tensor(before + after).isfinite().all()
    assert Spy.asked >= 4
    assert {"loss:", "common:"} & set(inspect.getdoc(kind).split())


def losses_of_module():
    members = inspect.getmembers(losses, inspect.isclass)
    return {kind for _, kind in members if issubclass(kind, Loss) and not inspect.isabstract(kind)}


def test_every_loss_has_a_case_here():
    assert losses_of_module() == {kind for kind, _ in CASES.values()}


def test_label_attention_with_sampled_negatives_takes_every_loss():
    tokens = torch.randn(DOCS, 3, 4)
    features = Features(tokens, torch.ones(DOCS, 3, dtype=torch.bool), tokens.mean(1), (tokens,))
    for case in CASES:
        head = AttentionXML(4, SPACE, hidden=[4], negatives=1, loss=lambda space, case=case: made(case))
        value = head.loss(features, TARGETS, "any")["loss"]
        value.backward()
        assert value.isfinite()
        assert head.query.grad.isfinite().all()
