import sys
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from backbones import BiLSTM
from heads import Linear
from tests.support.output import line_with
from zoo.commands.main import SECTIONS, main

PLUGIN = '''
from heads import Linear


class Borrowed(Linear):
    """A head from elsewhere. With more to say."""
'''


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    (tmp_path / "my_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    points = EntryPoints(
        [EntryPoint("mine", "my_plugin", "zoo.plugins"), EntryPoint("broken", "no_such_module", "zoo.plugins")]
    )
    monkeypatch.setattr("zoo.core.parts.entry_points", lambda group: points.select(group=group))
    yield
    sys.modules.pop("my_plugin", None)


def shown(capsys):
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    return {first.rstrip(":"): " ".join(rest) for first, *rest in lines}


def test_classes_and_experiments_are_listed_with_their_first_sentence(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    main(["list"])
    lines = shown(capsys)
    assert {"heads", "backbones", "datamodules", "callbacks", "experiments"} <= set(lines)
    for kind in (Linear, BiLSTM):
        sentence = " ".join(str(kind.__doc__).split()).split(". ")[0].rstrip(".")
        assert lines[kind.__name__] == sentence
    assert {"CNN", "TextFiles", "EurLex", "Reuters", "Sample", "RunReport", "joint_eurlex"} <= set(lines)
    assert lines["Aapd"].endswith("(SGM, Yang et al. 2018)")
    assert not {"Head", "DenseHead", "Backbone", "TextDataModule"} & set(lines)


def test_plugins_are_listed_and_a_broken_one_is_skipped(plugins, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    main(["list"])
    output = capsys.readouterr()
    line_with(output.out, "Borrowed", "A head from elsewhere", "[my_plugin]")
    line_with(output.err, "broken", "no_such_module")


def test_yaml_can_use_the_short_name_of_a_plugin(plugins, fit):
    folder = fit("--model.head=Borrowed", "--trainer.max_epochs=1")
    assert "my_plugin.Borrowed" in (folder / "config.yaml").read_text()


def test_help_names_all_commands(capsys):
    main(["--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: zoo COMMAND")
    assert all(f"  {name} " in text for names in SECTIONS.values() for name in names)
    main(["predict", "--help"])
    text = capsys.readouterr().out
    assert [option for option in ("--ckpt", "--input", "--out", "--k", "--threshold") if option not in text] == []
