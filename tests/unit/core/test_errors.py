"""Messages name settings as Python does; the command line prints them as its options."""

import pytest

from backbones import BiLSTM, Bow, PerLevel
from datamodules import Sample
from heads import Linear
from tests.support.documents import label_space
from tests.support.errors import assert_message
from zoo.commands.verbs import as_options, explain, run_command
from zoo.core.errors import UserError

SPACE = label_space([2, 1], 3, vocab_size=5)


def caught(action) -> UserError:
    with pytest.raises(UserError) as error:
        action()
    return error.value


@pytest.mark.parametrize(
    ("action", "python", "option"),
    [
        (lambda: Sample(max_length=0), "`max_length=0`", "--data.max_length=0"),
        (lambda: Bow(SPACE, dim=0), "`dim=0`", "--model.backbone.dim=0"),
        (lambda: Linear(3, SPACE, hidden=0), "`hidden=0`", "--model.head.hidden=0"),
    ],
)
def test_settings_get_the_prefix_of_the_class_that_rejects_them(action, python, option):
    error = caught(action)
    assert_message(str(error), python, 1)
    assert_message(explain(error), option, 1)


def test_settings_of_other_and_inner_classes():
    vectors = BiLSTM(SPACE, embed_dim=3).embedding.weight.new_zeros(5, 2)
    levels = PerLevel(SPACE, lambda space: BiLSTM(space, embed_dim=3), levels=1)
    assert_message(explain(caught(lambda: levels.load_vectors(vectors))), "--model.backbone.encoder.embed_dim=2")
    message = explain(caught(lambda: Bow(SPACE, dim=3).load_vectors(vectors)))
    assert_message(message, "--model.backbone.dim=2", "--data.vectors")


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("`data=SparseFiles`", "--data=SparseFiles"),
        ("`backbone=Bow`", "--model.backbone=Bow"),
        ("`stages.one-two.epochs`", "--stages.one-two.epochs"),
        ("`trainer.max_steps`", "--trainer.max_steps"),
        ("`name`", "`name`"),  # without a prefix
        ("`on_enter: [fit]` and `hf auth login`", "`on_enter: [fit]` and `hf auth login`"),
    ],
)
def test_backticks_that_become_options(text, option):
    code = "from zoo.core.errors import UserError\ndef fail(text): raise UserError(text)"
    for module, expected in (("callbacks.stages", option), ("zoo.commands.experiment", text)):  # a file has keys
        names = {"__name__": module}
        exec(code, names)
        assert as_options(caught(lambda names=names: names["fail"](text))) == expected


def test_commands_have_options_of_their_own():
    def read(*, path: str, max_length: int = 0) -> None:
        """Read something."""
        Sample(max_length=max_length, val_fraction=0.5 if path == "short" else 2)

    assert_message(str(caught(lambda: run_command(read, "read", ["--path=short"]))), "--max_length=0")
    assert_message(str(caught(lambda: run_command(read, "read", ["--path=long"]))), "`val_fraction=2`")
