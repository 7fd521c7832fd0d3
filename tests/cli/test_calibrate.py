"""Calibration of a trained checkpoint, and explanations, through the command line."""

import json
import re
from types import SimpleNamespace

import pytest

import zoo
from tests.cli.test_rerank import CONFIG, TEXTS
from tests.support.output import numbers
from zoo.commands.main import main
from zoo.training.calibration import KINDS
from zoo.training.checkpoint import read_checkpoint
from zoo.training.ensemble_tagger import EnsembleTagger


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of an SVM; its cache is that of all tests here."""
    folder = tmp_path_factory.mktemp("trained")
    config = CONFIG.replace("{class_path: BiLSTM, init_args: {embed_dim: 16, hidden: 16}}", "Words")
    config = config.replace("head: Linear", "head: OneVsRestSvm").replace("epochs: 3", "on_enter: [fit]")
    (folder / "tiny.yaml").write_text(config)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ZOO_DATA", "ZOO_RUN_FOLDER"):
            patch.delenv(name, raising=False)
        patch.setenv("ZOO_CACHE", str(folder / "cache"))
        main(["fit", "--config", str(folder / "tiny.yaml"), "--runs", str(folder / "runs")])
    (best,) = folder.glob("runs/tiny/*/checkpoints/best.ckpt")
    return SimpleNamespace(best=best, cache=folder / "cache", runs=folder / "runs", run=best.parent.parent)


@pytest.fixture(autouse=True)
def _cache(trained, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(trained.cache))


def rows_of(text):
    """Numbers of the tables that a command prints, by the first words of a row."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("│ ").split("│")]
        if "│" in line and len(cells) > 2:
            found[cells[0]] = [float(cell) for cell in cells[1:]]
    return found


def test_probabilities_and_thresholds_of_a_checkpoint(trained, tmp_path, capsys):
    made, picture = tmp_path / "calibrated.ckpt", tmp_path / "reliability.svg"
    given = ["calibrate", "--ckpt", str(trained.best), "--out", str(made), "--picture", str(picture)]
    main([*given, "--thresholds", "class"])
    rows = rows_of(capsys.readouterr().out)
    before, after = rows["scores"], rows["probabilities (platt)"]
    assert after[2] < before[2]  # ECE@5
    assert {"scores", "platt", "share of correct labels"} <= set(re.findall(r">([^<]+)</text>", picture.read_text()))
    kinds = [rows[name] for name in rows if name.startswith("one")]
    assert len(kinds) == 4
    assert all(0 < value <= 100 for row in kinds for value in row[:3])
    tagger = zoo.load(made)
    assert tagger.calibration is not None
    assert (tagger.calibration.kind, tagger.calibration.target) == ("class", "macro-f1")
    assert len(set(tagger.thresholds)) <= 3

    main(["test", "--ckpt", str(made)])
    lines = [line for line in capsys.readouterr().out.splitlines() if "calibrated thresholds" in line]
    assert [line.rpartition(" ")[2] for line in lines] == list(KINDS)
    assert all(0 < number <= 100 for line in lines for number in numbers(line)[-2:])

    docs, tags = tmp_path / "docs.txt", tmp_path / "tags.jsonl"
    docs.write_text("\n".join(TEXTS) + "\n")
    main(["predict", "--ckpt", str(made), "--input", str(docs), "--out", str(tags), "--threshold", "auto", "--explain"])
    found = [json.loads(line)["labels"] for line in tags.read_text().splitlines()]
    least = dict(zip(tagger.names, tagger.thresholds, strict=True))
    every = tagger.tag(TEXTS, k=100)
    for labels, tags_, text in zip(found, every, TEXTS, strict=True):
        assert [row["label"] for row in labels] == [tag.label for tag in tags_ if tag.score >= least[tag.label]]
        for row in labels:
            words = [text[span["start"] : span["end"]] for span in row["spans"]]
            assert set(words) <= set(text.split())
            assert sum(span["weight"] for span in row["spans"]) == pytest.approx(1, abs=0.05) or not words


def test_a_calibration_is_replaced_and_dropped_by_rerank(trained, tmp_path, capsys):
    one, two, three = (tmp_path / f"{name}.ckpt" for name in ("one", "two", "three"))
    main(["calibrate", "--ckpt", str(trained.best), "--out", str(one), "--target", "labels=2"])
    main(["calibrate", "--ckpt", str(one), "--out", str(two), "--method=isotonic", "--target=labels=2"])
    first, second = zoo.load(one), zoo.load(two)
    assert second.calibration.method == "isotonic"
    assert second.calibration.weights == first.calibration.weights  # of the scores, not of the probabilities
    assert second.calibration.target == "labels=2"
    main(["rerank", "--ckpt", str(one), "--out", str(three), "--exponent=0.5"])
    assert zoo.load(three).calibration is None


def test_an_ensemble_is_calibrated_as_a_whole(trained, tmp_path, capsys):
    content, best = read_checkpoint(trained.best), tmp_path / "best.ckpt"
    EnsembleTagger([zoo.load(trained.best), zoo.load(trained.best)], [content, content]).save(best)
    made, alone = tmp_path / "ensemble.ckpt", tmp_path / "alone.ckpt"
    main(["calibrate", "--ckpt", str(best), "--out", str(made)])
    main(["calibrate", "--ckpt", str(trained.best), "--out", str(alone)])
    several, single = zoo.load(made), zoo.load(alone)
    assert several.thresholds == pytest.approx(single.thresholds, abs=1e-4)  # both members are the same
    for tags, expected in zip(several.tag(TEXTS), single.tag(TEXTS), strict=True):
        assert [tag.score for tag in tags] == pytest.approx([tag.score for tag in expected], abs=1e-4)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--target=f1"], ["--target=f1", "macro-f1"]),
        (["--candidates=0"], ["--candidates=0"]),
        (["--method=other"], ["method", "isotonic"]),
        (["--out=nowhere/x.ckpt"], ["nowhere"]),
    ],
)
def test_mistakes_end_in_one_line(trained, tmp_path, fails, options, names):
    fails("calibrate", "--ckpt", str(trained.best), f"--out={tmp_path / 'x.ckpt'}", *options, names=names)
