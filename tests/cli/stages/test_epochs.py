"""What happens when each epoch of a stage starts, and the mode that its parts are trained in."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.cli.stages.recording import BATCHES, Recorder, differing, recorded, weights

STAGES = """
  - {name: first, epochs: 2, on_enter: [double], each_epoch: [shift, double]}
  - {name: plain, epochs: 1}
  - {name: third, epochs: 2, each_epoch: [shift]}
  - {name: end, on_enter: [double]}
"""
FROZEN = """
  - {name: head, epochs: 2, trainable: ["head.*"]}
  - {name: both, epochs: 1, trainable: ["*"]}
  - {name: backbone, epochs: 2, trainable: ["backbone.*"], dropout_in_frozen: OFTEN}
"""

# --- each_epoch


def test_its_methods_are_called_at_the_start_of_each_epoch_after_entering(config, go, capsys):
    go(config(STAGES))
    assert Recorder.visits == [
        ("double", 0, 0),
        ("shift", 0, 0),
        ("double", 0, 0),
        ("shift", 1, BATCHES),
        ("double", 1, BATCHES),
        ("shift", 0, 3 * BATCHES),
        ("shift", 1, 4 * BATCHES),
        ("double", 0, 5 * BATCHES),
    ]
    table = [line.strip("│").split("│")[-2:] for line in capsys.readouterr().err.splitlines() if "│" in line]
    assert [[cell.strip() for cell in row] for row in table] == [
        ["double", "shift, double"],
        ["-", "-"],
        ["-", "shift"],
        ["double", "-"],
    ]


def test_what_it_draws_is_another_in_every_stage_and_epoch(config, go):
    stages = [f"\n  - {{name: {name}, epochs: 2, lr: 0, each_epoch: [shift]}}" for name in ("one", "two")]
    go(config("".join(stages)))
    bias = [weights["head.classifier.bias"] for weights in Recorder.weights[::BATCHES]]
    steps = [tuple((after - before).round(decimals=5).tolist()) for before, after in pairwise(bias)]
    assert len(set(steps)) == 3


@pytest.mark.kill
@pytest.mark.parametrize("every", [0, 2], ids=["epoch-ends", "mid-epoch"])
def test_it_is_repeated_after_a_kill_only_where_the_epoch_is(config, go, every):
    path = config(STAGES)
    whole = go(path, name="whole")
    Recorder.batches.clear()
    Recorder.visits.clear()
    saving = f"--last.every_n_train_steps={every}"
    for kill in (BATCHES + 4, 4 * BATCHES + 2):
        Recorder.kill_at = kill
        with pytest.raises(RuntimeError, match="killed"):
            go(path, "--ckpt_path=last", saving, name="cut")
        behind = max(kill // BATCHES * BATCHES, kill // every * every if every else 0)
        del Recorder.batches[behind:]
    Recorder.kill_at = None
    cut = go(path, "--ckpt_path=last", saving, name="cut")
    assert sum(method == "shift" for method, _, _ in Recorder.visits) == (4 if every else 6)
    for name in ("first", "plain", "third", "last"):
        assert differing(weights(whole, name), weights(cut, name)) == set()


# --- the mode of what is not trained


@pytest.mark.parametrize("kept", [False, True])
def test_what_a_stage_does_not_train_has_no_dropout_in_it_unless_asked(config, go, kept):
    go(config(FROZEN.replace("OFTEN", str(kept))), "--trainer.val_check_interval=2", "--trainer.num_sanity_val_steps=1")
    assert recorded("modes") == {
        "head": [(False, True)] * 2 * BATCHES,
        "both": [(True, True)] * BATCHES,
        "backbone": [(True, kept)] * 2 * BATCHES,
    }


@pytest.mark.kill
def test_it_has_none_after_a_resume_inside_an_epoch_either(config, go):
    path = config(FROZEN.replace("OFTEN", "false"))
    for kill in (3, 3 * BATCHES + 3):
        Recorder.kill_at = kill
        with pytest.raises(RuntimeError, match="killed"):
            go(path, "--ckpt_path=last", "--last.every_n_train_steps=1")
    Recorder.kill_at = None
    go(path, "--ckpt_path=last", "--last.every_n_train_steps=1")
    assert {stage: set(modes) for stage, modes in recorded("modes").items()} == {
        "head": {(False, True)},
        "both": {(True, True)},
        "backbone": {(True, False)},
    }
