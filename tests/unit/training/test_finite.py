"""Which tensors are not finite."""

import pytest
import torch

from zoo.training.finite import non_finite, shortened


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_one_value_is_found_in_any_tensor(dtype, value):
    for shape in ((), (1,), (3, 4)):
        tensor = torch.ones(shape, dtype=dtype)
        assert non_finite({"a": tensor}) == []
        tensor.view(-1)[-1] = value
        assert non_finite({"a": tensor}) == ["a"]


def test_states_are_nested_and_have_other_values():
    bad = torch.tensor([0.0, torch.nan])
    sparse = torch.sparse_coo_tensor(torch.tensor([[1, 1]]), bad, (3,))
    state = {
        "engine._extra_state": {"weights": [torch.ones(2), bad], "width": 3, "text": "inf", "none": None},
        "ids": torch.arange(3),
        "empty": torch.zeros(0),
        "sparse": sparse,
        "largest": torch.full((3,), torch.finfo(torch.float32).max),
    }
    assert non_finite(state) == ["engine._extra_state.weights.1", "sparse"]


def test_a_message_names_the_first():
    assert [shortened(list("abcde")[:size]) for size in (1, 2, 5)] == ["a", "a, b", "a, b and 3 more"]
