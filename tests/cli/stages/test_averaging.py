"""A stage that averages its weights, through whole runs."""

from __future__ import annotations

import signal

import pytest
import torch

from tests.cli.stages.recording import BATCHES, Recorder, checkpoint, ckpt, differing, parameters, rows_of, weights

STAGES = """
  - {name: early, epochs: 1}
  - {name: mean, epochs: 3, average_from: 1, average_every: 2}
"""
SHIFTED = STAGES.replace("average_from: 1", "average_from: 1, each_epoch: [shift]")
PLAIN = STAGES.replace("average_from: 1, ", "")
BEGIN = 2 * BATCHES  # batches of one epoch in each stage
ACCUMULATE = "--trainer.accumulate_grad_batches=2"


def own(folder, name):
    """The weights of training in a checkpoint that has an average."""
    return checkpoint(folder, name)["callbacks"]["StageAveraging"]["own"]


def assert_mean(found, chosen):
    for name in parameters(found):
        mean = torch.stack([seen[name].double() for seen in chosen]).mean(0).float()
        torch.testing.assert_close(found[name], mean, rtol=1e-5, atol=1e-6)


def state(folder, name):
    """All that must be the same of a run that was cut."""
    content = checkpoint(folder, name)
    kept = content["callbacks"].get("StageAveraging", {"own": {}})
    return content["state_dict"] | {f"own.{name}": value for name, value in kept.pop("own").items()}, kept


def test_validations_and_checkpoints_have_the_mean_and_training_does_not_know(config, go):
    folder = go(config(STAGES), name="averaged")
    last = own(folder, "last")
    seen = [*Recorder.weights, last]
    chosen = seen[BEGIN::2]
    assert len(chosen) == BATCHES + 1
    validated = Recorder.validated
    assert parameters(differing(validated[1], seen[BEGIN])) == set()
    assert_mean(validated[2], chosen[:3])
    assert_mean(validated[3], chosen)
    assert parameters(differing(weights(folder, "last"), validated[3])) == set()
    values = [float(row["val/nDCG@5"]) for row in rows_of(folder) if "val/nDCG@5" in row]
    best = values.index(max(values[1:]), 1)
    assert parameters(differing(weights(folder, "best"), validated[best])) == set()

    before = [*Recorder.weights]
    Recorder.weights.clear()
    plain = go(config(PLAIN), name="plain")
    for one, other in zip(before, Recorder.weights, strict=True):
        assert parameters(differing(one, other)) == set()
    end = weights(plain, "last")
    assert all(torch.equal(value, end[name]) for name, value in last.items())
    assert "StageAveraging" not in checkpoint(plain, "last")["callbacks"]


def test_it_counts_optimizer_steps_and_validations_inside_an_epoch_have_it(config, go):
    stages = "\n  - {name: mean, epochs: 2, average_from: 0, average_every: 1}"
    folder = go(config(stages), ACCUMULATE, "--trainer.val_check_interval=2")
    seen = [*Recorder.weights, own(folder, "last")]
    after = [0, 2, 4, 5, 7, 9, 10]  # batches of 10 that lie behind a step, the last one of an epoch ends one
    assert checkpoint(folder, "last")["callbacks"]["StageAveraging"]["count"] == len(after)
    assert_mean(weights(folder, "last"), [seen[k] for k in after])
    for validated, steps in zip(Recorder.validated, (1, 2, 4, 5), strict=True):
        assert_mean(validated, [seen[k] for k in after[: steps + 1]])


@pytest.mark.parametrize("kind", ["last", "best"])
def test_the_next_stage_starts_from_the_mean_and_averages_nothing(config, go, kind):
    stages = f"""
  - {{name: peak, epochs: 3, average_from: 1, average_every: 2, trainable: ["head.*"], restore_best: {kind == "best"}}}
  - {{name: after, epochs: 1}}
"""
    folder = go(config(stages))
    values = [float(row["val/nDCG@5"]) for row in rows_of(folder) if "val/nDCG@5" in row]
    at = values.index(max(values[:3])) if kind == "best" else 2
    start = Recorder.weights[3 * BATCHES]
    assert parameters(differing(start, Recorder.validated[at])) == set()
    assert differing(start, weights(folder, "peak")) == set()
    assert parameters(differing(start, Recorder.weights[3 * BATCHES - 1])) > set()
    assert "StageAveraging" not in checkpoint(folder, "last")["callbacks"]


def test_a_last_stage_without_epochs_transforms_the_mean_also_in_a_resume(config, go):
    path = config(STAGES + "  - {name: end, on_enter: [double]}\n")
    folder = go(path)
    mean, last = weights(folder, "mean"), weights(folder, "last")
    assert parameters(differing(mean, Recorder.validated[-2])) == set()
    assert differing(last, weights(folder, "best")) == set()
    name = "head.classifier.weight"
    assert torch.equal(last[name], 2 * mean[name])
    go(path, "--ckpt_path=last")
    assert differing(last, weights(folder, "last")) == set()


def test_only_what_the_stage_trains_is_averaged(config, go):
    folder = go(config('\n  - {name: head, epochs: 1, trainable: ["head.*"], average_from: 0, average_every: 1}'))
    assert own(folder, "last").keys() == {"head.classifier.weight", "head.classifier.bias"}


def test_a_checkpoint_of_weights_alone_has_the_mean_too_and_serves_as_a_start(config, go):
    stages = "\n  - {name: mean, epochs: 1, average_from: 0, average_every: 1}"
    folder = go(config(stages), "--best.save_weights_only=true")
    assert "callbacks" not in checkpoint(folder, "best")
    assert parameters(differing(weights(folder, "best"), Recorder.validated[0])) == set()
    Recorder.weights.clear()
    path = config(stages + "\n  - {name: end, epochs: 1}")
    go(path, "--from_stage=end", f"--ckpt={ckpt(folder, 'best')}", name="again")
    assert differing(Recorder.weights[0], weights(folder, "best")) == set()


@pytest.mark.kill
@pytest.mark.parametrize(
    ("args", "every"),
    [([], 0), ([ACCUMULATE, "--trainer.val_check_interval=2"], 1)],
    ids=["epoch-ends", "mid-epoch-while-accumulating"],
)
def test_a_killed_run_goes_on_to_the_bit(config, go, args, every):
    path = config(SHIFTED + "  - {name: after, epochs: 1}\n")
    whole = go(path, *args, name="whole")
    saving = ["--ckpt_path=last", f"--last.every_n_train_steps={every}"]
    for batches in (BEGIN + 4, BATCHES + 4):  # since the start of each part
        Recorder.batches.clear()
        Recorder.kill_at = batches
        with pytest.raises(RuntimeError, match="killed"):
            go(path, *args, *saving, name="cut")
    Recorder.kill_at = None
    cut = go(path, *args, *saving, name="cut")
    for name in ("early", "mean", "last", "best"):
        assert differing(weights(whole, name), weights(cut, name)) == set()
    assert [row.get("val/nDCG@5") for row in rows_of(whole)] == [row.get("val/nDCG@5") for row in rows_of(cut)]


@pytest.mark.kill
def test_sigterm_and_a_finished_run_that_is_begun_again(config, go, read_metrics):
    path = config(SHIFTED)
    whole = go(path, ACCUMULATE, name="whole")
    Recorder.batches.clear()
    Recorder.stop_at = BEGIN + 3
    with pytest.raises(SystemExit) as left:
        go(path, ACCUMULATE, name="cut")
    assert left.value.code == 128 + signal.SIGTERM
    Recorder.stop_at = None
    for _ in range(2):
        cut = go(path, ACCUMULATE, "--ckpt_path=last", name="cut")
        for name in ("last", "best"):
            (one, facts), (other, others) = state(whole, name), state(cut, name)
            assert facts == others
            assert differing(one, other) == set()
        assert read_metrics(cut)["metrics"] == read_metrics(whole)["metrics"]


def test_a_fast_dev_run_does_not_take_it_for_a_mistake(config, go):
    go(config(STAGES), "--trainer.fast_dev_run=true")
    assert [batch["stage"] for batch in Recorder.batches] == ["early", "mean"]
