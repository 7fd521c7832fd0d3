"""Checkpoints from strangers: they run no code, write no files, and end in one line if they are damaged."""

import os
import sys
import zipfile

import pytest
import torch
import yaml

from tests.hostile.checkpoints import NAMES, TEXTS, attempt, mutate, write
from tests.support.errors import raises
from zoo.commands.experiment import config_of
from zoo.core.errors import UserError
from zoo.training.stored import FORMAT
from zoo.training.tagger import load

MUTATIONS = int(os.environ.get("ZOO_MUTATIONS", 200))


@pytest.fixture(params=["Linear"])
def ckpt(request, tmp_path):
    return write(tmp_path / "tiny.ckpt", request.param)


@pytest.fixture
def change(ckpt):
    """Apply a function to the content and the configuration of the checkpoint."""

    def apply(edit):
        content = torch.load(ckpt, weights_only=True)
        config = yaml.safe_load(content["zoo"]["config"])
        edit(content, config)
        content["zoo"]["config"] = yaml.safe_dump(config)
        torch.save(content, ckpt)
        return ckpt

    return apply


@pytest.mark.parametrize("model", NAMES)
def test_mutations_end_in_an_error_or_a_model_and_run_no_code(model, tmp_path):
    refused = mutate(model, MUTATIONS // len(NAMES), tmp_path)
    assert all(refused.values()), refused


def own_class(folder, monkeypatch):
    (folder / "my_trusted.py").write_text("from heads.linear import Linear\nclass Own(Linear): ...\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "my_trusted", raising=False)
    return "my_trusted.Own"


@pytest.mark.parametrize("as_text", [True, False])
def test_a_class_of_the_user_needs_trust(change, tmp_path, monkeypatch, as_text):
    name = own_class(tmp_path, monkeypatch)
    path = change(lambda _, config: config["model"].update(head=name if as_text else {"class_path": name}))
    with raises(UserError, path, name, "`trust=my_trusted`"):
        load(path, "cpu")
    assert "my_trusted" not in sys.modules
    assert type(load(path, "cpu", trust=["my_trusted"]).module.head).__name__ == "Own"
    with raises(UserError, "`trust=os`"):
        load(path, "cpu", trust=["os"])


@pytest.mark.parametrize(
    ("name", "pretrained", "config"),
    [
        ("{tmp}", True, {}),
        ("hostile/model", True, {}),
        ("hostile/model", False, {}),
        ("timm_wrapper", False, {}),
        ("bert", False, {"attn_implementation": "hostile/kernel"}),
        ("bert", False, {"auto_map": {"AutoModel": "hostile--model.Model"}}),
    ],
)
def test_an_encoder_of_a_checkpoint_loads_nothing_else(change, tmp_path, name, pretrained, config):
    settings = {"name": name.format(tmp=tmp_path), "pretrained": pretrained, "config": config}
    spec = {"class_path": "backbones.Transformer", "init_args": settings}
    path = change(lambda _, config: config["model"].update(backbone=spec))
    with raises(UserError, path, "the checkpoint must not" if not config else next(iter(config))):
        load(path, "cpu")
    with raises(UserError, path):
        config_of(str(path), "test", tmp_path)


def test_settings_of_a_run_may_not_say_where_files_are_written(change, tmp_path):
    def edit(content, config):
        config["data"]["init_args"]["cache_dir"] = str(tmp_path / "elsewhere")
        config["best"] = {"dirpath": str(tmp_path / "elsewhere"), "filename": "../best", "save_last": True}

    file = config_of(str(change(edit)), "fit", tmp_path)
    kept = yaml.safe_load(file.read_text())
    assert "elsewhere" not in file.read_text()
    assert kept["best"] == {"save_last": True}
    assert kept["data"]["init_args"] == {"num_documents": 50}


@pytest.mark.parametrize(
    "callback",
    [
        {"class_path": "callbacks.KeepPredictions", "init_args": {"folder": "/tmp"}},
        {"class_path": "pytorch_lightning.callbacks.ModelCheckpoint", "init_args": {"dirpath": "/tmp"}},
        {"class_path": "pytorch_lightning.callbacks.LambdaCallback", "init_args": {"on_fit_start": "os.abort"}},
    ],
)
def test_callbacks_of_a_checkpoint_write_no_files(change, tmp_path, callback):
    path = str(change(lambda _, config: config["trainer"].update(callbacks=[callback])))
    with raises(UserError, path, callback["class_path"]):
        config_of(path, "fit", tmp_path)
    config_of(path, "test", tmp_path)  # has no trainer section


def test_plain_callbacks_and_schedulers_of_lightning_and_torch_are_known(change, tmp_path):
    def edit(content, config):
        config["trainer"]["callbacks"] = [{"class_path": "pytorch_lightning.callbacks.EarlyStopping"}]
        config["trainer"]["callbacks"][0]["init_args"] = {"monitor": "val/P@1"}
        config["model"]["optimizer"] = {"class_path": "zoo.training.optimizers.RowAdam", "init_args": {"lr": 0.1}}
        config["model"]["lr_scheduler"] = {"class_path": "torch.optim.lr_scheduler.StepLR"}
        config["model"]["lr_scheduler"]["init_args"] = {"step_size": 1}
        config["stages"] = [{"name": "main", "epochs": 2, "optimizer": {"class_path": "torch.optim.SGD"}}]
        given.update(config)

    given = {}
    assert yaml.safe_load(config_of(str(change(edit)), "fit", tmp_path).read_text()) == given


def test_a_file_without_a_version_is_of_the_first_format(change):
    path = change(lambda content, _: content["zoo"].pop("format"))
    assert attempt(path) is None
    assert FORMAT > 1


@pytest.mark.parametrize(
    ("key", "value", "names"),
    [
        ("format", FORMAT + 1, [FORMAT + 1, "upgrade"]),
        ("format", "new", ["'new'"]),
        ("tokenizer", "{}", ["vocabulary"]),
        ("max_length", -1, ["vocabulary"]),
        ("windows", 0, ["windows"]),
        ("windows", 10**9, ["windows"]),
        ("space", {"names": []}, ["LabelSpace"]),
        ("config", "a: [", ["YAML"]),
        ("config", "a: 1", ["`model`"]),
    ],
)
def test_a_damaged_entry_is_named(ckpt, key, value, names):
    content = torch.load(ckpt, weights_only=True)
    content["zoo"][key] = value
    torch.save(content, ckpt)
    with raises(UserError, ckpt, *names):
        load(ckpt, "cpu")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("names", ["label 0"] * 12),
        ("counts", [1] * 11),
        ("counts", [1.0] * 12),
        ("reference_counts", [2**40] * 12),
        ("texts", ["one"]),
        ("pad_id", 30),
        ("vocab_size", 31),
        ("added", 13),
        ("propensity_a", float("nan")),
        ("propensity_b", -1.0),
    ],
)
def test_a_label_space_is_checked(change, field, value):
    with raises(UserError, "label space"):
        load(change(lambda content, _: content["zoo"]["space"].update({field: value})), "cpu")


@pytest.mark.parametrize(
    ("edit", "part"),
    [
        (lambda weight: weight.fill_(float("nan")), "NaN"),
        (lambda weight: weight.index_fill(0, torch.tensor([0]), -torch.inf), "NaN"),
        (lambda weight: weight[:-1], "shape"),
        (lambda weight: weight.int(), "torch.int32"),
        (lambda weight: weight.to_sparse(), "dense"),
        (lambda weight: [1.0], "dense"),
    ],
)
def test_weights_are_checked(change, edit, part):
    def apply(content, _):
        name = next(name for name in content["state_dict"] if name.startswith("head."))
        content["state_dict"][name] = edit(content["state_dict"][name])

    with raises(UserError, "head.", part):
        load(change(apply), "cpu")


def test_missing_and_unknown_weights_are_named(change):
    with raises(UserError, "extra"):
        load(change(lambda content, _: content["state_dict"].update(extra=torch.ones(1))), "cpu")
    with raises(UserError, "backbone.embedding.weight"):
        load(change(lambda content, _: content["state_dict"].pop("backbone.embedding.weight")), "cpu")


def test_a_wrong_checksum_is_found(ckpt):
    data = bytearray(ckpt.read_bytes())
    with zipfile.ZipFile(ckpt) as archive:
        entry = max(archive.infolist(), key=lambda one: one.file_size)
    data[entry.header_offset + 100 + entry.file_size // 2] ^= 1
    ckpt.write_bytes(data)
    assert torch.load(ckpt, weights_only=True)  # torch does not see it
    with raises(UserError, ckpt, entry.filename):
        load(ckpt, "cpu")


@pytest.mark.parametrize("ckpt", ["PLT"], indirect=True)
@pytest.mark.parametrize("cluster", [-1, 99, 0])
def test_a_damaged_label_tree_is_refused(change, cluster):
    def edit(content, _):
        clusters = next(v for name, v in content["state_dict"].items() if name.endswith("cluster_of"))
        clusters[-1] = cluster

    with raises(UserError, "label tree"):
        load(change(edit), "cpu")


@pytest.mark.parametrize("ckpt", ["OneVsRestSvm"], indirect=True)
@pytest.mark.parametrize(
    ("part", "edit"),
    [
        ("labels", lambda t: t.index_fill(0, torch.tensor([3]), 2**30)),
        ("labels", lambda t: t.index_fill(0, torch.tensor([3]), -1)),
        ("labels", lambda t: t.long()),
        ("labels", lambda t: t.flip(0)),
        ("starts", lambda t: t.flip(0)),
        ("starts", lambda t: t + 1),
        ("starts", lambda t: t[:-1]),
        ("starts", lambda t: t.float()),
        ("values", lambda t: t[:-1]),
        ("values", lambda t: t * torch.nan),
        ("values", lambda t: t.double()),
        ("bias", lambda t: t[:-1]),
        ("bias", lambda t: "x"),
    ],
)
def test_indices_of_an_svm_are_checked(change, part, edit):
    def apply(content, _):
        state = content["state_dict"]["head._extra_state"]
        state[part] = edit(state[part])

    with raises(UserError, "SVM"):
        load(change(apply), "cpu")


def test_nothing_of_the_process_changes(ckpt):
    from jsonargparse import _common

    before = dict(_common.parsing_settings)
    assert isinstance(load(ckpt, "cpu").tag(TEXTS), list)
    assert dict(_common.parsing_settings) == before
