"""Stages through the real command line: what is trained, with what, for how long, and what a continued run does."""

from __future__ import annotations

import csv
import os
import shutil
import signal
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import yaml
from pytorch_lightning import Callback

from datamodules import LabelSpace
from heads import Linear
from zoo.checkpoint import read_checkpoint
from zoo.cli import main

CONFIG = """
data:
  class_path: Sample
  init_args: {num_documents: 100, num_labels: 12, words_per_document: 20, batch_size: 16}
trainer:
  accelerator: cpu
  num_sanity_val_steps: 0
  enable_progress_bar: false
  enable_model_summary: false
  log_every_n_steps: 1
  callbacks: [{class_path: RECORDER}]
model:
  backbone: {class_path: BiLSTM, init_args: {embed_dim: 6, hidden: 4}}
  head: {class_path: HEAD}
  optimizer: {class_path: Adam, init_args: {lr: 0.05}}
stages:
  - name: first
    epochs: 2
    trainable: ["head.*"]
  - name: second
    epochs: 1
    lr: 1.0e-3
    groups: {"head.*": {lr: 1.0e-2}}
wandb: {mode: disabled}
"""
BATCHES = 5  # of 70 documents
TRANSFER = """
  - {name: head, epochs: 1, trainable: ["backbone.*", head.project.*, head.head, head.scale], documents: head_documents}
  - {name: transfer, on_enter: [transfer]}
  - {name: finetune, epochs: 1, documents: tail_documents}
"""


class Recorder(Callback):
    """Notes what each batch was trained with, and stops the run where a test wants it."""

    batches: ClassVar[list[dict[str, Any]]] = []
    weights: ClassVar[list[dict[str, torch.Tensor]]] = []  # before each batch
    kill_at: ClassVar[int | None] = None  # the batch, of all that were recorded, in which the run ends
    stop_at: ClassVar[int | None] = None  # the same, by SIGTERM

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if len(self.batches) == self.kill_at:
            raise RuntimeError("killed")
        if len(self.batches) == self.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        (optimizer,) = trainer.optimizers
        self.weights.append({name: value.clone() for name, value in pl_module.state_dict().items()})
        self.batches.append(
            {
                "stage": pl_module.stage.name,
                "epoch": trainer.current_epoch,
                "rows": batch.rows.tolist(),
                "optimizer": type(optimizer).__name__,
                "lr": [group["lr"] for group in optimizer.param_groups],
                "random": torch.initial_seed(),
            }
        )

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        gradients = [p.grad.norm() for p in pl_module.parameters() if p.grad is not None]
        self.batches[-1]["norm"] = float(torch.stack(gradients).norm())  # after clipping


class Odd(Linear):
    """A head that can do in a test what takes long to come about: get better, get worse, be transformed."""

    def __init__(self, dim: int, space: LabelSpace, hidden: int | None = None) -> None:
        super().__init__(dim, space, hidden)
        self.register_buffer("seen", torch.tensor(0))  # batches of the stage that peaks

    def loss(self, features, targets, stage):
        self.seen += self.training and stage == "peak"
        worse = stage == "worse" or self.seen > BATCHES
        return {name: -value if worse else value for name, value in super().loss(features, targets, stage).items()}

    @torch.no_grad()
    def double(self, ctx):
        self.classifier.weight.mul_(2)
        ctx.log({"doubled": 1.0})

    def few(self, targets, seed):
        return torch.arange(0, len(targets), 3)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _recorded(monkeypatch, cache):
    monkeypatch.setenv("ZOO_CACHE", str(cache))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(Recorder, "batches", [])
    monkeypatch.setattr(Recorder, "weights", [])
    monkeypatch.setattr(Recorder, "kill_at", None)
    monkeypatch.setattr(Recorder, "stop_at", None)


@pytest.fixture
def config(tmp_path):
    """Write an experiment; `stages` and `head` replace its own."""

    def write(stages: str = "", head: Any = None) -> Path:
        here = Recorder.__module__
        content = yaml.safe_load(CONFIG.replace("RECORDER", f"{here}.Recorder").replace("HEAD", f"{here}.Odd"))
        if head:
            content["model"]["head"] = head
        if stages:
            content["stages"] = yaml.safe_load(stages)
        path = tmp_path / "staged.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return path

    return write


@pytest.fixture
def go(tmp_path):
    """Train; returns the only run folder of that name."""

    def run(config: Path | None, *args: str, name: str = "staged") -> Path:
        files = ["--config", str(config)] if config else []
        main(["fit", *files, f"--runs={tmp_path / 'runs'}", "--wandb.mode=disabled", f"--name={name}", *args])
        (folder,) = (tmp_path / "runs" / name).iterdir()
        return folder

    return run


@pytest.fixture
def refused(fails, tmp_path):
    """The one line that a `fit` ends in."""
    where = [f"--runs={tmp_path / 'refused'}", "--wandb.mode=disabled"]
    return lambda config, *args: fails("fit", *(["--config", str(config)] if config else []), *where, *args)


def rows_of(folder):
    with (folder / "metrics.csv").open(newline="") as file:
        return [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]


def kinds(folder):
    return [(row["step"], *sorted(name for name in row if not name.startswith("val/"))) for row in rows_of(folder)]


def ckpt(folder, name):
    return folder / "checkpoints" / f"{name}.ckpt"


def checkpoint(folder, name):
    return read_checkpoint(ckpt(folder, name))


def weights(folder, name):
    return checkpoint(folder, name)["state_dict"]


def differing(one, other):
    assert one.keys() == other.keys()
    return {name for name in one if not torch.equal(one[name], other[name])}


def parameters(names):
    return {name for name in names if "metrics" not in name and name != "head.seen"}


def recorded(key):
    """What was noted, by stage."""
    found: dict[str, list[Any]] = {}
    for batch in Recorder.batches:
        found.setdefault(batch["stage"], []).append(batch[key])
    return found


def with_transfer(config, stages=TRANSFER):
    arguments = {"hidden": 8, "tail_labels": 4, "draws": 4, "shots": 2}
    return config(stages, {"class_path": "PrototypeTransfer", "init_args": arguments})


# --- what a stage trains, and with what


def test_the_table_and_the_log_name_every_stage(config, go, capsys):
    stages = """
  - {name: start, on_enter: [double]}
  - {name: first, epochs: 2, trainable: ["head.*"]}
  - {name: second, epochs: 1, lr: 1.0e-3, groups: {"head.*": {lr: 1.0e-2}}}
"""
    folder = go(config(stages))
    error = capsys.readouterr().err
    table = [[cell.strip() for cell in line.strip("│").split("│")] for line in error.splitlines() if "│" in line]
    model = weights(folder, "last")
    count = {part: sum(model[n].numel() for n in parameters(model) if n.startswith(part)) for part in ("head", "back")}
    assert table == [
        ["start", "-", "-", "-", "-", "double"],
        ["first", "2", "all", f"{count['head']:,}", "0.05", "-"],
        ["second", "1", "all", f"{sum(count.values()):,}", "0.001, 0.01", "-"],
    ]
    rows = rows_of(folder)
    assert {"train/first/loss_epoch", "train/second/loss_epoch", "doubled"} <= {name for row in rows for name in row}
    steps = [(row["stage"], row["step"]) for row in rows if "stage" in row]
    assert steps == [("0", "0"), ("1", "0"), ("2", str(2 * BATCHES))]


def test_what_is_frozen_stays_as_it_is_bit_for_bit_and_the_rest_changes(config, go):
    folder = go(config(), "--model.backbone.freeze_embedding=true")
    begin, between, end = Recorder.weights[0], weights(folder, "first"), weights(folder, "last")
    everything = parameters(begin)
    assert parameters(differing(begin, between)) == {name for name in everything if name.startswith("head.")}
    assert parameters(differing(between, end)) == everything - {"backbone.embedding.weight"}
    assert differing(between, Recorder.weights[2 * BATCHES]) == set()


def test_each_stage_has_its_own_optimizer_rates_schedule_and_clipping(config, go):
    stages = """
  - {name: plain, epochs: 1}
  - name: stepped
    epochs: 1
    optimizer: {class_path: SGD, init_args: {lr: 0.1}}
    lr_scheduler: {class_path: ExponentialLR, init_args: {gamma: 0.5}}
    lr_interval: step
    gradient_clip_val: 0.01
  - name: grouped
    epochs: 2
    lr: 0.02
    groups: {"head.*": {lr: 0.2}, "*.bias": {weight_decay: 0.1}, head.classifier.bias: {lr: 0.4}}
    optimizer: SGD
    lr_scheduler: {class_path: StepLR, init_args: {step_size: 1, gamma: 0.1}}
    gradient_clip_val: 0
"""
    go(config(stages), "--trainer.gradient_clip_val=0.1")
    assert recorded("optimizer") == {"plain": ["Adam"] * 5, "stepped": ["SGD"] * 5, "grouped": ["SGD"] * 10}
    rates = recorded("lr")
    assert rates["plain"] == [[0.05]] * BATCHES
    assert [rate for (rate,) in rates["stepped"]] == pytest.approx([0.1 * 0.5**k for k in range(BATCHES)])
    assert rates["grouped"][:BATCHES] == [[0.02, 0.02, 0.2, 0.4]] * BATCHES  # the second is of biases
    assert rates["grouped"][BATCHES] == pytest.approx([0.002, 0.002, 0.02, 0.04])
    norms = recorded("norm")
    assert norms["plain"] == pytest.approx([0.1] * BATCHES, rel=1e-3)
    assert norms["stepped"] == pytest.approx([0.01] * BATCHES, rel=1e-3)
    assert min(norms["grouped"]) > 0.2


PLATEAU = """
  - name: only
    epochs: 4
    lr_scheduler:
      class_path: torch.optim.lr_scheduler.ReduceLROnPlateau
      init_args: {mode: max, factor: 0.5, patience: 0, threshold: 10, threshold_mode: abs}
"""


def test_a_plateau_lowers_the_rate_also_across_a_kill(config, go):
    path = config(PLATEAU)
    go(path)
    rates = [rate for (rate,) in recorded("lr")["only"]]
    assert rates == pytest.approx([0.05] * 10 + [0.025] * 5 + [0.0125] * 5)
    Recorder.batches.clear()
    Recorder.kill_at = 12
    with pytest.raises(RuntimeError, match="killed"):
        go(path, name="cut")
    del Recorder.batches[10:]
    Recorder.kill_at = None
    go(path, "--ckpt_path=last", name="cut")
    assert [rate for (rate,) in recorded("lr")["only"]] == rates


def test_chosen_documents_are_trained_on_once_an_epoch_and_no_others(config, go):
    stages = """
  - {name: some, epochs: 2, documents: few}
  - {name: all, epochs: 1}
"""
    go(config(stages))
    by_epoch: dict[int, list[int]] = {}
    for batch in Recorder.batches:
        by_epoch.setdefault(batch["epoch"], []).extend(batch["rows"])
    assert [sorted(rows) for rows in by_epoch.values()] == [[*range(0, 70, 3)], [*range(0, 70, 3)], [*range(70)]]
    assert by_epoch[0] != by_epoch[1]  # another order


def test_every_batch_draws_from_a_seed_of_its_own_also_under_accumulation(config, go):
    go(config(), "--trainer.accumulate_grad_batches=2")
    assert len({batch["random"] for batch in Recorder.batches}) == len(Recorder.batches) == 3 * BATCHES


# --- how a stage ends


def test_patience_ends_a_stage_early_and_the_next_one_goes_on(config, go):
    stages = """
  - {name: still, epochs: 6, optimizer: {class_path: SGD, init_args: {lr: 0.0}}, patience: 1}
  - {name: after, epochs: 2}
"""
    folder = go(config(stages))
    assert {stage: len(rows) // BATCHES for stage, rows in recorded("rows").items()} == {"still": 2, "after": 2}
    assert checkpoint(folder, "last")["epoch"] == 3


@pytest.mark.parametrize("trailing", ["", "\n  - {name: end, on_enter: [double]}"], ids=["last", "before-a-transform"])
def test_patience_in_the_last_epochs_ends_the_run_and_a_resume_does_not_train_on(config, go, trailing):
    stages = f"""
  - {{name: begin, epochs: 1}}
  - {{name: still, epochs: 6, optimizer: {{class_path: SGD, init_args: {{lr: 0.0}}}}, patience: 2}}{trailing}
"""
    path = config(stages)
    folder = go(path)
    assert {stage: len(rows) // BATCHES for stage, rows in recorded("rows").items()} == {"begin": 1, "still": 3}
    before = weights(folder, "last")
    Recorder.batches.clear()
    go(path, "--ckpt_path=last")
    assert Recorder.batches == []
    assert differing(before, weights(folder, "last")) == set()


def test_the_next_stage_starts_from_the_best_epoch_if_asked(config, go):
    stages = """
  - {name: peak, epochs: 3, restore_best: RESTORE}
  - {name: after, epochs: 1}
"""
    starts = []
    for restore in ("true", "false"):
        Recorder.weights.clear()
        folder = go(config(stages.replace("RESTORE", restore)), name=f"restore-{restore}")
        values = [float(row["val/nDCG@5"]) for row in rows_of(folder) if "val/nDCG@5" in row]
        best = values.index(max(values[:3])) + 1  # epochs
        assert best < 3
        starts.append(Recorder.weights[3 * BATCHES])
        assert differing(starts[-1], weights(folder, "peak")) == set()
    assert differing(starts[0], Recorder.weights[best * BATCHES]) == set()  # both runs were the same until then
    assert "head.classifier.weight" in differing(*starts)


def test_weights_that_a_stage_did_not_train_survive_its_best_epoch(config, go):
    stages = TRANSFER.replace("documents: tail_documents", 'trainable: ["backbone.*"], restore_best: true')
    path = with_transfer(config, stages + "  - {name: end, epochs: 1}\n")
    folder = go(path)
    assert [bool(weights(folder, name)["head.ready"]) for name in ("head", "finetune", "last")] == [False, True, True]


def test_the_best_checkpoint_is_of_the_last_stage_even_if_an_earlier_one_was_better(config, go):
    stages = """
  - {name: good, epochs: 3}
  - {name: worse, epochs: 2, lr: 1.0}
"""
    folder = go(config(stages))
    values = [float(row["val/nDCG@5"]) for row in rows_of(folder) if "val/nDCG@5" in row]
    assert max(values[:3]) > max(values[3:])
    best = checkpoint(folder, "best")
    assert best["epoch"] >= 3
    (score,) = (state["best_model_score"] for key, state in best["callbacks"].items() if key.startswith("ModelCh"))
    assert float(score) == pytest.approx(max(values[3:]), abs=1e-6)


# --- stages that only transform


def test_a_transform_comes_first_in_the_middle_and_last(config, go, read_metrics, capsys):
    stages = """
  - {name: one, on_enter: [double, double]}
  - {name: train, epochs: 1}
  - {name: two, on_enter: [double]}
  - {name: train-on, epochs: 1, trainable: [head.classifier.bias]}
  - {name: three, on_enter: [double]}
"""
    folder = go(config(stages))
    name = "head.classifier.weight"
    assert torch.equal(Recorder.weights[BATCHES][name], 2 * weights(folder, "train")[name])
    assert torch.equal(weights(folder, "last")[name], 4 * weights(folder, "train")[name])
    assert {p.stem for p in (folder / "checkpoints").iterdir()} == {"best", "last", "one", "train", "two", "train-on"}
    assert differing(weights(folder, "best"), weights(folder, "last")) == set()
    assert sum("val/nDCG@5" in row for row in rows_of(folder)) == 3  # after each epoch, and after the last transform
    metrics = read_metrics(folder)["metrics"]
    capsys.readouterr()
    main(["test", f"--ckpt={folder / 'checkpoints' / 'last.ckpt'}", "--trainer.accelerator=cpu"])
    assert f"{100 * metrics['nDCG@5']:.2f}" in capsys.readouterr().out
    begun = Recorder.weights[0][name]
    Recorder.weights.clear()
    go(config("\n  - {name: train, epochs: 1}"), name="without")
    assert torch.equal(begun, 4 * Recorder.weights[0][name])


def test_a_run_that_only_transforms_is_measured_and_saved(config, go):
    first = go(config("\n  - {name: train, epochs: 1}\n  - {name: end, on_enter: [double]}"))
    args = ["--stages=[{name: all, trainable: [], on_enter: [double]}]", "--from_stage=all"]
    again = go(config(), *args, f"--ckpt={ckpt(first, 'train')}", name="only")
    assert parameters(differing(weights(first, "last"), weights(again, "last"))) == set()
    assert {p.stem for p in (again / "checkpoints").iterdir()} == {"best", "last"}
    assert (again / "metrics.json").exists()
    assert len(Recorder.batches) == BATCHES  # of the first run


def test_fast_dev_run_goes_through_all_stages_and_leaves_no_checkpoint(config, go):
    path = with_transfer(config, TRANSFER + "  - {name: end, on_enter: [transfer]}\n")
    folder = go(path, "--trainer.fast_dev_run=true")
    assert [batch["stage"] for batch in Recorder.batches] == ["head", "finetune"]
    assert list(folder.glob("checkpoints/*")) == []


# --- beginning at a stage


@pytest.mark.parametrize("own", [True, False], ids=["with-config", "from-the-checkpoint-alone"])
def test_from_stage_begins_there_with_the_weights_given(config, go, own, capsys):
    path = config("\n  - {name: a, epochs: 1}\n  - {name: b, on_enter: [double]}\n  - {name: c, epochs: 1, lr: 0.01}")
    first = go(path)
    Recorder.batches.clear()
    Recorder.weights.clear()
    capsys.readouterr()
    second = go(path if own else None, "--from_stage=b", f"--ckpt={ckpt(first, 'a')}", name="again")
    assert set(recorded("stage")) == {"c"}
    expected = weights(first, "a")
    expected["head.classifier.weight"] = 2 * expected["head.classifier.weight"]
    assert differing(expected, Recorder.weights[0]) == set()
    assert len(recorded("lr")["c"]) == BATCHES
    assert parameters(differing(weights(first, "last"), weights(second, "last"))) != set()  # other batches
    assert "b (here)" in capsys.readouterr().err
    assert not (second / "checkpoints" / "a.ckpt").exists()


def test_from_stage_refuses_what_does_not_fit(config, go, refused):
    path = config()
    first = ckpt(go(path), "first")
    assert "go together" in refused(path, "--from_stage=second")
    assert "go together" in refused(path, f"--ckpt={first}")
    assert "no stage 'third': the experiment has first, second" in refused(
        path, "--from_stage=third", f"--ckpt={first}"
    )
    assert "no such checkpoint" in refused(path, "--from_stage=second", "--ckpt=nowhere.ckpt")
    other = refused(path, "--from_stage=second", f"--ckpt={first}", "--data.num_labels=14")
    assert "trained on other labels" in other


def test_weights_of_another_shape_start_anew_and_are_named(config, go, capsys):
    path = config()
    first = go(path)
    Recorder.weights.clear()
    go(path, "--from_stage=second", f"--ckpt={ckpt(first, 'first')}", "--model.head.hidden=5", name="wider")
    note = capsys.readouterr().err.split("start anew: ")[1].splitlines()[0]
    assert set(note.split(", ")) == {"head.project.weight", "head.project.bias", "head.classifier.weight"}
    start, given = Recorder.weights[0], weights(first, "first")
    assert all(torch.equal(start[name], given[name]) for name in given if name.startswith("backbone."))


# --- going on with a run


def test_a_resume_without_a_run_or_a_checkpoint_begins_one(config, go, capsys):
    path = config()
    folder = go(path, "--ckpt_path=last")
    assert len(Recorder.batches) == 3 * BATCHES
    whole = kinds(folder)
    shutil.rmtree(folder / "checkpoints")
    Recorder.batches.clear()
    assert go(path, "--ckpt_path=last") == folder
    assert "has no checkpoint yet" in capsys.readouterr().err
    assert len(Recorder.batches) == 3 * BATCHES
    assert kinds(folder) == whole  # no row of the former attempt is left


def test_a_finished_run_is_only_tested_again(config, go, read_metrics):
    stages = """
  - {name: first, epochs: 1, trainable: ["head.*"], groups: {"*.bias": {lr: 0.1}}}
  - {name: end, on_enter: [double]}
"""
    path = config(stages)
    folder = go(path)
    metrics, rows, last = read_metrics(folder)["metrics"], rows_of(folder), weights(folder, "last")
    (folder / "metrics.json").unlink()
    Recorder.batches.clear()
    go(path, "--ckpt_path=last")
    assert Recorder.batches == []
    assert read_metrics(folder)["metrics"] == metrics
    assert differing(last, weights(folder, "last")) == set()
    assert rows_of(folder) == rows


def test_a_killed_run_goes_on_in_its_folder_with_every_row_once_and_its_best_score(config, go, read_metrics):
    stages = """
  - {name: first, epochs: 1}
  - {name: peak, epochs: 3}
"""
    path = config(stages)
    whole = go(path, name="whole")
    Recorder.batches.clear()
    for kill in (2, BATCHES + 2, 3 * BATCHES + 4):  # in the first epoch, after a transition, after the best epoch
        Recorder.kill_at = kill
        with pytest.raises(RuntimeError, match="killed"):
            go(path, "--ckpt_path=last", name="cut")
        del Recorder.batches[kill // BATCHES * BATCHES :]
    Recorder.kill_at = None
    cut = go(path, "--ckpt_path=last", name="cut")
    assert rows_of(cut) == rows_of(whole)
    assert checkpoint(cut, "best")["epoch"] == checkpoint(whole, "best")["epoch"] < 3
    assert read_metrics(cut)["metrics"] == read_metrics(whole)["metrics"]
    assert differing(weights(whole, "last"), weights(cut, "last")) == set()


@pytest.mark.parametrize(
    ("stop", "args"),
    [(2, []), (7, ["--trainer.accumulate_grad_batches=2"]), (1, ["--trainer.val_check_interval=2"])],
    ids=["plain", "while-gradients-accumulate", "before-a-validation-inside-an-epoch"],
)
def test_sigterm_stops_after_a_batch_and_loses_no_row(config, go, stop, args):
    path = config()
    whole = go(path, *args, name="whole")
    Recorder.batches.clear()
    Recorder.stop_at = stop
    with pytest.raises(SystemExit) as left:
        go(path, *args, name="cut")
    assert left.value.code == 128 + signal.SIGTERM
    assert stop < len(Recorder.batches) <= stop + 2
    Recorder.stop_at = None
    cut = go(path, *args, "--ckpt_path=last", name="cut")
    assert kinds(cut) == kinds(whole)
    assert differing(weights(whole, "last"), weights(cut, "last")) == set()
    assert differing(weights(whole, "best"), weights(cut, "best")) == set()


def test_the_written_config_repeats_a_staged_run(config, go, read_metrics):
    first = go(
        with_transfer(config), "--stages.finetune.groups={head.*: {lr: 1e-3}}", "--stages.finetune.optimizer=SGD"
    )
    again = go(first / "config.yaml", name="again")
    assert read_metrics(again)["metrics"] == read_metrics(first)["metrics"]
    assert differing(weights(first, "last"), weights(again, "last")) == set()


# --- overrides and mistakes


def test_settings_of_a_stage_are_overridden_by_its_name(config, go):
    stages = """
  - {name: first, epochs: 2, optimizer: {class_path: SGD, init_args: {lr: 0.5, momentum: 0.9}}}
  - {name: second, epochs: 1, optimizer: SGD}
"""
    folder = go(
        config(stages),
        "--stages.first.epochs=1",
        "--stages.first.optimizer.lr=1e-4",
        "--stages.first.trainable=[head.*, backbone.pool.*]",
        "--stages.second.optimizer.momentum",
        "0.5",
        "--stages.second.lr=2e-3",
        "--stages.second.documents=few",
    )
    assert {stage: len(rows) for stage, rows in recorded("rows").items()} == {"first": BATCHES, "second": 2}
    assert {stage: rates[0] for stage, rates in recorded("lr").items()} == {"first": [1e-4], "second": [2e-3]}
    moved = parameters(differing(Recorder.weights[0], weights(folder, "first")))
    assert {name.rsplit(".", 1)[0] for name in moved} == {"head.classifier", "backbone.pool.score"}
    written = {stage["name"]: stage for stage in yaml.safe_load((folder / "config.yaml").read_text())["stages"]}
    assert (
        written["first"]["optimizer"]["init_args"] | {"lr": 1e-4, "momentum": 0.9}
        == (written["first"]["optimizer"]["init_args"])
    )
    assert written["second"]["optimizer"]["init_args"]["momentum"] == 0.5


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--stages.third.epochs=1", ["third", "first, second"]),
        ("--stages.first=1", ["stages.NAME.SETTING"]),
        ("--stages.first.epoch=1", ["epoch", "epochs", "trainable"]),
        ("--stages.first.epochs=many", ["epochs", "many"]),
        ("--stages.first.epochs=-1", ["first", "negative"]),
        ("--stages.first.optimizer.lr=1", ["optimizer", "give it one first"]),
        ("--stages.first.trainable=[head.nothing]", ["first", "trainable", "head.nothing"]),
        ("--stages.first.trainable=[head", ["stages.first.trainable", "YAML"]),
        ("--stages.first.on_enter=[tripple]", ["first", "Odd", "tripple"]),
        ("--stages.first.monitor=val/none", ["first", "val/none"]),
        ("--stages.first.optimizer={class_path: SGD, init_args: {lr: -1}}", ["first", "learning rate"]),
        ("--stages.first.optimizer=Foo", ["Foo"]),
        ("--trainer.max_epochs=3", ["--stages.NAME.epochs"]),
        ("--trainer.callbacks+={class_path: EarlyStopping, init_args: {monitor: val/P@1}}", ["patience"]),
        ("--trainer.strategy=fsdp", ["fsdp", "ddp"]),
        ("--trainer.strategy=deepspeed", ["deepspeed", "ddp"]),
        ("--trainer.strategy=deepspeed_stage_2", ["deepspeed_stage_2", "ddp"]),
        ("--trainer.overfit_batches=2", ["--data.limit_train"]),
        ("--model.head=PrototypeTransfer", ["PrototypeTransfer", "on_enter: [transfer]"]),
    ],
)
def test_a_mistake_is_one_line_that_says_what_there_is(config, refused, argument, words):
    extra = ["--stages.first.patience=1"] if "monitor" in argument else []
    line = refused(config(), argument, *extra)
    assert [word for word in words if word not in line] == []


def test_a_checkpoint_of_weights_alone_cannot_be_gone_on_with(config, go, refused):
    path = config()
    line = refused(path, f"--ckpt_path={ckpt(go(path), 'first')}")
    assert "--from_stage" in line


def test_a_stage_that_the_experiment_has_no_longer_is_named(config, go, refused):
    last = ckpt(go(config()), "last")
    line = refused(config("\n  - {name: other, epochs: 1}"), f"--ckpt_path={last}")
    assert "no stage 'second': the experiment has other" in line
