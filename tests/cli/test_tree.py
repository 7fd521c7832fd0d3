"""The label tree of a checkpoint, through the command line."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.cli.test_experiments import TINY
from tests.support.output import line_with, numbers
from zoo.commands.main import main
from zoo.training.checkpoint import read_checkpoint

OPTIONS = [
    *TINY,
    "--stages.main.epochs=1",
    "--stages.main.average_from=null",
    "--wandb.mode=disabled",
    "--final_test=false",
]
LINE = re.compile(r"\w+ (\d+)(?: \(([\d >]+)\))?: (\d+) \w+, (\d+) \w+: (.*?)(?: \+ (\d+) \w+)?")


def train(folder: Path, *options: str) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ZOO_DATA", "ZOO_RUN_FOLDER"):
            patch.delenv(name, raising=False)
        patch.setenv("ZOO_CACHE", str(folder / "cache"))
        main(["fit", "--config=experiments/lightattention_reuters.yaml", f"--runs={folder}", *OPTIONS, *options])
    (best,) = folder.glob("*/*/checkpoints/best.ckpt")
    return best


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("tree"), "--model.head.tree.clusters=4")


@pytest.fixture(scope="module")
def high(tmp_path_factory):
    """Two trees of three levels."""
    shape = "--model.head.tree={clusters: 8, height: 3, fanout: 2, count: 2}"
    return train(tmp_path_factory.mktemp("high"), shape)


@pytest.fixture
def shown(capsys):
    def run(*args: str) -> list[str]:
        capsys.readouterr()
        main(["tree", *args])
        return capsys.readouterr().out.splitlines()

    return run


def changed(ckpt: Path, target: Path, change) -> Path:
    content = read_checkpoint(ckpt)
    change(content)
    torch.save(content, target)
    return target


def clusters(lines):
    """Number, path, labels, documents, names and how many are not named, of each cluster that is shown."""
    found = [match.groups() for line in lines if (match := LINE.fullmatch(line))]
    return [
        (int(number), path, int(labels), int(documents), names.split("; "), int(more or 0))
        for number, path, labels, documents, names, more in found
    ]


def test_each_label_is_in_json_once_with_its_documents_and_cluster(trained, shown):
    rows = [json.loads(line) for line in shown(f"--ckpt={trained}", "--json")]
    content = read_checkpoint(trained)
    space, state = content["zoo"]["space"], content["state_dict"]
    assert [(row["label"], row["count"]) for row in rows] == list(zip(space["names"], space["counts"], strict=True))
    assert [row["path"] for row in rows] == [[cluster] for cluster in state["head.trees.0.cluster_of"].tolist()]
    sizes = Counter(row["path"][0] for row in rows)
    assert set(sizes) == {0, 1, 2, 3}
    assert max(sizes.values()) - min(sizes.values()) <= 1


def test_people_see_the_shape_and_the_most_frequent_labels(trained, shown):
    rows = [json.loads(line) for line in shown(f"--ckpt={trained}", "--json")]
    lines = shown(f"--ckpt={trained}", "--labels=2")
    assert [line.split() for line in lines[:3]] == [["level", "nodes", "children"], ["1", "4", "5"], ["labels", "20"]]
    found = clusters(lines)
    assert [number for number, *_ in found] == [0, 1, 2, 3]
    for number, path, labels, documents, names, more in found:
        own = sorted((row for row in rows if row["path"] == [number]), key=lambda row: -row["count"])
        assert (path, labels, more) == (None, len(own), len(own) - 2)
        assert documents == sum(row["count"] for row in own)
        assert names == [row["label"] for row in own[:2]]


def test_zero_names_all_and_a_limit_tells_how_many_more_there_are(trained, shown):
    found = clusters(shown(f"--ckpt={trained}", "--labels=0", "--clusters=0"))
    named = [name for *_, names, _ in found for name in names]
    assert sorted(named) == sorted(read_checkpoint(trained)["zoo"]["space"]["names"])
    assert all(more == 0 for *_, more in found)
    lines = shown(f"--ckpt={trained}", "--clusters=3")
    assert len(clusters(lines)) == 3
    assert numbers(lines[-1], without="--clusters=0") == [1]


def test_several_levels_and_trees(high, shown):
    state = read_checkpoint(high)["state_dict"]
    for number in (1, 2):
        rows = [json.loads(line) for line in shown(f"--ckpt={high}", f"--tree={number}", "--json")]
        of = state[f"head.trees.{number - 1}.cluster_of"].tolist()
        assert [row["path"] for row in rows] == [[cluster // 4, cluster // 2, cluster] for cluster in of]
    lines = shown(f"--ckpt={high}")
    assert [line.split() for line in lines[1:5]] == [
        ["1", "2", "2"],
        ["2", "4", "2"],
        ["3", "8", "2-3"],
        ["labels", "20"],
    ]
    assert [path for _, path, *_ in clusters(lines)][5] == "1 > 2 > 5"


def test_names_go_out_as_they_are_in_one_line(trained, tmp_path, shown):
    odd = ["[x]", "[bold]b[/bold]", ":car:", "x" * 300, "[/]"]

    def rename(content):
        content["zoo"]["space"]["names"][: len(odd)] = odd

    ckpt = changed(trained, tmp_path / "odd.ckpt", rename)
    named = [name for *_, names, _ in clusters(shown(f"--ckpt={ckpt}", "--labels=0")) for name in names]
    assert set(odd) < set(named)
    assert [json.loads(line)["label"] for line in shown(f"--ckpt={ckpt}", "--json")][: len(odd)] == odd


def test_a_tree_that_is_not_built_yet_is_shown_with_a_note(trained, tmp_path, capsys):
    def back(content):
        content["state_dict"]["head.grown"] = torch.tensor(False)

    ckpt = changed(trained, tmp_path / "early.ckpt", back)
    main(["tree", f"--ckpt={ckpt}", "--json"])
    output = capsys.readouterr()
    assert len(output.out.splitlines()) == 20
    line_with(output.err, ckpt, "build_tree")
    main(["tree", f"--ckpt={trained}"])
    assert "build_tree" not in capsys.readouterr().err


def test_the_tree_of_an_inner_head_is_shown(trained, tmp_path, shown, capsys):
    wrapped = tmp_path / "wrapped.ckpt"
    main(["rerank", f"--ckpt={trained}", f"--out={wrapped}"])
    capsys.readouterr()
    assert shown(f"--ckpt={wrapped}", "--json") == shown(f"--ckpt={trained}", "--json")


def test_mistakes_end_in_one_line(trained, high, fit, fails, tmp_path):
    fails("tree", f"--ckpt={tmp_path / 'none.ckpt'}", names=[tmp_path / "none.ckpt"])
    line = fails("tree", f"--ckpt={high}", "--tree=3", names=["--tree=3"])
    assert 2 in numbers(line, without="--tree=3")  # trees
    for option in ("--tree=2", "--tree=0", "--clusters=-1", "--labels=-2"):
        fails("tree", f"--ckpt={trained}", option, names=[option])
    dense = fit("--final_test=false", "--trainer.max_epochs=1") / "checkpoints" / "best.ckpt"
    fails("tree", f"--ckpt={dense}", names=[dense, "Linear"])
