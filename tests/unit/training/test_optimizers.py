"""`RowAdam` against torch's optimizers, clipping against dense gradients, and checks of sparse gradients."""

import copy
from functools import partial

import pytest
import torch
import yaml
from pytorch_lightning import LightningModule, Trainer
from torch import nn
from torch.optim import SGD, Adam, AdamW, SparseAdam

from backbones import BiLSTM
from callbacks import Stage
from heads import Linear
from tests.support.documents import label_space
from tests.support.errors import raises
from zoo.commands.main import main
from zoo.core.errors import UserError
from zoo.training.module import ZooModule
from zoo.training.optimizers import (
    RowAdam,
    average_sparse_gradients,
    check_dense_parameters,
    clip_gradients,
    sparse_parameters,
)

ROWS, DIM = 30, 4


class Model(nn.Module):
    """A linear layer on a sum of embeddings."""

    def __init__(self, sparse=True):
        super().__init__()
        torch.manual_seed(0)
        self.labels = nn.Embedding(ROWS, DIM, sparse=sparse)
        self.map = nn.Linear(DIM, 3)

    def forward(self, rows):
        return self.map(self.labels(rows).sum(0))


def some_rows(step):
    """Five random rows, one of them twice; never the last ten."""
    rows = torch.randint(ROWS - 10, (5,), generator=torch.Generator().manual_seed(step))
    return torch.cat([rows, rows[:1]])


def backward(model, step):
    model.zero_grad()
    model(some_rows(step)).square().sum().backward()


def train(model, steps, *optimizers):
    for step in steps:
        backward(model, step)
        for optimizer in optimizers:
            optimizer.step()


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_equal(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_row_adam_equals_adam_for_dense_gradients(fused, decay):
    mine, theirs = Model(sparse=False), Model(sparse=False)
    optimizer = RowAdam(mine.parameters(), 0.01, (0.8, 0.95), 1e-6, decay, fused)
    settings = {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "fused": fused or None}
    other = (
        AdamW(theirs.parameters(), weight_decay=decay, **settings) if decay else Adam(theirs.parameters(), **settings)
    )
    for step in range(5):
        train(mine, [step], optimizer)
        train(theirs, [step], other)
        assert_equal(weights(mine), weights(theirs))


@pytest.mark.parametrize("fused", [False, True])
def test_row_adam_equals_sparse_adam_for_sparse_gradients(fused):
    mine, theirs = Model(), Model()
    optimizer = RowAdam(mine.parameters(), lr=0.01, fused=fused)
    others = SparseAdam([theirs.labels.weight], lr=0.01), Adam(theirs.map.parameters(), lr=0.01, fused=fused or None)
    for step in range(6):
        train(mine, [step], optimizer)
        train(theirs, [step], *others)
        torch.testing.assert_close(weights(mine), weights(theirs), rtol=0, atol=1e-7)
        assert mine.labels.weight.grad.is_sparse  # converted back
    state, expected = optimizer.state[mine.labels.weight], others[0].state[theirs.labels.weight]
    for name in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(state[name], expected[name], rtol=1e-6, atol=1e-12)
    assert state["step"].dtype == torch.float32
    assert float(state["step"]) == 6


def test_row_adam_equals_a_loop_over_rows():
    lr, beta1, beta2, eps, decay = 0.02, 0.7, 0.9, 1e-5, 0.3
    model = Model()
    optimizer = RowAdam(model.labels.parameters(), lr, (beta1, beta2), eps, decay)
    weight = model.labels.weight.detach().double().clone()
    mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in range(1, 6):
        backward(model, step)
        gradient = model.labels.weight.grad.to_dense().double()
        for row in set(some_rows(step).tolist()):
            mean[row] = beta1 * mean[row] + (1 - beta1) * gradient[row]
            square[row] = beta2 * square[row] + (1 - beta2) * gradient[row] ** 2
            first, second = mean[row] / (1 - beta1**step), square[row] / (1 - beta2**step)
            weight[row] -= lr * decay * weight[row]
            weight[row] -= lr * first / (second.sqrt() + eps)
        optimizer.step()
        torch.testing.assert_close(model.labels.weight.detach().double(), weight, rtol=0, atol=1e-6)


@pytest.mark.parametrize("fused", [False, True])
def test_state_is_restored(fused, tmp_path):
    whole = Model()
    first = RowAdam(whole.parameters(), lr=0.01, weight_decay=0.1, fused=fused)
    train(whole, range(3), first)
    cut = copy.deepcopy(whole)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = RowAdam(cut.parameters(), lr=0.5, fused=fused)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    train(whole, range(3, 6), first)
    train(cut, range(3, 6), second)
    assert_equal(weights(cut), weights(whole))
    assert_equal(second.state_dict()["state"], first.state_dict()["state"])


def test_gradients_may_alternate_between_sparse_and_dense():
    model, dense = Model(), Model(sparse=False)
    optimizer, other = RowAdam(model.parameters()), Adam(dense.parameters())
    every = torch.arange(ROWS)  # then both move all rows
    for step in range(4):
        for each, by in ((model, optimizer), (dense, other)):
            each.zero_grad()
            each(every).square().sum().backward()
            if step % 2:
                each.labels.weight.grad = each.labels.weight.grad.to_dense()
            by.step()
        torch.testing.assert_close(weights(model), weights(dense), rtol=0, atol=1e-6)


def test_closure_is_called_once_with_gradients_enabled():
    model, calls = Model(), []

    def closure():
        calls.append(torch.is_grad_enabled())
        backward(model, 0)
        return torch.tensor(7.0)

    assert RowAdam(model.parameters()).step(closure) == 7
    assert calls == [True]


@pytest.mark.parametrize("setting", ["amsgrad", "maximize"])
def test_unsupported_settings_are_rejected(setting):
    with raises(ValueError, "RowAdam", setting):
        RowAdam([{"params": list(Model().parameters()), setting: True}])


@pytest.mark.parametrize("algorithm", ["norm", "value"])
@pytest.mark.parametrize("limit", [0.01, 1e9, 0.0])
def test_clipping_equals_that_of_dense_gradients(algorithm, limit):
    model, dense = Model(), Model(sparse=False)
    for each in (model, dense):
        backward(each, 0)
    clip_gradients(model.parameters(), limit, algorithm)
    if limit and algorithm == "norm":
        nn.utils.clip_grad_norm_(dense.parameters(), limit)
    elif limit:
        nn.utils.clip_grad_value_(dense.parameters(), limit)
    torch.testing.assert_close(model.labels.weight.grad.to_dense(), dense.labels.weight.grad)
    for mine, theirs in zip(model.map.parameters(), dense.map.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


class Clipped(ZooModule):
    """The steps and clipping of `ZooModule` around a small model."""

    def __init__(self, sparse):
        LightningModule.__init__(self)
        self.model = Model(sparse)

    def setup(self, stage): ...

    def training_step(self, batch, batch_idx):
        if batch_idx == 4:
            self.trainer.gradient_clip_val = 0.1  # as a stage does
        return self.model(some_rows(batch_idx)).square().sum()

    def configure_optimizers(self):
        return SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("algorithm", [None, "norm", "value"])
def test_trainer_clips_sparse_gradients(algorithm, tmp_path):
    ended = []
    for sparse in (True, False):
        off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
        clipping = {"gradient_clip_val": 0.5, "gradient_clip_algorithm": algorithm, "accumulate_grad_batches": 2}
        trainer = Trainer(accelerator="cpu", max_epochs=1, default_root_dir=tmp_path, **off, **clipping)
        module = Clipped(sparse)
        trainer.fit(module, torch.utils.data.DataLoader(range(8)))
        ended.append(weights(module))
    torch.testing.assert_close(*ended, rtol=0, atol=1e-6)


class Rows(Linear):
    """A head with sparse label embeddings under two names."""

    def __init__(self, dim, space, sparse=True):
        super().__init__(dim, space)
        self.labels = nn.EmbeddingBag(space.num_labels, dim, sparse=sparse, mode="sum")
        self.words = nn.Embedding(3, dim)
        self.again = self.labels


SPACE = label_space([9, 8, 1], 12)
NAMES = ["head.labels.weight", "head.again.weight"]


def module_with(optimizer=Adam, sparse=True):
    return ZooModule(SPACE, partial(BiLSTM, embed_dim=8, hidden=4), partial(Rows, sparse=sparse), optimizer)


def test_ddp_ignores_all_names_of_sparse_parameters():
    assert module_with()._ddp_params_and_buffers_to_ignore == NAMES
    assert module_with(sparse=False)._ddp_params_and_buffers_to_ignore == []
    assert list(sparse_parameters(Model())) == ["labels.weight"]


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [
        (Adam, "Adam"),
        (partial(AdamW, fused=True), "AdamW"),
        (partial(SGD, lr=0.1, momentum=0.9), "SGD with momentum"),
        (partial(SGD, lr=0.1, weight_decay=0.1), "SGD with weight_decay"),
        (partial(SGD, lr=0.1, fused=True), "SGD with fused"),
    ],
)
def test_optimizers_without_sparse_gradients_are_rejected(optimizer, name):
    with raises(UserError, name, "model.optimizer=RowAdam", "sparse_above"):
        module_with(optimizer).configure_optimizers()
    module = module_with(RowAdam)
    with raises(UserError, name, "stages.late.optimizer=RowAdam", "sparse_above"):
        module.optimizer_of(Stage("late", optimizer=optimizer), dict(module.named_parameters()))


def test_optimizers_that_support_all_trained_gradients():
    for optimizer in (RowAdam, partial(SGD, lr=0.1)):
        assert module_with(optimizer).configure_optimizers()
    assert module_with(sparse=False).configure_optimizers()
    module = module_with()
    module.head.labels.weight.requires_grad = False
    assert module.configure_optimizers()
    decayed = Stage("s", groups={"head.classifier.*": {"momentum": 0.9}})
    module = module_with(partial(SGD, lr=0.1))
    assert module.optimizer_of(decayed, dict(module.named_parameters()))


def test_invalid_settings_of_a_group_are_rejected():
    module = module_with(RowAdam)
    with raises(UserError, "'s'", "RowAdam", "maximize"):
        module.optimizer_of(Stage("s", groups={"head.*": {"maximize": True}}), dict(module.named_parameters()))


def test_ddp_needs_a_parameter_with_dense_gradients():
    module = module_with()
    for name, parameter in module.named_parameters():
        parameter.requires_grad = name in NAMES
    with raises(UserError, "'main'", "head.labels.weight"):
        _ = module._ddp_params_and_buffers_to_ignore
    check_dense_parameters({}, sparse_parameters(module), "none")


def test_tied_sparse_weights_are_rejected():
    parameter = nn.Parameter(torch.zeros(2, 2))
    parameter.grad = torch.zeros(2, 2)
    with raises(RuntimeError, "sparse=True"):
        average_sparse_gradients([parameter], 2)


def test_row_adam_is_known_to_yaml(tmp_path, capsys, clean_environment):
    stage = {"name": "s", "epochs": 1, "optimizer": {"class_path": "RowAdam", "init_args": {"weight_decay": 0.1}}}
    model = {"backbone": "BiLSTM", "head": "Linear"}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({"data": "Sample", "model": model, "stages": [stage]}))
    args = ["--model.optimizer=RowAdam", "--model.optimizer.lr=0.1", "--print_config"]
    with pytest.raises(SystemExit) as stop:
        main(["fit", f"--config={tmp_path / 'tiny.yaml'}", *args])
    assert not stop.value.code
    shown = yaml.safe_load(capsys.readouterr().out)
    settings = {"lr": 0.001, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0, "fused": False}
    for found, own in ((shown["model"], {"lr": 0.1}), (shown["stages"][0], {"weight_decay": 0.1})):
        path = "zoo.training.optimizers.RowAdam"
        assert found["optimizer"] == {"class_path": path, "init_args": settings | own}
