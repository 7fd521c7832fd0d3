"""How an experiment names its stages and overrides their settings."""

from __future__ import annotations

import pytest
import yaml

from datamodules.errors import UserError
from zoo.parser import list_of_stages, override_stage, resolve_config, resolve_files


def stages():
    return [
        {"name": "head", "epochs": 3, "optimizer": {"class_path": "SGD", "init_args": {"lr": 0.1, "momentum": 0.9}}},
        {"name": "tune", "optimizer": "Adam", "groups": {"head": {"lr": 1}}},
    ]


@pytest.mark.parametrize(
    ("key", "value", "stage", "expected"),
    [
        ("stages.head.epochs", 5, 0, {"epochs": 5}),
        ("stages.tune.trainable", ["a", "b"], 1, {"trainable": ["a", "b"]}),
        ("stages.tune.lr", 0.1, 1, {"lr": 0.1}),
        (
            "stages.head.optimizer.lr",
            1,
            0,
            {"optimizer": {"class_path": "SGD", "init_args": {"lr": 1, "momentum": 0.9}}},
        ),
        ("stages.head.optimizer", "Adam", 0, {"optimizer": "Adam"}),
        ("stages.tune.optimizer.lr", 1, 1, {"optimizer": {"class_path": "Adam", "init_args": {"lr": 1}}}),
        ("stages.tune.groups.head.lr", 2, 1, {"groups": {"head": {"lr": 2}}}),
    ],
)
def test_a_key_overrides_one_setting_of_the_stage_it_names(key, value, stage, expected):
    given, before = stages(), stages()
    override_stage(given, key, value)
    assert given[stage] == before[stage] | expected
    assert given[1 - stage] == before[1 - stage]


@pytest.mark.parametrize(
    ("given", "key", "words"),
    [
        (stages(), "stages.tail.epochs", "stages.tail.epochs names no setting of a stage: the stages are head, tune"),
        (stages(), "stages.head", "a key is stages.NAME.SETTING"),
        (None, "stages.head.epochs", "the experiment has no stages"),
        ([], "stages.head.epochs", "the experiment has no stages"),
        (stages(), "stages.head.epoch", "a stage has no setting 'epoch'; it has name, epochs, trainable"),
        (
            stages(),
            "stages.head.lr_scheduler.gamma",
            "stage 'head' has no 'lr_scheduler' of its own; give it one first",
        ),
        (stages(), "stages.head.epochs.more", "stage 'head' has no 'epochs' of its own"),
    ],
)
def test_a_key_that_names_nothing_says_what_there_is(given, key, words):
    with pytest.raises(UserError) as error:
        override_stage(given, key, 1)
    assert words in str(error.value)


def test_stages_are_a_list_or_a_part_that_holds_one():
    assert list_of_stages("x.yaml", stages()) == stages()
    assert list_of_stages("x.yaml", {"stages": stages()}) == stages()


@pytest.mark.parametrize("value", ["head", 3, {}, {"stage": []}, {"stages": {"head": {}}}, ["head"], [{"epochs": 2}]])
def test_what_is_no_list_of_stages_is_refused_with_the_file(value):
    with pytest.raises(UserError, match=r"x\.yaml: `stages` must be a list of stages, each with a name"):
        list_of_stages("x.yaml", value)


@pytest.fixture
def resolved(tmp_path):
    """An experiment with a part that has stages, put together; returns its stages by name."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "stages.yaml").write_text(yaml.safe_dump({"stages": stages()}))
    (tmp_path / "out").mkdir()

    def resolve(content, overrides=None):
        path = tmp_path / "exp.yaml"
        path.write_text(yaml.safe_dump(content))
        target = resolve_config(str(path), tmp_path / "out", overrides or {})
        assert target.name == "exp.yaml"
        return {stage["name"]: stage for stage in yaml.safe_load(target.read_text())["stages"]}

    return resolve


def test_stages_of_a_part_are_overridden_in_the_experiment_and_then_from_elsewhere(resolved):
    content = {"stages.head.epochs": 7, "stages.tune.lr": 0.5, "stages": "parts/stages.yaml"}
    expected = stages()
    expected[0] |= {"epochs": 7}
    expected[1] |= {"lr": 0.25, "patience": 2}
    found = resolved(content, {"stages.tune.lr": 0.25, "stages.tune.patience": 2})
    assert list(found.values()) == expected


def test_a_dotted_key_reaches_the_settings_of_a_class(tmp_path):
    data = {"class_path": "Reuters", "init_args": {"max_length": 300, "batch_size": 32}}
    content = {"data": data, "data.max_length": 200, "data.init_args.batch_size": 8, "data.limit_val": 5}
    content |= {"model": {"head": {"class_path": "Linear"}}, "model.head.hidden": 16, "trainer.log_every_n_steps": 2}
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "out").mkdir()
    made = yaml.safe_load(resolve_config(str(tmp_path / "exp.yaml"), tmp_path / "out", {}).read_text())
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
def test_a_dotted_key_reaches_a_class_by_name_and_empty_settings(tmp_path, content, expected):
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "out").mkdir()
    made = yaml.safe_load(resolve_config(str(tmp_path / "exp.yaml"), tmp_path / "out", {}).read_text())
    assert made["data"] == expected


def test_a_setting_of_something_that_has_none_is_named(tmp_path):
    content = {"trainer": {"max_epochs": 3}, "trainer.max_epochs.most": 5}
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match=r"`trainer.max_epochs.most` is a setting of `max_epochs`, which is 3"):
        resolve_config(str(tmp_path / "exp.yaml"), tmp_path, {})


def test_stages_in_the_experiment_itself(resolved):
    assert resolved({"stages": stages(), "stages.tune.epochs": 1})["tune"]["epochs"] == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"stages": "parts/none.yaml"}, "no such configuration"),
        ({"stages": 3}, "must be a list of stages"),
        ({"stages": "parts/stages.yaml", "stages.tail.lr": 1}, "the stages are head, tune"),
        ({"stages.head.lr": 1}, "the experiment has no stages"),
        ({"stages": "parts/stages.yaml", "stages.head.learning_rate": 1}, "no setting 'learning_rate'"),
        ({"stage": []}, "did you mean 'stages'?"),
    ],
)
def test_a_mistake_about_stages_in_an_experiment_is_named(resolved, content, words):
    with pytest.raises(UserError) as error:
        resolved(content)
    assert words in str(error.value)


def test_arguments_that_override_stages_go_into_the_experiment(tmp_path):
    (tmp_path / "exp.yaml").write_text(yaml.safe_dump({"stages": stages()}))
    config, name = f"--config={tmp_path / 'exp.yaml'}", "--name=x"
    argv = [
        "fit",
        config,
        "--stages.head.epochs",
        "4",
        name,
        "--stages.tune.trainable=[a.*, b]",
        "--stages.tune.lr=1e-4",
    ]
    (tmp_path / "out").mkdir()
    verb, option, file, rest = resolve_files(argv, tmp_path / "out")
    assert (verb, option, rest) == ("fit", "--config", name)
    with open(file) as written:
        head, tune = yaml.safe_load(written)["stages"]
    assert head["epochs"] == 4
    assert tune["trainable"] == ["a.*", "b"]
    assert float(tune["lr"]) == 1e-4


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["fit", "--stages.head.epochs=1"], "give one with --config"),
        (["fit", "--config=exp.yaml", "--stages.head.trainable=[a"], "--stages.head.trainable is not valid YAML"),
    ],
)
def test_overrides_without_an_experiment_or_with_a_broken_value_are_refused(argv, words, tmp_path):
    with pytest.raises(UserError) as error:
        resolve_files(argv, tmp_path)
    assert words in str(error.value)
