"""`RowAdam` against torch's own optimizers, and clipping against dense gradients."""

from __future__ import annotations

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
from datamodules.batch import LabelSpace
from datamodules.errors import UserError
from heads import Linear
from zoo.cli import main
from zoo.module import ZooModule
from zoo.optimizers import RowAdam, check_others, clip, row_parameters, share_rows

ROWS, DIM = 30, 4


class Model(nn.Module):
    """A sum of rows, and a linear map of it."""

    def __init__(self, sparse=True):
        super().__init__()
        torch.manual_seed(0)
        self.labels = nn.Embedding(ROWS, DIM, sparse=sparse)
        self.map = nn.Linear(DIM, 3)

    def forward(self, rows):
        return self.map(self.labels(rows).sum(0))


def some_rows(step):
    """A few, one of them twice; never the last ten."""
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


# --- RowAdam


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_with_dense_gradients_it_is_adam(fused, decay):
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
def test_with_sparse_gradients_it_is_sparse_adam_and_takes_dense_ones_beside(fused):
    mine, theirs = Model(), Model()
    optimizer = RowAdam(mine.parameters(), lr=0.01, fused=fused)
    others = SparseAdam([theirs.labels.weight], lr=0.01), Adam(theirs.map.parameters(), lr=0.01, fused=fused or None)
    for step in range(6):
        train(mine, [step], optimizer)
        train(theirs, [step], *others)
        torch.testing.assert_close(weights(mine), weights(theirs), rtol=0, atol=1e-7)
        assert mine.labels.weight.grad.is_sparse  # it is given back
    state, expected = optimizer.state[mine.labels.weight], others[0].state[theirs.labels.weight]
    for name in ("exp_avg", "exp_avg_sq"):
        torch.testing.assert_close(state[name], expected[name], rtol=1e-6, atol=1e-12)
    assert state["step"].dtype == torch.float32
    assert float(state["step"]) == 6


def test_rows_without_a_gradient_stay_where_they_are():
    model = Model()
    optimizer = RowAdam(model.parameters(), lr=0.01, weight_decay=0.1)
    for step in range(6):
        before, state = weights(model)["labels.weight"], optimizer.state[model.labels.weight]
        moments = [state[name].clone() for name in ("exp_avg", "exp_avg_sq")] if state else [torch.zeros(ROWS, DIM)] * 2
        train(model, [step], optimizer)
        moved = torch.zeros(ROWS, dtype=torch.bool).index_fill(0, some_rows(step), True)
        after = [model.labels.weight, *(state[name] for name in ("exp_avg", "exp_avg_sq"))]
        for old, new in zip([before, *moments], after, strict=True):
            assert torch.equal((old != new).any(1), moved)


def test_each_row_moves_as_a_slow_loop_says():
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
def test_its_state_goes_on_in_another_one(fused, tmp_path):
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


def test_a_gradient_may_be_dense_at_another_time():
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


def test_the_closure_is_called_once_with_gradients_on():
    model, calls = Model(), []

    def closure():
        calls.append(torch.is_grad_enabled())
        backward(model, 0)
        return torch.tensor(7.0)

    assert RowAdam(model.parameters()).step(closure) == 7
    assert calls == [True]


@pytest.mark.parametrize("setting", ["amsgrad", "maximize"])
def test_settings_that_it_has_not_are_refused(setting):
    with pytest.raises(ValueError, match=f"RowAdam has no {setting}"):
        RowAdam([{"params": list(Model().parameters()), setting: True}])


# --- clipping


@pytest.mark.parametrize("algorithm", ["norm", "value"])
@pytest.mark.parametrize("limit", [0.01, 1.0, 1e9, 0.0])
def test_clipping_is_that_of_dense_gradients(algorithm, limit):
    model, dense = Model(), Model(sparse=False)
    for each in (model, dense):
        backward(each, 0)
    clip(model.parameters(), limit, algorithm)
    if limit and algorithm == "norm":
        nn.utils.clip_grad_norm_(dense.parameters(), limit)
    elif limit:
        nn.utils.clip_grad_value_(dense.parameters(), limit)
    torch.testing.assert_close(model.labels.weight.grad.to_dense(), dense.labels.weight.grad)
    for mine, theirs in zip(model.map.parameters(), dense.map.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


class Clipped(ZooModule):
    """Its steps and clipping around a small model."""

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
def test_the_trainer_clips_sparse_gradients_too(algorithm, tmp_path):
    ended = []
    for sparse in (True, False):
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=1,
            accumulate_grad_batches=2,
            gradient_clip_val=0.5,
            gradient_clip_algorithm=algorithm,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        module = Clipped(sparse)
        trainer.fit(module, torch.utils.data.DataLoader(range(8)))
        ended.append(weights(module))
    torch.testing.assert_close(*ended, rtol=0, atol=1e-6)


# --- the module


class Rows(Linear):
    """With a vector for each label, whose rows alone have gradients."""

    def __init__(self, dim, space, sparse=True):
        super().__init__(dim, space)
        self.labels = nn.EmbeddingBag(space.num_labels, dim, sparse=sparse, mode="sum")
        self.words = nn.Embedding(3, dim)
        self.again = self.labels


SPACE = LabelSpace(["a", "b", "c"], [9, 8, 1], num_documents=12, vocab_size=5)
NAMES = ["head.labels.weight", "head.again.weight"]


def module_with(optimizer=Adam, sparse=True):
    return ZooModule(SPACE, partial(BiLSTM, embed_dim=8, hidden=4), partial(Rows, sparse=sparse), optimizer)


def test_ddp_is_told_all_names_of_rows():
    assert module_with()._ddp_params_and_buffers_to_ignore == NAMES
    assert module_with(sparse=False)._ddp_params_and_buffers_to_ignore == []
    assert list(row_parameters(Model())) == ["labels.weight"]


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
def test_an_optimizer_that_cannot_take_sparse_gradients_is_refused(optimizer, name):
    text = f"the label embeddings have sparse gradients, which {name} cannot take: choose {{}}=RowAdam, or raise "
    text += "--model.head.sparse_above"
    with pytest.raises(UserError) as error:
        module_with(optimizer).configure_optimizers()
    assert str(error.value) == text.format("--model.optimizer")
    module = module_with(RowAdam)
    with pytest.raises(UserError) as error:
        module.optimizer_of(Stage("late", optimizer=optimizer), dict(module.named_parameters()))
    assert str(error.value) == text.format("--stages.late.optimizer")


def test_optimizers_that_can_are_let_be_and_so_are_others_where_rows_rest():
    for optimizer in (RowAdam, partial(SGD, lr=0.1)):
        assert module_with(optimizer).configure_optimizers()
    assert module_with(sparse=False).configure_optimizers()
    module = module_with()
    module.head.labels.weight.requires_grad = False
    assert module.configure_optimizers()
    decayed = Stage("s", groups={"head.classifier.*": {"momentum": 0.9}})
    module = module_with(partial(SGD, lr=0.1))
    assert module.optimizer_of(decayed, dict(module.named_parameters()))


def test_a_mistake_in_its_settings_is_one_line():
    module = module_with(RowAdam)
    with pytest.raises(UserError, match=r"stage 's': optimizer .* cannot be made: RowAdam has no maximize"):
        module.optimizer_of(Stage("s", groups={"head.*": {"maximize": True}}), dict(module.named_parameters()))


def test_ddp_needs_something_else_to_train():
    module = module_with()
    for name, parameter in module.named_parameters():
        parameter.requires_grad = name in NAMES
    with pytest.raises(UserError, match=r"stage 'main' trains only head\.labels\.weight, .* train something else too"):
        _ = module._ddp_params_and_buffers_to_ignore
    check_others({}, row_parameters(module), "none")


def test_a_weight_with_a_dense_gradient_is_not_shared():
    parameter = nn.Parameter(torch.zeros(2, 2))
    parameter.grad = torch.zeros(2, 2)
    with pytest.raises(RuntimeError, match="its gradient is dense"):
        share_rows([parameter], 2)


def test_yaml_names_it_by_its_short_name(tmp_path, capsys, clean_environment):
    stage = {"name": "s", "epochs": 1, "optimizer": {"class_path": "RowAdam", "init_args": {"weight_decay": 0.1}}}
    model = {"backbone": "BiLSTM", "head": "Linear"}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump({"data": "Sample", "model": model, "stages": [stage]}))
    args = ["--model.optimizer=RowAdam", "--model.optimizer.lr=0.1", "--print_config"]
    with pytest.raises(SystemExit) as stop:
        main(["fit", f"--config={tmp_path / 'tiny.yaml'}", *args])
    assert not stop.value.code
    shown = yaml.safe_load(capsys.readouterr().out)
    settings = {"lr": 0.001, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0, "fused": False}
    assert shown["model"]["optimizer"] == {"class_path": "zoo.optimizers.RowAdam", "init_args": settings | {"lr": 0.1}}
    own = shown["stages"][0]["optimizer"]
    assert own == {"class_path": "zoo.optimizers.RowAdam", "init_args": settings | {"weight_decay": 0.1}}
