"""Experiments by name and by path."""

from pathlib import Path

from tests.support.errors import raises
from zoo.core.errors import UserError
from zoo.core.shipped import find_experiment, shipped_experiments


def test_a_name_finds_an_experiment_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_experiment("lsfa_eurlex") == shipped_experiments()["lsfa_eurlex"]
    assert find_experiment("experiments/lsfa_eurlex.yaml").is_file()


def test_a_path_takes_precedence_over_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("lsfa_eurlex", "mine.yaml"):
        (tmp_path / name).write_text("model: {}")
        assert find_experiment(name) == Path(name)


def test_an_unknown_experiment_is_named():
    with raises(UserError, "lsfa_eurlx", "lsfa_eurlex"):
        find_experiment("lsfa_eurlx")
    with raises(UserError, "folder/x.yaml"):
        find_experiment("folder/x.yaml")
