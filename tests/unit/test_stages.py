"""Stages as data, what is checked of them, and how an experiment names and overrides them."""

from __future__ import annotations

import copy

import pytest
import yaml
from torch import nn

from callbacks import Stage
from callbacks.stages import check_pending, check_stages
from callbacks.transition import from_epoch_start, step_seed
from datamodules.batch import LabelSpace
from datamodules.errors import UserError
from heads import Linear, PrototypeTransfer
from zoo.parser import list_of_stages, override_stage, resolve_config, resolve_files

SPACE = LabelSpace(["a", "b", "c"], [9, 8, 1], num_documents=12, vocab_size=5)


class Model(nn.Module):
    def __init__(self, head=None):
        super().__init__()
        self.backbone = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4))
        self.head = head or Linear(4, SPACE)


NAMES = ["backbone.0.weight", "backbone.1.weight", "backbone.1.bias", "head.classifier.weight", "head.classifier.bias"]


# --- what a stage trains


@pytest.mark.parametrize(
    ("trainable", "frozen", "expected"),
    [
        (["*"], set(), NAMES),
        (["head.*"], set(), NAMES[3:]),
        (["*.bias"], set(), [NAMES[2], NAMES[4]]),
        (["head.*", "backbone.1.*", "*.bias"], set(), NAMES[1:]),
        (["*"], {NAMES[0]}, NAMES[1:]),
        ([NAMES[0], "head.*"], {NAMES[0]}, NAMES[3:]),
        (["HEAD.*", "head"], set(), []),
        ([], set(), []),
    ],
)
def test_parameters_are_those_that_a_glob_names_and_nothing_freezes(trainable, frozen, expected):
    model = Model()
    found = Stage("s", trainable=trainable).parameters(model, frozenset(frozen))
    assert list(found) == expected
    assert all(found[name] is model.get_parameter(name) for name in expected)


def settings_by_name(stage, model):
    """Each parameter's settings, as an optimizer would get them."""
    parameters = stage.parameters(model)
    name_of = {id(parameter): name for name, parameter in parameters.items()}
    groups = stage.parameter_groups(parameters)
    pairs = [
        (name_of[id(p)], {k: v for k, v in group.items() if k != "params"}) for group in groups for p in group["params"]
    ]
    assert sorted(name for name, _ in pairs) == sorted(parameters)  # every one once
    return len(groups), dict(pairs)


def test_without_settings_there_is_one_group_that_leaves_all_to_the_optimizer():
    assert settings_by_name(Stage("s"), Model()) == (1, {name: {} for name in NAMES})


def test_later_groups_win_over_earlier_ones_and_over_the_rate_of_the_stage():
    groups = {
        "head.*": {"lr": 0.2, "betas": (0, 0)},
        "*.bias": {"weight_decay": 0},
        "head.classifier.bias": {"lr": 0.3},
    }
    count, settings = settings_by_name(Stage("s", lr=0.1, groups=groups), Model())
    assert settings == {
        NAMES[0]: {"lr": 0.1},
        NAMES[1]: {"lr": 0.1},
        NAMES[2]: {"lr": 0.1, "weight_decay": 0},
        NAMES[3]: {"lr": 0.2, "betas": (0, 0)},
        NAMES[4]: {"lr": 0.3, "betas": (0, 0), "weight_decay": 0},
    }
    assert count == 4  # the first two share one


def test_equal_settings_from_different_globs_share_a_group():
    groups = {"backbone.0.*": {"lr": 0.5}, "head.classifier.weight": {"lr": 0.5}}
    assert settings_by_name(Stage("s", groups=groups), Model())[0] == 2


@pytest.mark.parametrize(
    ("mode", "value", "best", "expected"),
    [
        ("max", 0.0, None, True),
        ("min", 0.0, None, True),
        ("max", 2.0, 1.0, True),
        ("max", 1.0, 1.0, False),
        ("max", 0.5, 1.0, False),
        ("min", 0.5, 1.0, True),
        ("min", 1.0, 1.0, False),
        ("min", 2.0, 1.0, False),
    ],
)
def test_better_is_more_or_less_but_never_the_same(mode, value, best, expected):
    assert Stage("s", mode=mode).is_better(value, best) is expected


# --- what is checked


def check(*stages, head=None, frozen=()):
    model = Model(head)
    check_stages(list(stages), model, model.head, frozenset(frozen))


def test_stages_that_fit_are_accepted():
    check(
        Stage("a-1", epochs=2, trainable=["head.*"], groups={"*.bias": {"lr": 1}}),
        Stage("b_2", on_enter=["forward"], trainable=[]),
        Stage("c", epochs=1, documents="rank"),
    )
    check(Stage("x", epochs=1), Stage("y", on_enter=["transfer"]), head=PrototypeTransfer(4, SPACE))


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ([Stage("a b")], "stage 'a b': a name has letters"),
        ([Stage("")], "stage '': a name"),
        ([Stage("../up")], "a name has letters"),
        ([Stage("best")], "none of ['best', 'last']"),
        ([Stage("last")], "none of ['best', 'last']"),
        ([Stage("s", epochs=-1)], "cannot be negative"),
        ([Stage("s", patience=-1)], "cannot be negative"),
        ([Stage("s", on_enter=["jump"])], "stage 's', on_enter: Linear has no method 'jump'"),
        ([Stage("s", on_enter=["num_labels"])], "Linear has no method 'num_labels'"),
        ([Stage("s", epochs=1, documents="jump")], "Linear has no method 'jump'"),
        (
            [Stage("s", epochs=1, trainable=["head.*", "tail.*"])],
            "s', trainable: nothing matches 'tail.*'; there are back",
        ),
        ([Stage("s", trainable=["tail.*"])], "nothing matches 'tail.*'"),
        ([Stage("s", epochs=1, groups={"tail.*": {"lr": 1}})], "s', groups: nothing matches 'tail.*'"),
        ([Stage("s", epochs=1, trainable=["head.*"], groups={"backbone.*": {}})], "there are head.classifier.bias"),
        ([Stage("s", on_enter=["rank"])], "stage 's', on_enter: 'rank' does not take a TransitionContext"),
        ([Stage("s", epochs=1, documents="forward")], "'forward' does not take targets and a seed"),
        ([Stage("s", epochs=1, trainable=[])], "nothing to train"),
        ([Stage("s", epochs=1, trainable=["backbone.0.*"])], "nothing to train"),
        ([Stage("s", epochs=1), Stage("t"), Stage("s")], "stage names must differ: s, t, s"),
    ],
)
def test_a_mistake_in_a_stage_is_one_line_that_names_it(stages, words):
    with pytest.raises(UserError) as error:
        check(*stages, frozen=["backbone.0.weight"])
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_later_stage_is_checked_before_the_first_one_runs():
    with pytest.raises(UserError, match="stage 'late'"):
        check(Stage("early", epochs=1), Stage("late", on_enter=["jump"]))


def test_a_head_that_needs_a_transition_says_so():
    head = PrototypeTransfer(4, SPACE)
    with pytest.raises(UserError) as error:
        check_pending(head, [Stage("only", epochs=1)])
    assert "PrototypeTransfer needs a stage with `on_enter: [transfer]`" in str(error.value)
    check_pending(head, [Stage("only", epochs=1), Stage("then", on_enter=["transfer"])])
    head.is_ready = True
    check_pending(head, [Stage("only", epochs=1)])


# --- what makes a resume exact


def test_seeds_differ_between_batches_epochs_and_processes_and_come_again():
    places = [
        (seed, epoch, batch, rank) for seed in (0, 1) for epoch in range(9) for batch in range(99) for rank in (0, 1)
    ]
    seeds = [step_seed(*place) for place in places]
    assert len(set(seeds)) == len(places)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeds == [step_seed(*place) for place in places]
    assert step_seed(1, 2) != step_seed(2, 1)


def progress(ready, started, processed, completed):
    return {"ready": ready, "started": started, "processed": processed, "completed": completed}


def loops(epochs, batches, is_last):
    return {
        "loops": {
            "fit_loop": {
                "epoch_progress": {"total": dict(epochs), "current": dict(epochs)},
                "epoch_loop.batch_progress": {
                    "total": dict(batches),
                    "current": dict(batches),
                    "is_last_batch": is_last,
                },
            }
        }
    }


def test_a_checkpoint_from_an_epochs_end_resumes_at_the_next_start():
    checkpoint = loops(progress(2, 2, 2, 1), progress(7, 7, 7, 6), is_last=True)
    assert from_epoch_start(checkpoint) is True
    loop = checkpoint["loops"]["fit_loop"]
    assert loop["epoch_progress"] == {"total": progress(2, 2, 2, 2), "current": progress(2, 2, 2, 2)}
    assert loop["epoch_loop.batch_progress"] == {
        "total": progress(7, 7, 7, 6),
        "current": progress(0, 0, 0, 0),
        "is_last_batch": False,
    }


def test_a_checkpoint_from_inside_an_epoch_stays_as_it_is():
    checkpoint = loops(progress(2, 2, 1, 1), progress(3, 3, 3, 2), is_last=False)
    before = copy.deepcopy(checkpoint)
    assert from_epoch_start(checkpoint) is False
    assert checkpoint == before


# --- stages in experiments


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
