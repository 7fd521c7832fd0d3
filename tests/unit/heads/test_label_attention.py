"""Attention of labels over tokens, against slow loops and torch."""

import pytest
import torch
import torch.nn.functional as F

from datamodules.batch import Targets
from heads.attention.label_attention import attend, attend_pairs

LENGTHS = [7, 1, 4, 6]
DIM, WIDTH, QUERIES = 5, 3, 6
cases = pytest.mark.parametrize("shared", [True, False], ids=["shared", "per-document"])
masks = pytest.mark.parametrize("masked", [True, False], ids=["masked", "unmasked"])


def inputs(shared=True, masked=True, lengths=LENGTHS, scale=1.0, seed=0):
    """Queries, keys, values and mask; padding holds random values."""
    torch.manual_seed(seed)
    size, length = len(lengths), max(lengths)
    queries = torch.randn(QUERIES, DIM) if shared else torch.randn(size, QUERIES, DIM)
    tensors = [scale * queries, torch.randn(size, length, DIM), torch.randn(size, length, WIDTH)]
    mask = torch.arange(length) < torch.tensor(lengths)[:, None] if masked else None
    return *(tensor.double().requires_grad_() for tensor in tensors), mask


def slow(queries, keys, values, mask):
    """One query of one document at a time, over its real tokens."""
    rows = []
    for i in range(len(keys)):
        own = queries if queries.dim() == 2 else queries[i]
        real = mask[i] if mask is not None else slice(None)
        weights = [torch.softmax(keys[i][real] @ query, dim=0) for query in own]
        rows.append(torch.stack([weight @ values[i][real] for weight in weights]))
    return torch.stack(rows)


def by_torch(queries, keys, values, mask):
    queries = queries.expand(len(keys), *queries.shape[-2:])
    mask = mask.unsqueeze(1) if mask is not None else None
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=1.0)


def gradients(made, tensors):
    """Gradients of a weighted sum of all elements."""
    weights = torch.linspace(-1, 1, made.numel(), dtype=made.dtype).view_as(made)
    return torch.autograd.grad((made * weights).sum(), tensors)


def close(some, others, **tolerance):
    return all(torch.allclose(one, other, **tolerance) for one, other in zip(some, others, strict=True))


@cases
@masks
@pytest.mark.parametrize("oracle", [slow, by_torch])
def test_attention_and_gradients_equal_a_loop_and_torch(shared, masked, oracle):
    *tensors, mask = inputs(shared, masked)
    got, expected = attend(*tensors, mask), oracle(*tensors, mask)
    assert got.shape == (len(LENGTHS), QUERIES, WIDTH)
    assert torch.allclose(got, expected)
    assert close(gradients(got, tensors), gradients(expected, tensors))


@cases
@masks
def test_gradients_equal_finite_differences(shared, masked):
    *tensors, mask = inputs(shared, masked)
    assert torch.autograd.gradcheck(lambda *given: attend(*given, mask), tensors)


@pytest.mark.parametrize("wanted", range(3), ids=["queries", "keys", "values"])
def test_only_required_gradients_are_computed(wanted):
    *tensors, mask = inputs()
    expected = gradients(attend(*tensors, mask), tensors)[wanted]
    alone = [tensor.detach().requires_grad_(i == wanted) for i, tensor in enumerate(tensors)]
    (got,) = gradients(attend(*alone, mask), [alone[wanted]])
    assert torch.allclose(got, expected, rtol=1e-12, atol=1e-12)  # some processors add up in another order


@cases
def test_documents_without_tokens_get_zeros(shared):
    *tensors, mask = inputs(shared)
    mask[2] = False
    got = attend(*tensors, mask)
    others = [i for i in range(len(LENGTHS)) if i != 2]
    rest = [tensor[others] if tensor.dim() == 3 else tensor for tensor in tensors]
    assert not got[2].any()
    assert torch.allclose(got[others], slow(*rest, mask[others]))
    of_queries, of_keys, of_values = torch.autograd.grad((1e4 * got).sum(), tensors)
    assert all(grad.isfinite().all() for grad in (of_queries, of_keys, of_values))
    assert not of_keys[2].any()
    assert not of_values[2].any()


def sharp(scores):
    """Weights of given scores (docs, n, length) in single precision: of one-hot tokens and one-hot values."""
    scores = torch.tensor(scores, dtype=torch.float32)
    tokens = torch.eye(scores.shape[-1]).expand(len(scores), -1, -1)
    return attend(scores, tokens, tokens)


def test_extreme_scores_give_finite_normal_weights():
    steps = [-float(10**i) for i in range(-2, 5)] + [-85.0, -95.0, -100.0, -1e30]
    weights = sharp([[[0.0, *steps], [1e4, *steps], [-2e4, *steps], [1e30, *steps]]])
    assert weights.isfinite().all()
    assert torch.allclose(weights.sum(-1), torch.ones(1, 4))
    assert ((weights == 0) | (weights >= torch.finfo(torch.float32).tiny)).all()
    assert weights[0, 1].tolist() == [1.0, *(pytest.approx(0, abs=1e-20) for _ in steps)]


def test_sharp_attention_takes_the_best_token():
    queries, keys, values, mask = (part.float() if part.is_floating_point() else part for part in inputs(scale=1e4))
    tensors = [part.detach().requires_grad_() for part in (queries, keys, values)]
    got = attend(*tensors, mask)
    scores = torch.einsum("nd,btd->bnt", queries, keys).masked_fill(~mask.unsqueeze(1), -torch.inf)
    best = torch.stack([values[i][row] for i, row in enumerate(scores.argmax(-1))])
    assert torch.allclose(got, best, atol=1e-4)
    assert all(grad.isfinite().all() for grad in gradients(got, tensors))


@pytest.mark.parametrize(
    "truth", [[[0, 3], [2], [1, 4, 5], [0]], [[], [2, 3], [], [5]], [[], [], [], []]], ids=["all", "some", "none"]
)
def test_pairs_equal_rows_of_the_dense_form(truth):
    queries, keys, values, mask = inputs()
    targets = Targets.from_lists(truth)
    got = attend_pairs(queries[targets.indices], keys, values, mask, targets)
    expected = attend(queries, keys, values, mask)[targets.rows, targets.indices]
    assert got.shape == (len(targets.indices), WIDTH)
    assert torch.allclose(got, expected)
    tensors = (queries, keys, values)
    assert close(gradients(got, tensors), gradients(expected, tensors))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision_is_near_single_precision(dtype, autocast):
    *tensors, mask = inputs()
    expected = attend(*tensors, mask)
    of_all = gradients(expected, tensors)
    given = [tensor.detach().to(torch.float32 if autocast else dtype).requires_grad_() for tensor in tensors]
    with torch.autocast("cpu", dtype=dtype, enabled=autocast):
        got = attend(*given, mask)
    assert got.dtype == torch.float32
    assert torch.allclose(got.double(), expected, atol=0.05)
    made = gradients(got, given)
    assert [grad.dtype for grad in made] == [tensor.dtype for tensor in given]
    assert close([grad.double() for grad in made], of_all, atol=0.1)
