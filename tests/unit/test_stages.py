"""Stages as data, what is checked of them, and what makes a resume exact."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from callbacks import Stage
from callbacks.stages import check_pending, check_stages
from callbacks.transition import from_epoch_start, parts_at_rest, step_seed
from datamodules.batch import LabelSpace
from datamodules.errors import UserError
from heads import Linear, PrototypeTransfer

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


def test_parts_at_rest_train_nothing_and_hold_dropout_that_nothing_trained_shares():
    def block():
        return nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Sequential(nn.Dropout()))

    model = nn.ModuleDict({"frozen": block(), "partly": block(), "trained": block(), "bare": nn.Dropout()})
    model["partly"].append(nn.Linear(2, 2))
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name in ("partly.3.bias", "trained.0.weight")
    names = {part: name for name, part in model.named_modules()}
    resting = parts_at_rest(model)
    assert [names[part] for part in resting] == ["frozen", "frozen.0", "frozen.1", "frozen.2", "frozen.2.0", "partly.0"]
    model["frozen"][1].eval()  # by the model's own wish: nothing to be undone
    assert [names[part] for part in parts_at_rest(model) if part not in resting] == []
    assert len(parts_at_rest(model)) == len(resting) - 1


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


def test_weight_decay_can_be_taken_off_biases_and_norms_and_a_glob_still_wins():
    model = nn.ModuleDict(
        {"dense": nn.Linear(3, 3), "odd": nn.LayerNorm(3), "scale": nn.ParameterList([torch.ones(())])}
    )
    small = ("dense.bias", "odd.weight", "odd.bias", "scale.0")
    count, settings = settings_by_name(Stage("s", lr=0.1, decay_biases=False), model)
    assert settings == {"dense.weight": {"lr": 0.1}} | {name: {"lr": 0.1, "weight_decay": 0.0} for name in small}
    assert count == 2
    groups = {"odd.*": {"weight_decay": 0.3}, "dense.*": {"lr": 0.2}}
    _, settings = settings_by_name(Stage("s", decay_biases=False, groups=groups), model)
    assert settings == {
        "dense.weight": {"lr": 0.2},
        "dense.bias": {"lr": 0.2, "weight_decay": 0.0},
        "odd.weight": {"weight_decay": 0.3},
        "odd.bias": {"weight_decay": 0.3},
        "scale.0": {"weight_decay": 0.0},
    }
    made = torch.optim.AdamW(Stage("s", decay_biases=False).parameter_groups(dict(model.named_parameters())))
    decays = {id(p): group["weight_decay"] for group in made.param_groups for p in group["params"]}
    assert [decays[id(p)] for p in model.parameters()] == [0.01, 0.0, 0.0, 0.0, 0.0]


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
        Stage("b_3", epochs=1, each_epoch=["forward"]),
        Stage("c", epochs=1, documents="rank"),
        Stage("d", epochs=2, average_from=1, average_every=1),
        Stage("e", epochs=0, average_from=1),
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
        ([Stage("s", epochs=2, average_from=2)], "average_from=2 would never begin: its epochs are 0 to 1"),
        ([Stage("s", epochs=2, average_from=-1)], "stage 's': average_from=-1 would never begin"),
        ([Stage("s", average_from=-1)], "average_from=-1 would never begin"),
        ([Stage("s", epochs=2, average_every=0)], "average_every=0 must be 1 or more optimizer steps"),
        ([Stage("s", on_enter=["jump"])], "stage 's', on_enter: Linear has no method 'jump'"),
        ([Stage("s", on_enter=["num_labels"])], "Linear has no method 'num_labels'"),
        ([Stage("s", epochs=1, each_epoch=["jump"])], "stage 's', each_epoch: Linear has no method 'jump'"),
        ([Stage("s", epochs=1, each_epoch=["rank"])], "each_epoch: 'rank' does not take a TransitionContext"),
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
