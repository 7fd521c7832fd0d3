"""`zoo ensemble`: finished runs with different heads and backbones as one model."""

import json

import pytest

import zoo
from tests.support.errors import raises
from zoo.commands.main import main
from zoo.core.errors import UserError
from zoo.core.run_search import read_runs
from zoo.training.checkpoint import read_checkpoint, write_checkpoint

TEXT = "word1 word2 word3"


@pytest.fixture
def members(fit):
    return [fit(), fit("--model.backbone=CNN", "--seed_everything=1", "--data.max_length=20")]


@pytest.fixture
def made(members, tmp_path):
    main(["ensemble", *map(str, members), "--name=both", f"--out={tmp_path / 'made'}", "--device=cpu"])
    (run,) = read_runs([tmp_path / "made"])
    return run


def test_it_has_the_mean_probability_and_a_run_folder_of_its_own(members, made, tmp_path, capsys):
    taggers = [zoo.load(run / "checkpoints" / "best.ckpt", "cpu") for run in members]
    both = zoo.load(made.path / "checkpoints" / "best.ckpt", "cpu")
    (tags,) = both.tag([TEXT], k=3)
    every = [{tag.label: tag.score for tag in one.tag([TEXT], k=100)[0]} for one in taggers]
    mean = {label: sum(scores.get(label, 0) for scores in every) / 2 for label in both.names}
    best = sorted(mean.values(), reverse=True)[:3]
    assert [tag.score for tag in tags] == pytest.approx(best, abs=1e-6)
    assert [mean[tag.label] for tag in tags] == pytest.approx(best, abs=1e-6)
    assert set(made.facts["members"]) == set(map(str, members))
    assert 0 < made.metrics["P@1"] <= 1
    assert both.threshold == made.metrics["threshold"]
    source = tmp_path / "docs.txt"
    source.write_text(TEXT + "\n")
    capsys.readouterr()
    main(["predict", f"--ckpt={made.path / 'checkpoints' / 'best.ckpt'}", f"--input={source}", "--k=1", "--device=cpu"])
    assert json.loads(capsys.readouterr().out)["labels"][0]["label"] == tags[0].label
    main(["compare", *map(str, members), str(made.path), "--by", "experiment,backbone"])
    assert "both" in capsys.readouterr().out


def test_copies_of_one_model_rank_as_it_does(members, tmp_path):
    one = read_checkpoint(members[0] / "checkpoints" / "best.ckpt")
    write_checkpoint({"zoo": {"format": 2, "members": [one, one], "threshold": 0.25}}, tmp_path / "twice.ckpt")
    twice, alone = zoo.load(tmp_path / "twice.ckpt", "cpu"), zoo.load(members[0] / "checkpoints" / "best.ckpt", "cpu")
    assert twice.tag([TEXT, ""], k=4) == alone.tag([TEXT, ""], k=4)
    assert twice.threshold == 0.25
    with raises(UserError, "ensemble"):
        twice.add_labels([("a text", ["new"])])


@pytest.mark.parametrize(
    "change", [{"threshold": 3.0}, {"threshold": None}, {"members": []}, {"members": [3]}, {"members": None}]
)
def test_a_damaged_ensemble_is_refused(members, tmp_path, change):
    one = read_checkpoint(members[0] / "checkpoints" / "best.ckpt")
    content = {"format": 2, "members": [one, one], "threshold": 0.25}
    write_checkpoint({"zoo": content | change}, tmp_path / "bad.ckpt")
    with raises(UserError, "bad.ckpt"):
        zoo.load(tmp_path / "bad.ckpt", "cpu")


def test_other_commands_name_the_problem(made, capsys, tmp_path):
    file = made.path / "checkpoints" / "best.ckpt"
    for command in (["test"], ["tree"], ["rerank", f"--out={tmp_path / 'x.ckpt'}"]):
        with pytest.raises(SystemExit) as stopped:
            main([*command, f"--ckpt={file}"])
        assert stopped.value.code == 2
        assert "ensemble" in capsys.readouterr().err


def test_runs_on_other_documents_are_refused(fit, members, tmp_path, capsys):
    other = fit("--data.num_documents=200")
    with pytest.raises(SystemExit):
        main(["ensemble", str(members[0]), str(other), f"--out={tmp_path / 'made'}"])
    assert "same data" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()
    with pytest.raises(SystemExit):
        main(["ensemble", str(members[0]), f"--out={tmp_path / 'made'}"])
    assert "two" in capsys.readouterr().err
