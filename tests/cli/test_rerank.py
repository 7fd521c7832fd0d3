"""A trained checkpoint with rare labels put forward, through the command line."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

import zoo
from heads import Linear, Rerank
from zoo.commands.main import main
from zoo.training.checkpoint import read_checkpoint, rebuild

CONFIG = """
data:
  class_path: Sample
  init_args: {num_documents: 500, num_labels: 20, words_per_document: 40, batch_size: 16}
trainer: {accelerator: cpu, num_sanity_val_steps: 0, enable_progress_bar: false, enable_model_summary: false}
model:
  backbone: {class_path: BiLSTM, init_args: {embed_dim: 16, hidden: 16}}
  head: Linear
  optimizer: {class_path: Adam, init_args: {lr: 0.02}}
stages:
  - {name: main, epochs: 3}
wandb: {mode: disabled}
"""
HTTN = "{class_path: PrototypeTransfer, init_args: {hidden: 12, tail_labels: 6, draws: 4, shots: 2}}"
TEXTS = ["the quota for cod in the sea", "dairy refund in Benelux", "fishery statistics in Ireland"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run's checkpoint; its cache is that of all tests here."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "tiny.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ZOO_DATA", "ZOO_RUN_FOLDER"):
            patch.delenv(name, raising=False)
        patch.setenv("ZOO_CACHE", str(folder / "cache"))
        main(["fit", "--config", str(folder / "tiny.yaml"), "--runs", str(folder), "--final_test=false"])
    (best,) = folder.glob("tiny/*/checkpoints/best.ckpt")
    return SimpleNamespace(best=best, config=folder / "tiny.yaml", cache=folder / "cache")


@pytest.fixture(autouse=True)
def _cache(trained, monkeypatch):
    monkeypatch.setenv("ZOO_CACHE", str(trained.cache))


@pytest.fixture
def rerank(trained, tmp_path, capsys):
    """Run the command; returns the new checkpoint and its rows of the table."""

    def run(*options: str, ckpt: Path = trained.best, name: str = "new.ckpt") -> tuple[Path, dict[str, list[float]]]:
        capsys.readouterr()
        main(["rerank", "--ckpt", str(ckpt), "--out", str(tmp_path / name), *options])
        rows = [line.replace("│", " ").split() for line in capsys.readouterr().out.splitlines() if "│" in line]
        before, after = ([float(value) for value in row[1:]] for row in rows)
        return tmp_path / name, {"before": before, "after": after}

    return run


def test_the_propensity_form_gains_and_costs_no_more_than_allowed(trained, rerank, capsys):
    path, rows = rerank("--allowed_loss=0.02")
    assert rows["after"][6] >= rows["before"][6]  # PSP@5
    assert rows["after"][0] >= rows["before"][0] - 2.01  # P@1
    head = rebuild(path).head
    assert isinstance(head, Rerank)
    assert not head.is_trained
    assert head.net.first.state_dict() == {}
    base = rebuild(trained.best)
    for name, value in base.head.state_dict().items():
        assert torch.equal(value, head.inner.state_dict()[name])


def test_a_fixed_exponent_ranks_by_it(rerank):
    path, _ = rerank("--exponent=1")
    assert rebuild(path).head.power == 1
    tags = zoo.load(path).tag(TEXTS, k=20)
    for row in tags:
        scores = [tag.score for tag in row]
        assert scores == sorted(scores, reverse=True)
        assert 0 <= min(scores) <= max(scores) <= 1


def test_an_exponent_of_0_changes_nothing(trained, rerank):
    path, rows = rerank("--exponent=0")
    assert rows["before"] == rows["after"]
    assert zoo.load(path).tag(TEXTS, k=20) == zoo.load(trained.best).tag(TEXTS, k=20)


@pytest.mark.parametrize("form", ["ranknet", "both"])
def test_a_network_is_trained_on_a_half(form, rerank, monkeypatch):
    notes: list[str] = []
    monkeypatch.setattr("zoo.commands.rerank.warn", notes.append)
    path, rows = rerank(f"--form={form}", "--seed=1")
    again, same = rerank(f"--form={form}", "--seed=1", name="again.ckpt")
    assert rows == same
    one, other = (read_checkpoint(file)["state_dict"] for file in (path, again))
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert bool(one["head.trained"])
    worse = [k for k, place in ((1, 4), (5, 6)) if rows["after"][place] < rows["before"][place]]
    said = [note for note in notes if "PSP@" in note]
    assert len(said) == (2 if worse else 0)  # of each of the two runs
    assert all(f"PSP@{k}" in note for k in worse for note in said)


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        (["--blocks=0"], {"exponent"}),
        (["--scale=logits", "--learned_exponent=null"], {"first.0.weight", "second.0.weight"}),
        (
            ["--network=full", "--scale=probabilities", "--learned_exponent=null"],
            {"first.0.weight", "second.0.weight", "diagonal.0.weight"},
        ),
    ],
)
def test_parts_of_ranknet_are_options(options, parameters, rerank):
    path, _ = rerank("--form=ranknet", *options)
    head = rebuild(path).head
    assert head.is_trained
    assert set(head.net.state_dict()) == parameters


def test_nothing_to_train_ends_in_one_line(trained, tmp_path, fails):
    given = ["rerank", "--ckpt", str(trained.best), "--out", str(tmp_path / "new.ckpt"), "--form=ranknet"]
    fails(*given, "--blocks=0", "--learned_exponent=null", names=["--blocks=0", "--learned_exponent=null"])
    fails(*given, "--network=full", names=["--network=full", "--scale=probabilities"])


def test_the_new_checkpoint_can_be_tested_and_predicts(rerank, tmp_path, capsys):
    path, _ = rerank("--form=both", "--allowed_loss=0.05")
    main(["test", "--ckpt", str(path)])
    assert "inner" in capsys.readouterr().out  # measured beside
    docs, tags = tmp_path / "docs.txt", tmp_path / "tags.jsonl"
    docs.write_text("\n".join(TEXTS) + "\n")
    main(["predict", "--ckpt", str(path), "--input", str(docs), "--out", str(tags), "--k", "3"])
    assert [len(json.loads(line)["labels"]) for line in tags.read_text().splitlines()] == [3, 3, 3]
    config = yaml.safe_load(read_checkpoint(path)["zoo"]["config"])
    assert config["stages"] is None
    assert config["model"]["head"]["init_args"]["inner"]["class_path"].endswith("Linear")


def test_what_was_ranked_anew_already_is_replaced(rerank, capsys):
    path, first = rerank("--exponent=1")
    other, second = rerank("--exponent=0.5", ckpt=path, name="other.ckpt")
    assert second["before"] == first["before"]
    head = rebuild(other).head
    assert head.power == 0.5
    assert isinstance(head.inner, Linear)
    same, _ = rerank("--exponent=0.25", ckpt=other, name="other.ckpt")
    assert rebuild(same).head.power == 0.25


def test_mistakes_end_in_one_line(trained, tmp_path, fails, monkeypatch):
    best, out = str(trained.best), str(tmp_path / "new.ckpt")
    given = ["rerank", "--ckpt", best, "--out", out]
    fails("rerank", "--ckpt", "none.ckpt", "--out", out, names=["none.ckpt"])
    fails("rerank", "--ckpt", best, "--out", str(tmp_path / "no" / "f"), names=[tmp_path / "no" / "f"])
    fails(*given, "--gain=F1", names=["--gain=F1", "P", "PSP"])
    fails(*given, "--candidates=0", names=["--candidates=0"])
    options = ["--exponent=0.5", "--form=propensity", "--form=both"]
    fails(*given, "--form=ranknet", "--exponent=0.5", names=options)
    fails(*given, "--device=cuda:99", names=["cuda:99"])
    fails(*given, "--form=other", names=["form", "other"])
    assert not (tmp_path / "new.ckpt").exists()


def test_a_checkpoint_of_unfinished_training_is_refused(trained, tmp_path, fails):
    config = tmp_path / "httn.yaml"
    text = CONFIG.replace("head: Linear", f"head: {HTTN}").replace("num_documents: 500", "num_documents: 150")
    config.write_text(text.replace("epochs: 3}", "epochs: 1}\n  - {name: transfer, on_enter: [transfer]}"))
    main(["fit", "--config", str(config), "--runs", str(tmp_path / "runs"), "--final_test=false"])
    (path,) = tmp_path.glob("runs/httn/*/checkpoints/main.ckpt")
    fails("rerank", "--ckpt", str(path), "--out", str(tmp_path / "new.ckpt"), names=[path, "transfer"])


def test_another_corpus_is_refused(trained, tmp_path, fails):
    content = read_checkpoint(trained.best)
    config = yaml.safe_load(content["zoo"]["config"])
    config["data"]["init_args"]["num_labels"] = 15
    content["zoo"]["config"] = yaml.safe_dump(config)
    torch.save(content, tmp_path / "other.ckpt")
    other = tmp_path / "other.ckpt"
    fails("rerank", "--ckpt", str(other), "--out", str(tmp_path / "new.ckpt"), names=[other, "labels"])
