import sys
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from zoo.cli import main

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
    monkeypatch.setattr("zoo.catalog.entry_points", lambda group: points.select(group=group))
    yield
    sys.modules.pop("my_plugin", None)


def shown(capsys):
    return {
        line.split()[0]: " ".join(line.split()[1:]) for line in capsys.readouterr().out.splitlines() if line.strip()
    }


def test_everything_is_listed_with_its_first_sentence(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    main(["list"])
    lines = shown(capsys)
    assert {"heads", "backbones", "datamodules", "callbacks", "experiments"} <= set(lines)
    assert lines["Linear"] == "One linear classifier for each label on the document's vector, all trained jointly"
    assert lines["BiLSTM"].startswith("Word vectors and one bidirectional LSTM layer")
    assert {"CNN", "TextFiles", "EurLex", "Reuters", "Sample", "RunReport", "joint_eurlex"} <= set(lines)
    assert not {"Head", "DenseHead", "Backbone", "TextDataModule"} & set(lines)


def test_plugins_are_listed_and_a_broken_one_stops_nobody(plugins, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    main(["list"])
    output = capsys.readouterr()
    assert "A head from elsewhere  [my_plugin]" in output.out
    assert "plug-in broken cannot be loaded" in output.err


def test_a_plugin_is_named_in_yaml_by_its_short_name(plugins, fit):
    folder = fit("--model.head=Borrowed", "--trainer.max_epochs=1")
    assert "my_plugin.Borrowed" in (folder / "config.yaml").read_text()


def test_help_names_all_commands(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("usage: python -m zoo")
    assert "predict (label documents)" in text
    with pytest.raises(SystemExit):
        main(["predict", "--help"])
    assert "Rank labels for documents" in capsys.readouterr().out
