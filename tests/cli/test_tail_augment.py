"""Augmented copies through the real command line: for any model, in one stage, and nowhere else."""

from __future__ import annotations

import pytest
import torch

from callbacks import Stage, StageSchedule
from datamodules.corpora.sample import Sample
from tests.support.output import line_with
from zoo.commands.main import main
from zoo.training.checkpoint import read_checkpoint

CALLBACK = "--trainer.callbacks+=TailAugment"
TWO_STAGES = '--stages=[{"name": "first", "epochs": 1}, {"name": "tail", "epochs": 2}]'
DATA = {"num_documents": 150, "num_labels": 20, "words_per_document": 40, "batch_size": 16}


@pytest.fixture
def tiny(tiny):
    """Each stage has its own epochs."""
    tiny.write_text(tiny.read_text().replace("  max_epochs: 2\n", ""))
    return tiny


def with_callback(**settings):
    return [CALLBACK, *(f"--trainer.callbacks.{name}={value}" for name, value in settings.items())]


def weights(folder):
    return read_checkpoint(folder / "checkpoints" / "last.ckpt")["state_dict"]


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_no_copies_is_the_plain_model(fit, read_metrics):
    plain, none = fit(TWO_STAGES), fit(TWO_STAGES, *with_callback(copies=0))
    assert same(weights(plain), weights(none))
    assert read_metrics(plain)["metrics"] == read_metrics(none)["metrics"]
    all_head = fit(TWO_STAGES, *with_callback(fraction=1.0))
    assert same(weights(plain), weights(all_head))


def test_copies_change_training_in_their_stage_alone_and_no_count(fit, capfd):
    plain, more = fit(TWO_STAGES), fit(TWO_STAGES, *with_callback(copies=2, fraction=0.5))
    line_with(capfd.readouterr().err, "│", "tail", "+")  # documents and copies
    first = [read_checkpoint(run / "checkpoints" / "first.ckpt")["state_dict"] for run in (plain, more)]
    assert same(*first)
    assert not same(weights(plain), weights(more))
    one, other = (read_checkpoint(run / "checkpoints" / "last.ckpt") for run in (plain, more))
    assert other["global_step"] > one["global_step"]
    assert one["zoo"]["space"] == other["zoo"]["space"]  # counts, and so propensities


def test_each_worker_makes_the_same_copies(fit):
    settings = with_callback(copies=2, keep=0.5, swap=0.5)
    one, other = fit(TWO_STAGES, *settings), fit(TWO_STAGES, *settings, "--data.num_workers=2")
    assert same(weights(one), weights(other))


@pytest.fixture
def data(tmp_path):
    from datamodules.augment import Augmentation

    data = Sample(**DATA, cache_dir=str(tmp_path / "cache"))
    data.schedule, data.augmentation = StageSchedule([Stage("tail")]), Augmentation("tail", copies=2, fraction=0.5)
    return data


def documents(loader):
    return {
        int(row): ids[mask].tolist()
        for batch in loader
        for row, ids, mask in zip(batch.rows, batch.ids, batch.mask, strict=True)
    }


def test_copies_are_the_same_in_every_epoch_and_leave_all_else_as_it_is(data):
    loader = data.train_dataloader()
    first = documents(loader)
    loader.sampler.set_epoch(1)
    assert documents(loader) == first
    size = data.space.num_documents
    plain = documents(data.pass_dataloader())
    assert len(plain) == size
    assert {row: first[row] for row in plain} == plain
    copies = [row for row in first if row >= size]
    tail = [i for i, count in enumerate(data.train_targets().part(10, 20).counts) if count]
    assert sorted(copies) == sorted(row + copy * size for copy in (1, 2) for row in tail)
    assert any(first[row] != plain[row % size] for row in copies)
    assert len(data.train_targets()) == size
    assert data.train_words().shape[0] == size
    data.schedule = StageSchedule()
    assert documents(data.train_dataloader()) == plain


def test_a_mistake_ends_in_one_line(fails, tiny):
    given = ["fit", "--config", str(tiny), "--wandb.mode=disabled", TWO_STAGES]
    fails(*given, *with_callback(stage="tial"), names=["TailAugment", "'tial'", "first, tail"])
    for name, value in (("keep", 0.0), ("keep", 1.5), ("swap", 0.0), ("copies", -1), ("fraction", 2.0)):
        fails(*given, *with_callback(**{name: value}), names=["TailAugment", f"{name}={value}"])


BBN = ["--model.head=BBN", "--model.head.epochs=2", "--model.head.hidden=8"]


def test_bbn_draws_its_own_copies_and_takes_no_others(fit, fails, tiny):
    drawn = '--stages=[{"name": "tail", "epochs": 2, "documents": "both_samplers", "each_epoch": ["set_mix"]}]'
    kept = weights(fit(drawn, *BBN))
    assert kept["head.mix"] == 0.75
    given = ["--config", str(tiny), "--wandb.mode=disabled", drawn, *BBN, *with_callback()]
    fails("fit", *given, names=["'tail'", "TailAugment"])


ENGINES = ["--model.backbone=Words", "--model.head=Decoupled", "--model.head.fraction=0.3"]
FITTED = (
    '--stages=[{"name": "head", "on_enter": ["head.fit"]}, {"name": "tail", "on_enter": ["tail.fit"]}, '
    '{"name": "calibrate", "on_enter": ["calibrate"]}]'
)


def svm(folder, part):
    state = weights(folder)
    return state[f"head.{part}.inner._extra_state"]["values"]


def test_linear_engines_are_fitted_to_the_copies_of_their_stage(fit):
    engines = [*ENGINES, "--model.head.head=OneVsRestSvm", "--model.head.tail=OneVsRestSvm"]
    plain, more = fit(FITTED, *engines), fit(FITTED, *engines, *with_callback(fraction=0.3))
    assert torch.equal(svm(plain, "head"), svm(more, "head"))
    assert svm(plain, "tail").shape != svm(more, "tail").shape or not torch.equal(svm(plain, "tail"), svm(more, "tail"))
    none = fit(FITTED, *engines, *with_callback(fraction=0.3, copies=0))
    assert same_state(weights(plain), weights(none))


def same_state(one, other):
    for name, value in one.items():
        if isinstance(value, dict):
            assert same_state(value, other[name])
        elif isinstance(value, torch.Tensor):
            assert torch.equal(value, other[name]), name
    return True


def test_all_labels_head_is_the_plain_engine(fit, read_metrics):
    plain = fit(
        '--stages=[{"name": "fit", "on_enter": ["fit"]}]', "--model.backbone=Words", "--model.head=OneVsRestSvm"
    )
    one = '--stages=[{"name": "head", "on_enter": ["head.fit"]}]'
    parts = ["--model.head.head=OneVsRestSvm", "--model.head.tail=OneVsRestSvm", "--model.head.fraction=1.0"]
    decoupled = fit(one, "--model.backbone=Words", "--model.head=Decoupled", *parts)
    assert read_metrics(plain)["metrics"] == read_metrics(decoupled)["metrics"]


def test_a_part_that_is_not_there_and_an_engine_with_epochs_end_in_one_line(fails, tiny):
    parts = ["--model.head=Decoupled", "--model.head.head=OneVsRestSvm", "--model.head.tail=OneVsRestSvm"]
    base = ["fit", "--config", str(tiny), "--wandb.mode=disabled", *parts]
    fails(*base, "--model.head.fraction=1.0", FITTED, names=["fraction=1.0", "20", "'tail'"])
    epochs = FITTED.replace('"name": "tail"', '"name": "tail", "epochs": 1')
    fails(*base, "--model.head.fraction=0.3", epochs, names=["OneVsRestSvm", "'tail'"])


def test_a_checkpoint_of_two_parts_predicts(fit, tmp_path, capsys):
    parts = ["--model.head.head=Linear", "--model.head.tail=OneVsRestSvm", "--model.head=Decoupled"]
    stages = (
        '--stages=[{"name": "head", "epochs": 1, "documents": "head_documents", '
        '"trainable": ["backbone.*", "head.head.*"]}, '
        '{"name": "tail", "on_enter": ["tail.fit"]}, {"name": "calibrate", "on_enter": ["calibrate"]}]'
    )
    folder = fit(parts[-1], *parts[:-1], "--model.head.fraction=0.3", stages)
    (tmp_path / "docs.txt").write_text("one two three\n")
    main(
        [
            "predict",
            "--ckpt",
            str(folder / "checkpoints" / "best.ckpt"),
            "--input",
            str(tmp_path / "docs.txt"),
            "--k",
            "5",
        ]
    )
    assert capsys.readouterr().out.count("score") == 5
