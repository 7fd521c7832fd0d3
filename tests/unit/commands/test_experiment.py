"""Experiment files: parts, dotted keys and stage overrides."""

import pytest
import yaml

from tests.support.errors import raises
from zoo.commands.experiment import list_of_stages, override_stage, resolve_config, resolve_files
from zoo.core.errors import UserError


def sgd(**settings):
    return {"class_path": "SGD", "init_args": settings}


def stages():
    return [
        {"name": "head", "epochs": 3, "optimizer": sgd(lr=0.1, momentum=0.9)},
        {"name": "tune", "optimizer": "Adam", "groups": {"head": {"lr": 1}}},
    ]


@pytest.mark.parametrize(
    ("key", "value", "stage", "expected"),
    [
        ("stages.head.epochs", 5, 0, {"epochs": 5}),
        ("stages.tune.trainable", ["a", "b"], 1, {"trainable": ["a", "b"]}),
        ("stages.tune.lr", 0.1, 1, {"lr": 0.1}),
        ("stages.head.optimizer.momentum", 0.5, 0, {"optimizer": sgd(lr=0.1, momentum=0.5)}),
        ("stages.head.optimizer", "Adam", 0, {"optimizer": "Adam"}),
        ("stages.tune.optimizer.lr", 1, 1, {"optimizer": {"class_path": "Adam", "init_args": {"lr": 1}}}),
        ("stages.tune.groups.head.lr", 2, 1, {"groups": {"head": {"lr": 2}}}),
    ],
)
def test_a_key_overrides_one_setting_of_its_stage(key, value, stage, expected):
    given, before = stages(), stages()
    override_stage(given, key, value)
    assert given[stage] == before[stage] | expected
    assert given[1 - stage] == before[1 - stage]


@pytest.mark.parametrize(
    ("given", "key", "names"),
    [
        (stages(), "stages.tail.epochs", ["stages.tail.epochs", "head, tune"]),
        (stages(), "stages.head", ["stages.head"]),
        (None, "stages.head.epochs", ["stages.head.epochs"]),
        ([], "stages.head.epochs", ["stages.head.epochs"]),
        (stages(), "stages.head.epoch", ["'epoch'", "epochs"]),
        (stages(), "stages.head.lr_scheduler.gamma", ["'head'", "'lr_scheduler'"]),
        (stages(), "stages.head.epochs.more", ["stages.head.epochs.more", "`epochs`"]),
    ],
)
def test_unknown_keys_list_the_alternatives(given, key, names):
    with raises(UserError, *names):
        override_stage(given, key, 1)


def test_stages_are_a_list_or_a_mapping_that_holds_one():
    assert list_of_stages("x.yaml", stages()) == stages()
    assert list_of_stages("x.yaml", {"stages": stages()}) == stages()


@pytest.mark.parametrize("value", ["head", 3, {}, {"stage": []}, {"stages": {"head": {}}}, ["head"], [{"epochs": 2}]])
def test_invalid_stages_name_the_file(value):
    with raises(UserError, "x.yaml", "`stages`"):
        list_of_stages("x.yaml", value)


def resolved_file(folder, content, overrides=None):
    (folder / "exp.yaml").write_text(yaml.safe_dump(content))
    (folder / "out").mkdir()
    target = resolve_config(str(folder / "exp.yaml"), folder / "out", overrides or {})
    assert target.name == "exp.yaml"
    return yaml.safe_load(target.read_text())


@pytest.fixture
def resolved(tmp_path):
    """Stages of an experiment that may refer to parts/stages.yaml."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "stages.yaml").write_text(yaml.safe_dump({"stages": stages()}))
    return lambda content, overrides=None: resolved_file(tmp_path, content, overrides)["stages"]


def test_overrides_of_the_experiment_and_then_of_the_command_line(resolved):
    content = {"stages.head.epochs": 7, "stages.tune.lr": 0.5, "stages": "parts/stages.yaml"}
    expected = stages()
    expected[0] |= {"epochs": 7}
    expected[1] |= {"lr": 0.25, "patience": 2}
    found = resolved(content, {"stages.tune.lr": 0.25, "stages.tune.patience": 2})
    assert found == expected


def test_dotted_keys_reach_the_settings_of_a_class(tmp_path):
    data = {"class_path": "Reuters", "init_args": {"max_length": 300, "batch_size": 32}}
    content = {"data": data, "data.max_length": 200, "data.init_args.batch_size": 8, "data.limit_val": 5}
    content |= {"model": {"head": {"class_path": "Linear"}}, "model.head.hidden": 16, "trainer.log_every_n_steps": 2}
    made = resolved_file(tmp_path, content)
    settings = {"max_length": 200, "batch_size": 8, "limit_val": 5}
    assert made["data"] == {"class_path": "Reuters", "init_args": settings}
    assert made["model"] == {"head": {"class_path": "Linear", "init_args": {"hidden": 16}}}
    assert made["trainer"] == {"log_every_n_steps": 2}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"data": "Sample", "data.seed": 3}, {"class_path": "Sample", "init_args": {"seed": 3}}),
        ({"data": {"class_path": "A", "init_args": None}, "data.b": 3}, {"class_path": "A", "init_args": {"b": 3}}),
        ({"data.seed": 3}, {"seed": 3}),
    ],
)
def test_dotted_keys_of_class_names_and_empty_settings(tmp_path, content, expected):
    assert resolved_file(tmp_path, content)["data"] == expected


def test_settings_of_a_plain_value_are_rejected(tmp_path):
    with raises(UserError, "`trainer.max_epochs.most`", "`max_epochs`", 3):
        resolved_file(tmp_path, {"trainer": {"max_epochs": 3}, "trainer.max_epochs.most": 5})


def test_an_experiment_extends_another(tmp_path):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "stages.yaml").write_text(yaml.safe_dump({"stages": stages()}))
    base = {"stages": "stages.yaml", "stages.head.epochs": 7, "data": "Sample", "data.seed": 1}
    (tmp_path / "parts" / "base.yaml").write_text(yaml.safe_dump(base))
    content = {"extends": "parts/base.yaml", "stages.head.lr": 0.5, "data.seed": 2, "trainer": {"max_epochs": 3}}
    made = resolved_file(tmp_path, content, {"stages.head.patience": 1})
    head = stages()[0] | {"epochs": 7, "lr": 0.5, "patience": 1}
    assert made == {
        "stages": [head, stages()[1]],
        "data": {"class_path": "Sample", "init_args": {"seed": 2}},
        "trainer": {"max_epochs": 3},
    }


def test_a_section_replaces_that_of_the_extended_experiment(tmp_path):
    (tmp_path / "base.yaml").write_text(yaml.safe_dump({"data": {"class_path": "Reuters"}, "data.max_length": 9}))
    made = resolved_file(tmp_path, {"extends": "base.yaml", "data": "Sample"})
    assert made == {"data": "Sample"}


@pytest.mark.parametrize(("base", "names"), [("exp.yaml", ["exp.yaml"]), ("none.yaml", ["none.yaml"]), (3, ["3"])])
def test_what_cannot_be_extended(tmp_path, base, names):
    with raises(UserError, *names):
        resolved_file(tmp_path, {"extends": base})


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ({"stages": "parts/none.yaml"}, ["parts/none.yaml"]),
        ({"stages": 3}, ["`stages`"]),
        ({"stages": "parts/stages.yaml", "stages.tail.lr": 1}, ["head, tune"]),
        ({"stages.head.lr": 1}, ["stages.head.lr"]),
        ({"stages": "parts/stages.yaml", "stages.head.learning_rate": 1}, ["'learning_rate'"]),
        ({"stage": []}, ["'stage'", "stages"]),
    ],
)
def test_invalid_stages_in_an_experiment_are_rejected(resolved, content, names):
    with raises(UserError, *names):
        resolved(content)


def test_command_line_overrides_go_into_the_experiment(tmp_path):
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump({"stages": stages()}))
    config, name = f"--config={tmp_path / 'exp.yaml'}", "--name=x"
    overrides = ["--stages.tune.trainable=[a.*, b]", "--stages.tune.lr=1e-4"]
    (tmp_path / "out").mkdir()
    verb, option, file, rest = resolve_files(
        ["fit", config, "--stages.head.epochs", "4", name, *overrides], tmp_path / "out"
    )
    assert (verb, option, rest) == ("fit", "--config", name)
    with open(file) as written:
        head, tune = yaml.safe_load(written)["stages"]
    assert head["epochs"] == 4
    assert tune["trainable"] == ["a.*", "b"]
    assert float(tune["lr"]) == 1e-4


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["fit", "--stages.head.epochs=1"], "--config"),
        (["fit", "--stages.head.trainable=[a", "--config=exp.yaml"], "--stages.head.trainable"),
    ],
)
def test_overrides_need_an_experiment_and_valid_yaml(argv, name, tmp_path):
    with raises(UserError, name):
        resolve_files(argv, tmp_path)
