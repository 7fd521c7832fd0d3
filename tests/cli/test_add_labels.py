"""New labels for a trained model, through the command line and in Python."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import zoo
from heads import PrototypeTransfer
from tests.support.output import line_with, numbers
from zoo.commands.main import main
from zoo.core.errors import UserError
from zoo.training.checkpoint import read_checkpoint

CONFIG = """
data:
  class_path: Sample
  init_args: {num_documents: 150, num_labels: 20, words_per_document: 40, batch_size: 16, limit_train: 70}
trainer: {accelerator: cpu, num_sanity_val_steps: 0, enable_progress_bar: false, enable_model_summary: false}
model:
  backbone: {class_path: BiLSTM, init_args: {embed_dim: 8, hidden: 8, dropout: 0.3}}
  head: {class_path: PrototypeTransfer, init_args: {hidden: 12, tail_labels: 6, draws: 4, shots: 2, members: 2}}
  optimizer: {class_path: Adam, init_args: {lr: 0.01}}
stages:
  - {name: head, epochs: 3, trainable: ["backbone.*", head.project.*, head.head, head.scale], documents: head_documents}
  - {name: transfer, on_enter: [transfer]}
wandb: {mode: disabled}
"""
UNSEEN = "dairy ban in the Ardennes"  # of the sample's labels, with this limit_train
KNOWN = ["dairy refund in Benelux", "fishery statistics in Ireland"]  # trained, and tail
COD, TUNA = "cod in the North Sea", "tuna, frozen"
FEW = [("the quota for cod in the sea", [COD]), ("fishery of frozen tuna and cod", [TUNA, COD]), ("cod levy", [COD])]
TEXTS = [f"{'fishery quota levy ' * n} {place}" for n in range(12) for place in ("in the Baltic", "Malta cod", "dairy")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The checkpoints of a run, and the configuration that continues it."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "tiny.yaml").write_text(CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ZOO_DATA", "ZOO_RUN_FOLDER"):
            patch.delenv(name, raising=False)
        patch.setenv("ZOO_CACHE", str(folder / "cache"))
        main(["fit", "--config", str(folder / "tiny.yaml"), "--runs", str(folder), "--final_test=false"])
    (best,) = folder.glob("tiny/*/checkpoints/best.ckpt")
    return SimpleNamespace(best=best, head=best.with_name("head.ckpt"), config=folder / "tiny.yaml")


@pytest.fixture
def few(tmp_path):
    return put(tmp_path / "few.jsonl", FEW)


@pytest.fixture
def grown(trained, few, tmp_path):
    return add(trained.best, few, tmp_path / "grown.ckpt")


def put(path: Path, examples) -> Path:
    rows = [{"id": f"d{i}", "text": text, "labels": labels} for i, (text, labels) in enumerate(examples)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def add(ckpt: Path, source: Path, out: Path, *options: str) -> Path:
    main(["add-labels", "--ckpt", str(ckpt), "--input", str(source), "--out", str(out), *options])
    return out


def scores(ckpt_or_tagger) -> list[dict[str, float]]:
    tagger = ckpt_or_tagger if isinstance(ckpt_or_tagger, zoo.Tagger) else zoo.load(ckpt_or_tagger)
    return [{tag.label: tag.score for tag in tags} for tags in tagger.tag(TEXTS, k=len(tagger.names))]


def of(names, found):
    return [{name: row[name] for name in names} for row in found]


def space(ckpt):
    return read_checkpoint(ckpt)["zoo"]["space"]


def state(tagger):
    return {name: value.clone() for name, value in tagger.module.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


# --- what is written


def test_scores_of_old_labels_are_the_same_bit_for_bit(trained, grown):
    names = space(trained.best)["names"]
    before, after = scores(trained.best), scores(grown)
    assert all(len(row) == len(names) for row in before)
    assert of(names, after) == before
    assert all(set(row) == {*names, COD, TUNA} for row in after)


def test_new_labels_follow_the_old_in_order_of_appearance(trained, grown):
    old, new = space(trained.best), space(grown)
    assert new["names"] == [*old["names"], COD, TUNA]
    assert new["counts"] == [*old["counts"], 3, 1]
    assert (new["added"], new["unseen"]) == (2, [UNSEEN])
    assert new["reference_counts"] == [*old["counts"], 3, 1, 0]
    assert (new["num_documents"], new["reference_documents"]) == (old["num_documents"], old["reference_documents"])


def test_the_checkpoint_has_what_rebuilds_it_and_no_state_of_training(trained, grown):
    old, new = read_checkpoint(trained.best), read_checkpoint(grown)
    assert set(new) == {"state_dict", "zoo", "pytorch-lightning_version", "epoch", "global_step"}
    assert all(new[key] == old[key] for key in ("pytorch-lightning_version", "epoch", "global_step"))
    assert all(new["zoo"][key] == old["zoo"][key] for key in ("config", "tokenizer", "max_length"))
    assert list(new["state_dict"]) == list(old["state_dict"])
    assert zoo.load(grown).threshold == zoo.load(trained.best).threshold != 0.5
    for name in ("val_metrics.tuned_threshold", "test_metrics.tuned_threshold"):
        assert torch.equal(new["state_dict"][name], old["state_dict"][name])


def test_what_was_done_is_told(trained, few, tmp_path, capsys):
    out = add(trained.best, few, tmp_path / "out.ckpt")
    lines = capsys.readouterr().out.splitlines()
    added, documents, seconds = (numbers(line) for line in lines[:3])
    assert added == [2, 0, 21]  # added, updated, in all
    assert documents == [3]
    assert seconds[0] < 60
    assert lines[3].endswith(str(out))


def test_predict_finds_a_new_label(grown, tmp_path):
    out = tmp_path / "tags.jsonl"
    source = put(tmp_path / "docs.jsonl", FEW)
    main(["predict", f"--ckpt={grown}", f"--input={source}", f"--out={out}", "--k=99"])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert all({COD, TUNA} < {tag["label"] for tag in row["labels"]} for row in rows)


def test_the_old_checkpoint_can_be_overwritten(trained, grown, few, tmp_path):
    own = tmp_path / "own.ckpt"
    own.write_bytes(trained.best.read_bytes())
    add(own, few, own)
    assert scores(own) == scores(grown)
    assert [path.name for path in tmp_path.glob(".*")] == []


# --- labels that come again, and those that are known


def test_more_labels_for_a_checkpoint_that_has_some(trained, grown, tmp_path):
    names = space(trained.best)["names"]
    source = put(tmp_path / "more.jsonl", [("eel in the Danube", ["eel"])])
    again = add(grown, source, tmp_path / "again.ckpt")
    assert space(again)["names"] == [*names, COD, TUNA, "eel"]
    assert space(again)["added"] == 3
    before, after = scores(grown), scores(again)
    assert of(names, after) == of(names, before)
    for old, new in zip(before, after, strict=True):
        assert [new[COD], new[TUNA]] == pytest.approx([old[COD], old[TUNA]], rel=1e-6)


def test_known_labels_are_refused(trained, grown, few, tmp_path, fails):
    target = tmp_path / "out.ckpt"
    fails("add-labels", f"--ckpt={grown}", f"--input={few}", f"--out={target}", names=[repr(COD), 1, "--update"])
    source = put(tmp_path / "a.jsonl", [("a new label beside a known one", ["new", KNOWN[0]])])
    names = [repr(KNOWN[0]), "--update"]
    line = fails("add-labels", f"--ckpt={trained.best}", f"--input={source}", f"--out={target}", names=names)
    assert "'new'" not in line
    assert not target.exists()


def test_long_names_leave_room_for_the_advice(trained, tmp_path, fails):
    tagger = zoo.load(trained.best).add_labels([("a text", ["x" * 1000])])
    tagger.save(tmp_path / "long.ckpt")
    source = put(tmp_path / "a.jsonl", [("a text", ["x" * 1000])])
    given = [f"--ckpt={tmp_path / 'long.ckpt'}", f"--input={source}", "--out=x.ckpt"]
    fails("add-labels", *given, names=["xxx", "--update"])


def test_update_moves_the_labels_named_and_no_other(trained, tmp_path, capsys):
    source = put(tmp_path / "a.jsonl", [("refund for butter", [KNOWN[0], "new"]), ("eel statistics", KNOWN)])
    out = add(trained.best, source, tmp_path / "out.ckpt", "--update")
    assert numbers(capsys.readouterr().out.splitlines()[0]) == [1, 2, 20]  # added, updated, in all
    names = space(trained.best)["names"]
    assert space(out)["names"] == [*names, "new"]
    assert space(out)["counts"] == [*space(trained.best)["counts"], 1]
    others = [name for name in names if name not in KNOWN]
    before, after = scores(trained.best), scores(out)
    assert of(others, after) == of(others, before)
    assert all(of([name], after) != of([name], before) for name in KNOWN)


def test_update_alone_adds_nothing(trained, tmp_path, fails):
    source = put(tmp_path / "a.jsonl", [("refund for butter", KNOWN)])
    out = add(trained.best, source, tmp_path / "out.ckpt", "--update", "true")
    assert space(out) == space(trained.best)
    assert scores(out) != scores(trained.best)
    given = [f"--config={trained.config}", f"--runs={tmp_path}", f"--ckpt_path={out}"]
    fails("fit", *given, names=["--from_stage", "--ckpt"])


def test_an_added_label_counts_the_documents_of_an_update(grown, tmp_path):
    source = put(tmp_path / "a.jsonl", [("cod and eel", [COD, "eel"]), ("more cod", [COD, UNSEEN])])
    out = add(grown, source, tmp_path / "out.ckpt", "--update=true")
    assert space(out)["names"][-4:] == [COD, TUNA, "eel", UNSEEN]
    assert space(out)["counts"][-4:] == [5, 1, 1, 1]
    assert space(out)["reference_counts"][-4:] == [5, 1, 1, 1]
    head = zoo.load(out).module.head
    assert isinstance(head, PrototypeTransfer)
    first, second = (zoo.load(grown).module.head.prototypes[-2], head.prototypes[-4])
    assert not torch.equal(first, second)


def test_known_labels_can_be_left_out(trained, tmp_path, capsys, fails):
    source = put(
        tmp_path / "a.jsonl", [("cod refund", [KNOWN[0], COD]), ("eel statistics", KNOWN), ("more cod", [COD])]
    )
    out = add(trained.best, source, tmp_path / "out.ckpt", "--ignore_known")
    told = capsys.readouterr()
    added, documents = (numbers(line) for line in told.out.splitlines()[:2])
    assert added[:2] == [1, 0]  # added, updated
    assert documents == [2]
    assert numbers(line_with(told.err, source), without=source) == [1, 3]  # documents left out, of all
    assert of(space(trained.best)["names"], scores(out)) == scores(trained.best)
    command = ["add-labels", f"--ckpt={out}", f"--input={source}", f"--out={out}"]
    fails(*command, "--ignore_known", names=[source, "--update"])
    fails(*command, "--ignore_known", "--update", names=["--ignore_known", "--update"])


def test_an_unseen_label_becomes_known(trained, tmp_path):
    assert space(trained.best)["unseen"] == [UNSEEN]
    source = put(tmp_path / "a.jsonl", [("a ban in the Ardennes", [UNSEEN]), ("dairy ban", [COD, UNSEEN])])
    new = space(add(trained.best, source, tmp_path / "out.ckpt"))
    assert new["names"][-2:] == [UNSEEN, COD]
    assert (new["unseen"], new["counts"][-2:], new["reference_counts"][-2:]) == ([], [2, 1], [2, 1])
    assert len(new["names"]) == len(new["counts"]) == len(new["reference_counts"])


# --- what is read


def test_tables_with_separators_and_other_columns(trained, grown, tmp_path):
    rows = [f"k{i},{text},{'|'.join(labels)}" for i, (text, labels) in enumerate(FEW)]
    content = "\n".join(["key,body,tags", *(row.replace(f"{TUNA}|{COD}", f'"{TUNA}|{COD}"') for row in rows)])
    with gzip.open(tmp_path / "few.csv.gz", "wt") as file:
        file.write(content)
    columns = ["--text_column=body", "--label_column=tags", "--id_column=key"]
    out = add(trained.best, tmp_path / "few.csv.gz", tmp_path / "out.ckpt", *columns, "--label_sep=|")
    assert scores(out) == scores(grown)
    (tmp_path / "few.txt").write_text("\n".join(f"d{i}\t{'|'.join(x)}\t{text}" for i, (text, x) in enumerate(FEW)))
    out = add(trained.best, tmp_path / "few.txt", tmp_path / "out.ckpt", "--label_sep", "|")
    assert scores(out) == scores(grown)


def test_documents_without_labels_are_left_out(trained, grown, tmp_path, capsys):
    source = put(tmp_path / "a.jsonl", [("nothing", []), *FEW, ("", [])])
    out = add(trained.best, source, tmp_path / "out.ckpt")
    assert numbers(line_with(capsys.readouterr().err, source), without=source) == [2, 5]
    assert scores(out) == scores(grown)


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ('{"text": "a", "labels": ["x"]}\n{"text": \n', ["2", "JSON"]),
        ('{"text": "a", "labels": ["x"]}\n{"text": "b"}\n', ["2", "'labels'"]),
        ('{"text": "a", "labels": "x"}\n', ["--label_sep"]),
        ('{"body": "a", "labels": ["x"]}\n', ["'text'", "'body'", "--text_column="]),
        ('{"text": "a", "tags": ["x"]}\n', ["'labels'", "'tags'", "--label_column="]),
        ('{"text": "a", "labels": []}\n{"text": "b", "labels": [" "]}\n', ["2"]),
        ("", []),
        ('{"text": "a", "labels": []}\n{"id": 7, "text": " ", "labels": ["x"]}\n', ["2", "'7'"]),
    ],
)
def test_documents_that_cannot_be_learned_from(trained, tmp_path, fails, content, names):
    source, target = tmp_path / "a.jsonl", tmp_path / "out.ckpt"
    source.write_text(content)
    line = fails("add-labels", f"--ckpt={trained.best}", f"--input={source}", f"--out={target}", names=[source])
    assert [name for name in names if name not in line.replace(str(source), "")] == [], line
    assert "--data." not in line
    assert not target.exists()


def test_files_that_are_not_there(trained, few, tmp_path, fails):
    best, out = f"--ckpt={trained.best}", f"--out={tmp_path / 'out.ckpt'}"
    fails("add-labels", best, "--input=nowhere.jsonl", out, names=["nowhere.jsonl"])
    fails("add-labels", best, f"--input={trained.best}", out, names=[trained.best])
    fails("add-labels", "--ckpt=nowhere.ckpt", f"--input={few}", out, names=["nowhere.ckpt"])
    fails("add-labels", f"--ckpt={few}", f"--input={few}", out, names=[few])
    for target in (tmp_path, tmp_path / "nowhere" / "out.ckpt", "/dev/null"):
        fails("add-labels", best, f"--input={few}", f"--out={target}", names=[target])
    fails("add-labels", best, f"--input={few}", out, "--device=tpu9", names=["tpu9"])
    fails("add-labels", names=["ckpt"])
    assert Path("/dev/null").is_char_device()
    assert not (tmp_path / "out.ckpt").exists()


# --- models that cannot


def test_a_head_that_cannot(fit, few, tmp_path, fails):
    best = fit("--trainer.max_epochs=1", "--final_test=false") / "checkpoints" / "best.ckpt"
    given = [f"--ckpt={best}", f"--input={few}", f"--out={tmp_path / 'out.ckpt'}"]
    fails("add-labels", *given, names=["Linear", "PrototypeTransfer"])


def test_a_model_before_its_transfer(trained, few, tmp_path, fails):
    given = [f"--ckpt={trained.head}", f"--input={few}", f"--out={tmp_path / 'out.ckpt'}"]
    fails("add-labels", *given, names=["transfer"])


def test_its_corpus_does_not_have_the_labels(trained, grown, tmp_path, fails):
    fails("test", f"--ckpt={grown}", names=["2 labels"])
    fails("fit", f"--config={trained.config}", f"--runs={tmp_path}", f"--ckpt_path={grown}", names=["2 labels"])


# --- in Python


def test_in_python(trained, grown, tmp_path):
    tagger = zoo.load(trained.best)
    assert tagger.add_labels(iter(FEW)) is tagger
    assert tagger.names[-2:] == [COD, TUNA]
    assert scores(tagger) == scores(grown)
    tagger.add_labels([("eel", [" eel ", "eel"]), ("nothing", ())]).save(tmp_path / "out.ckpt")
    assert space(tmp_path / "out.ckpt")["counts"][-3:] == [3, 1, 1]
    assert scores(tmp_path / "out.ckpt") == scores(tagger)
    assert tagger.module.space.num_labels == tagger.module.head.num_labels == len(tagger.names)


def test_batches_change_nothing_but_rounding(trained, grown):
    tagger = zoo.load(trained.best)
    tagger.batch_size = 1
    tagger.add_labels(FEW)
    tagger.batch_size = 64
    for one, other in zip(scores(tagger), scores(grown), strict=True):
        assert one == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize(
    ("examples", "error", "words"),
    [
        ([("a", ["new"]), ("b", [KNOWN[0]])], UserError, f"{KNOWN[0]}.*`update`"),
        ([("a", ["new"]), (" ", ["new"])], UserError, "2.*text"),
        ([("a", ["new", ""])], UserError, "1.*label"),
        ([("a", [])], UserError, None),
        ([], UserError, None),
        ([("a", "new")], TypeError, "1.*labels"),
        ([("a", [3])], TypeError, "1.*labels"),
        (["a text"], TypeError, "1.*labels"),
        ({"a": ["new"]}, TypeError, "labels"),
    ],
)
def test_bad_examples_leave_the_tagger_as_it_was(trained, examples, error, words):
    tagger = zoo.load(trained.best)
    before, names = state(tagger), list(tagger.names)
    with pytest.raises(error, match=words):
        tagger.add_labels(examples)
    assert tagger.names == names
    assert same(state(tagger), before)


def test_a_failure_midway_leaves_the_tagger_as_it_was(trained, monkeypatch):
    tagger = zoo.load(trained.best)
    before, names, found = state(tagger), list(tagger.names), scores(tagger)

    def late(self, is_head):
        raise MemoryError

    monkeypatch.setattr(PrototypeTransfer, "_index", late)
    with pytest.raises(MemoryError):
        tagger.add_labels([("cod refund", [COD, KNOWN[0]])], update=True)
    assert tagger.names == names
    assert same(state(tagger), before)
    assert scores(tagger) == found


def test_a_tagger_that_cannot_be_saved(trained, tmp_path, monkeypatch):
    tagger = zoo.load(trained.best)
    with pytest.raises(UserError, match=str(tmp_path / "nowhere" / "out.ckpt")):
        tagger.save(tmp_path / "nowhere" / "out.ckpt")
    monkeypatch.setattr(torch, "save", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(UserError, match="Permission denied"):
        tagger.save(tmp_path / "out.ckpt")
    tagger.module.config_text = None
    with pytest.raises(UserError, match="zoo fit"):
        tagger.save(tmp_path / "out.ckpt")
    assert list(tmp_path.iterdir()) == []
