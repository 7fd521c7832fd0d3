"""`WarmupDecay` in whole runs: the rate of every optimizer step, also after a resume."""

from __future__ import annotations

import signal

import pytest
import torch
import yaml

from tests.cli.stages.recording import BATCHES, Recorder, checkpoint, ckpt, differing, recorded, weights

STAGES = """
  - name: rise
    epochs: 4
    trainable: ["head.*"]
    optimizer: {class_path: AdamW, init_args: {lr: 0.1}}
    lr_scheduler: {class_path: WarmupDecay, init_args: {warmup: 0.25, end: 0.75}}
    lr_interval: step
  - name: fall
    epochs: 2
    lr: 1.0e-3
    groups: {"head.*": {lr: 1.0e-2}}
    lr_scheduler: {class_path: WarmupDecay, init_args: {warmup: 0, start: 0.75}}
"""
MAIN = ["--model.lr_scheduler=WarmupDecay", "--model.lr_scheduler.warmup=0.5"]
ACCUMULATE = "--trainer.accumulate_grad_batches=2"


def lines(rate, steps, rising, start=1.0, end=0.0):
    """The rate of each step, in plain arithmetic."""
    rise = [rate * start * k / rising for k in range(1, rising + 1)]
    fall = torch.linspace(rate * start, rate * end, steps - rising + 1, dtype=torch.double)
    return rise + fall[:-1].tolist()


def repeated(rates, *batches):
    """The rate of each batch, where the steps of an epoch take so many of them."""
    return [rate for k, rate in enumerate(rates) for _ in range(batches[k % len(batches)])]


def column(stage, group=0):
    return [rates[group] for rates in recorded("lr")[stage]]


@pytest.fixture
def single(config):
    """An experiment without stages."""
    path = config()
    content = yaml.safe_load(path.read_text())
    del content["stages"]
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize(
    ("args", "batches"),
    [
        ([], [1] * BATCHES),
        (["--trainer.limit_train_batches=0.8", "--trainer.accumulate_grad_batches=3"], [3, 1]),
    ],
    ids=["plain", "limited-and-accumulated"],
)
def test_every_step_of_two_stages_has_its_rate(config, go, args, batches):
    go(config(STAGES), *args)
    an_epoch = len(batches)  # steps
    rise = lines(0.1, 4 * an_epoch, an_epoch, end=0.75)
    assert column("rise") == pytest.approx(repeated(rise, *batches))
    for group, rate in enumerate((1e-3, 1e-2)):
        fall = lines(rate, 2 * an_epoch, 0, start=0.75)
        assert column("fall", group) == pytest.approx(repeated(fall, *batches))


def test_steps_are_those_of_the_documents_that_a_stage_chooses(config, go):
    go(config(STAGES), "--stages.rise.documents=few", "--stages.rise.on_enter=[double]")
    assert column("rise") == pytest.approx(lines(0.1, 4 * 2, 2, end=0.75))  # 24 documents
    assert column("fall") == pytest.approx(lines(1e-3, 2 * BATCHES, 0, start=0.75))
    Recorder.batches.clear()
    go(config(STAGES), "--stages.fall.documents=few", name="later")
    assert column("rise") == pytest.approx(lines(0.1, 4 * BATCHES, BATCHES, end=0.75))
    assert column("fall") == pytest.approx(lines(1e-3, 2 * 2, 0, start=0.75))


def test_a_run_that_begins_at_a_stage_has_its_rates_from_the_start(config, go):
    path = config(STAGES)
    folder = go(path)
    rates = recorded("lr")["fall"]
    Recorder.batches.clear()
    go(path, "--from_stage=fall", f"--ckpt={ckpt(folder, 'rise')}", name="again")
    assert recorded("lr") == {"fall": rates}


@pytest.mark.parametrize(
    ("end", "steps"),
    [
        (["--trainer.max_epochs=2"], 10),
        (["--trainer.max_steps=6"], 6),
        (["--trainer.max_steps=6", "--trainer.max_epochs=-1"], 6),
        (["--trainer.max_epochs=1", "--trainer.max_steps=8"], 5),
    ],
    ids=["epochs", "steps", "steps-alone", "both"],
)
def test_the_rate_of_the_model_goes_to_the_end_of_a_single_stage(single, go, end, steps):
    go(single, *MAIN, *end)
    assert column("main") == pytest.approx(lines(0.05, steps, round(steps / 2)))


def test_the_models_scheduler_serves_each_stage_anew_and_a_transform_has_none(config, go):
    stages = """
  - {name: start, on_enter: [double]}
  - {name: first, epochs: 2}
  - {name: second, epochs: 1}
  - {name: end, on_enter: [double]}
"""
    path = config(stages)
    folder = go(path, *MAIN)
    assert column("first") == pytest.approx(lines(0.05, 10, 5))
    assert column("second") == pytest.approx(lines(0.05, 5, 2))
    before = weights(folder, "last")
    go(path, *MAIN, "--ckpt_path=last")
    assert len(Recorder.batches) == 15
    assert differing(before, weights(folder, "last")) == set()


def test_the_table_shows_the_highest_rates(config, go, capsys):
    go(config(STAGES), "--trainer.fast_dev_run=true")
    rows = [line.split("│") for line in capsys.readouterr().err.splitlines() if "│" in line]
    assert [row[5].strip() for row in rows] == ["0.1", "0.00075, 0.0075"]
    assert column("rise") == [0.1]  # a single step
    assert column("fall") == [0.00075]


def test_biases_are_not_decayed_where_a_stage_says_so(config, go):
    stages = """
  - name: only
    epochs: 1
    optimizer: {class_path: SGD, init_args: {lr: 1.0e-3, weight_decay: 0.5}}
    decay_biases: false
"""
    folder = go(config(stages))
    model = weights(folder, "last")
    (state,) = checkpoint(folder, "last")["optimizer_states"]
    sizes = {group["weight_decay"]: len(group["params"]) for group in state["param_groups"]}
    trained = [
        value for name, value in model.items() if name.startswith(("backbone.", "head.")) and name != "head.seen"
    ]
    assert sizes == {0.5: sum(v.ndim > 1 for v in trained), 0.0: sum(v.ndim <= 1 for v in trained)}


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ("{warmup: 6}", ["'fall'", "warmup=6.0"]),
        ("{end: -1}", ["'fall'", "end=-1.0"]),
        ("{steps: 5}", ["'steps'"]),
    ],
)
def test_mistakes_show_before_the_first_stage(config, refused, settings, names):
    scheduler = f"--stages.fall.lr_scheduler={{class_path: WarmupDecay, init_args: {settings}}}"
    refused(config(STAGES), scheduler, names=names)
    assert Recorder.batches == []


def test_training_without_an_end_is_refused(single, refused):
    names = ["WarmupDecay", "--trainer.max_epochs", "--trainer.max_steps"]
    refused(single, *MAIN, "--trainer.max_epochs=-1", names=names)


def by_batch():
    return {(b["stage"], b["epoch"], *b["rows"]): b["lr"] for b in Recorder.batches}


@pytest.mark.kill
@pytest.mark.parametrize(
    ("args", "every", "kills"),
    [
        ([], 0, (8, 18)),
        ([ACCUMULATE, "--data.num_workers=1"], 1, (8, 15)),
    ],
    ids=["epoch-ends", "mid-epoch-with-workers"],
)
def test_a_killed_run_goes_on_with_the_same_rates_to_the_same_weights(config, go, args, every, kills):
    path = config(STAGES)
    whole = go(path, *args, name="whole")
    expected, found = by_batch(), {}
    saving = ["--ckpt_path=last", f"--last.every_n_train_steps={every}"]
    for kill in kills:  # batches since the start of each part, the last one in the second stage
        Recorder.batches.clear()
        Recorder.kill_at = kill
        with pytest.raises(RuntimeError, match="killed"):
            go(path, *args, *saving, name="cut")
        found |= by_batch()
    assert Recorder.batches[-1]["stage"] == "fall"
    Recorder.batches.clear()
    Recorder.kill_at = None
    cut = go(path, *args, *saving, name="cut")
    assert found | by_batch() == expected
    for name in ("rise", "last", "best"):
        assert differing(weights(whole, name), weights(cut, name)) == set()


@pytest.mark.kill
def test_sigterm_in_the_second_stage_changes_nothing(config, go):
    path = config(STAGES)
    whole = go(path, name="whole")
    rates = recorded("lr")
    Recorder.batches.clear()
    Recorder.stop_at = 4 * BATCHES + 2
    with pytest.raises(SystemExit) as left:
        go(path, name="cut")
    assert left.value.code == 128 + signal.SIGTERM
    Recorder.stop_at = None
    cut = go(path, "--ckpt_path=last", name="cut")
    assert recorded("lr") == rates
    assert differing(weights(whole, "last"), weights(cut, "last")) == set()


@pytest.mark.kill
def test_a_resume_with_more_epochs_goes_on_along_the_longer_line(config, go):
    path = config(STAGES)
    Recorder.stop_at = 7
    with pytest.raises(SystemExit):
        go(path)
    Recorder.stop_at = None
    before = len(Recorder.batches)
    go(path, "--ckpt_path=last", "--stages.rise.epochs=8")
    assert column("rise")[before:] == pytest.approx(lines(0.1, 40, 10, end=0.75)[before:])
