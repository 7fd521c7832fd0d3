"""What a stage trains, with what and for how long, and how it ends."""

from __future__ import annotations

import pytest
import torch

from tests.cli.stages.recording import (
    BATCHES,
    TRANSFER,
    Recorder,
    checkpoint,
    ckpt,
    differing,
    parameters,
    recorded,
    rows_of,
    weights,
    with_transfer,
)
from zoo.commands.main import main

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


@pytest.mark.kill
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
    last = folder / "checkpoints" / "last.ckpt"
    main(["test", f"--ckpt={last}", f"--trust={Recorder.__module__}", "--trainer.accelerator=cpu"])
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
