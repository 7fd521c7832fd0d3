"""Stages: trainable parameters, parameter groups, checks before training, and exact resumes."""

import copy

import pytest
import torch
from torch import nn

from backbones import BiLSTM
from callbacks import Stage, StageSchedule
from callbacks.stages import check_pending, check_stages
from callbacks.transition import derive_seed, frozen_modules, resume_at_next_epoch
from datamodules import Sample
from datamodules.batch import LabelSpace
from heads import Linear, PrototypeTransfer
from tests.support.errors import raises
from zoo.core.errors import UserError
from zoo.training.module import ZooModule

SPACE = LabelSpace(["a", "b", "c"], [9, 8, 1], num_documents=12, vocab_size=5)


class Model(nn.Module):
    def __init__(self, head=None):
        super().__init__()
        self.backbone = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4))
        self.head = head or Linear(4, SPACE)


NAMES = ["backbone.0.weight", "backbone.1.weight", "backbone.1.bias", "head.classifier.weight", "head.classifier.bias"]


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
def test_trainable_globs_select_unfrozen_parameters(trainable, frozen, expected):
    model = Model()
    found = Stage("s", trainable=trainable).parameters(model, frozenset(frozen))
    assert list(found) == expected
    assert all(found[name] is model.get_parameter(name) for name in expected)


def test_frozen_modules_include_dropout_without_trained_siblings():
    def block():
        return nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Sequential(nn.Dropout()))

    model = nn.ModuleDict({"frozen": block(), "partly": block(), "trained": block(), "bare": nn.Dropout()})
    model["partly"].append(nn.Linear(2, 2))
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name in ("partly.3.bias", "trained.0.weight")
    names = {part: name for name, part in model.named_modules()}
    resting = frozen_modules(model)
    assert [names[part] for part in resting] == ["frozen", "frozen.0", "frozen.1", "frozen.2", "frozen.2.0", "partly.0"]
    model["frozen"][1].eval()  # by the model's own wish: nothing to be undone
    assert [names[part] for part in frozen_modules(model) if part not in resting] == []
    assert len(frozen_modules(model)) == len(resting) - 1


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


def test_one_group_without_settings():
    assert settings_by_name(Stage("s"), Model()) == (1, {name: {} for name in NAMES})


def test_later_groups_override_earlier_ones_and_the_stage():
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


def test_decay_biases_exempts_vectors_unless_a_group_overrides_it():
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
    ("stages", "names"),
    [
        ([Stage("a b")], ["'a b'"]),
        ([Stage("../up")], ["'../up'"]),
        ([Stage("best")], ["['best', 'last']"]),
        ([Stage("s", epochs=2, average_from=2)], ["'s'", "average_from=2"]),
        ([Stage("s", on_enter=["jump"])], ["'s'", "on_enter", "Linear", "'jump'"]),
        ([Stage("s", on_enter=["num_labels"])], ["'s'", "Linear", "'num_labels'"]),
        ([Stage("s", epochs=1, each_epoch=["jump"])], ["'s'", "each_epoch", "Linear", "'jump'"]),
        ([Stage("s", epochs=1, each_epoch=["rank"])], ["'s'", "each_epoch", "'rank'", "TransitionContext"]),
        ([Stage("s", epochs=1, documents="jump")], ["'s'", "documents", "Linear", "'jump'"]),
        ([Stage("s", epochs=1, trainable=["head.*", "tail.*"])], ["'s'", "trainable", "'tail.*'", "backbone."]),
        ([Stage("s", epochs=1, groups={"tail.*": {"lr": 1}})], ["'s'", "groups", "'tail.*'"]),
        ([Stage("s", epochs=1, trainable=["head.*"], groups={"backbone.*": {}})], ["'s'", "head.classifier.bias"]),
        ([Stage("s", on_enter=["rank"])], ["'s'", "on_enter", "'rank'", "TransitionContext"]),
        ([Stage("s", epochs=1, documents="forward")], ["'s'", "'forward'", "targets", "seed"]),
        ([Stage("s", epochs=1, trainable=[])], ["'s'"]),
        ([Stage("s", epochs=1, trainable=["backbone.0.*"])], ["'s'"]),  # frozen below
        ([Stage("s", epochs=1), Stage("t"), Stage("s")], ["s, t, s"]),
    ],
)
def test_invalid_stages_are_rejected(stages, names):
    with raises(UserError, *names):
        check(*stages, frozen=["backbone.0.weight"])


def test_later_stages_are_checked_before_training():
    with raises(UserError, "'late'", "jump"):
        check(Stage("early", epochs=1), Stage("late", on_enter=["jump"]))


def test_pending_transitions_must_be_planned():
    head = PrototypeTransfer(4, SPACE)
    with raises(UserError, "PrototypeTransfer", "`on_enter: [transfer]`"):
        check_pending(head, [Stage("only", epochs=1)])
    check_pending(head, [Stage("only", epochs=1), Stage("then", on_enter=["transfer"])])
    head.is_ready = True
    check_pending(head, [Stage("only", epochs=1)])


def test_step_seeds_are_unique_and_reproducible():
    places = [
        (seed, epoch, batch, rank) for seed in (0, 1) for epoch in range(9) for batch in range(99) for rank in (0, 1)
    ]
    seeds = [derive_seed(*place) for place in places]
    assert len(set(seeds)) == len(places)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeds == [derive_seed(*place) for place in places]
    assert derive_seed(1, 2) != derive_seed(2, 1)


def progress(ready, started, processed, completed):
    return {"ready": ready, "started": started, "processed": processed, "completed": completed}


def loops(epochs, batches, is_last):
    batch_progress = {"total": dict(batches), "current": dict(batches), "is_last_batch": is_last}
    epoch_progress = {"total": dict(epochs), "current": dict(epochs)}
    return {"loops": {"fit_loop": {"epoch_progress": epoch_progress, "epoch_loop.batch_progress": batch_progress}}}


def test_checkpoint_at_an_epochs_end_resumes_at_the_next_epoch():
    checkpoint = loops(progress(2, 2, 2, 1), progress(7, 7, 7, 6), is_last=True)
    assert resume_at_next_epoch(checkpoint) is True
    loop = checkpoint["loops"]["fit_loop"]
    assert loop["epoch_progress"] == {"total": progress(2, 2, 2, 2), "current": progress(2, 2, 2, 2)}
    assert loop["epoch_loop.batch_progress"] == {
        "total": progress(7, 7, 7, 6),
        "current": progress(0, 0, 0, 0),
        "is_last_batch": False,
    }


def test_checkpoint_within_an_epoch_is_unchanged():
    checkpoint = loops(progress(2, 2, 1, 1), progress(3, 3, 3, 2), is_last=False)
    before = copy.deepcopy(checkpoint)
    assert resume_at_next_epoch(checkpoint) is False
    assert checkpoint == before


def test_schedule_sets_the_stage_of_module_and_data():
    module, data = ZooModule(SPACE, lambda space: BiLSTM(space, embed_dim=3, hidden=2), Linear), Sample()
    assert (module.stage.name, data.stage) == ("main", None)
    schedule = StageSchedule([Stage("one", epochs=1), Stage("two", epochs=1)])
    module.schedule = data.schedule = schedule
    for schedule.index, name in enumerate(["one", "two"]):
        assert module.stage is schedule.stage
        assert module.stage.name == data.stage == name
    with pytest.raises(AttributeError):
        module.stage = Stage("other")


def test_the_metric_decides_whether_higher_is_better():
    assert Stage("s", monitor="val/PSP@5").is_better(2.0, 1.0)
    assert Stage("s", monitor="train/s/loss_epoch").is_better(1.0, 2.0)
