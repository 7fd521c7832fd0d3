"""Pretrained encoders from folders: weights as saved, no network access, errors in one line."""

import json
import socket
from dataclasses import replace

import pytest
import torch

from backbones import Transformer
from tests.support.encoders import SPACE, documents, encoder, save_bert
from tests.support.errors import raises
from zoo.core.errors import UserError

SMALL = replace(SPACE, vocab_size=10)  # fits the folder's vocabulary
TEXTS = ["the cat sat on the mat", "a dog and a cat"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("bert"), TEXTS)


@pytest.fixture
def folder(saved, tmp_path):
    """A copy that a test may damage."""
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.fixture
def no_net(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("looked at the net")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, fail)
    monkeypatch.setattr(socket.socket, "connect", fail)


def edit(folder, **settings):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    return folder


def refused(name, *parts, **settings):
    with raises(UserError, *parts) as caught:
        Transformer(SMALL, str(name), **settings)
    assert len(str(caught.value)) < 400


@pytest.mark.usefixtures("no_net")
def test_folders_are_loaded_without_network_access(saved):
    from transformers import BertModel

    made, plain = Transformer(SMALL, str(saved)), BertModel.from_pretrained(saved)
    weights = made.encoder.state_dict()
    assert not any(name.startswith("pooler") for name in weights)
    assert all(torch.equal(weights[name], value) for name, value in plain.state_dict().items() if name in weights)
    assert made.encoder.training


def test_half_precision_weights_are_trained_in_single_precision(saved, tmp_path):
    from transformers import BertModel

    half = BertModel.from_pretrained(saved).to(torch.bfloat16)
    half.save_pretrained(tmp_path)
    made = Transformer(SMALL, str(tmp_path))
    weights = made.encoder.state_dict()
    assert {value.dtype for value in made.parameters()} == {torch.float32}
    assert all(
        torch.equal(weights[name], value.float()) for name, value in half.state_dict().items() if name in weights
    )
    again = Transformer(SMALL, **made.self_contained())
    assert {value.dtype for value in again.parameters()} == {torch.float32}


def test_folder_of_a_masked_language_model(saved, tmp_path):
    from transformers import BertConfig, BertForMaskedLM

    BertForMaskedLM(BertConfig.from_pretrained(saved)).save_pretrained(tmp_path)
    made = Transformer(SMALL, str(tmp_path)).eval()
    assert made(documents_of(10)).tokens.isfinite().all()


def documents_of(vocabulary):
    batch = documents()
    return replace(batch, ids=batch.ids % vocabulary)


def test_home_folder_is_expanded(saved, monkeypatch):
    monkeypatch.setenv("HOME", str(saved.parent))
    assert Transformer(SMALL, f"~/{saved.name}").dim == 16


def test_pretrained_false_keeps_the_config_only(saved):
    made = Transformer(SMALL, str(saved), pretrained=False)
    trained = Transformer(SMALL, str(saved)).encoder.state_dict()["encoder.layer.0.output.dense.weight"]
    assert made.dim == 16
    assert made.config.vocab_size == 10
    assert not torch.equal(made.encoder.state_dict()["encoder.layer.0.output.dense.weight"], trained)


def test_config_overrides_that_of_the_folder(saved):
    made = Transformer(SMALL, str(saved), config={"num_hidden_layers": 2, "hidden_dropout_prob": 0.3})
    assert made.num_layers == 2
    assert made.encoder.embeddings.dropout.p == 0.3


def test_derived_settings_are_recomputed(tmp_path):
    from transformers import ModernBertConfig

    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 4}
    ModernBertConfig(**sizes, vocab_size=20, pad_token_id=0).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["layer_types"]  # as the hub has it
    (tmp_path / "config.json").write_text(json.dumps(config | {"global_attn_every_n_layers": 2}))
    made = Transformer(SMALL, str(tmp_path), pretrained=False, config={"num_hidden_layers": 3})
    assert made.config.layer_types == ["full_attention", "sliding_attention", "full_attention"]
    assert Transformer(SMALL, **made.self_contained()).config.layer_types == made.config.layer_types


def test_missing_folder(tmp_path):
    for name in (tmp_path / "none", "./none", "~/none", "a/b/c"):
        refused(name, f"'{name}'")


def test_missing_or_broken_config(folder):
    (folder / "config.json").write_text("{")
    refused(folder, folder, "JSON")
    (folder / "config.json").write_text('{"model_type": "of tomorrow"}')
    refused(folder, "of tomorrow")
    (folder / "config.json").unlink()
    refused(folder, "config.json")


def test_missing_or_broken_weights(folder):
    (folder / "model.safetensors").write_text("hello")
    refused(folder, folder)
    (folder / "model.safetensors").unlink()
    refused(folder, "model.safetensors")


def test_weights_must_match_the_config(folder):
    refused(folder, "encoder.layer.3", config={"num_hidden_layers": 4})
    refused(edit(folder, intermediate_size=32), "(24,)", "(32,)")
    refused(edit(folder, model_type="distilbert", architectures=["DistilBertModel"]), folder)


def test_unknown_settings_are_rejected(saved):
    refused(saved, "`config`", "bert", "'hiden_size'", "'hidden_size'", config={"hiden_size": 3})
    refused(saved, "'dropout'", config={"dropout": 0.1})
    refused("deberta-v2", "'hidden_size'", pretrained=False, config={"hiden_size": 3})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"config": {"hidden_size": 15}}, "multiple"),
        ({"config": {"hidden_size": "wide"}}, "int"),
        ({"attention": "fast"}, "fast"),
    ],
)
@pytest.mark.parametrize("pretrained", [True, False])
def test_invalid_settings_are_rejected(saved, settings, words, pretrained):
    refused(saved, words, pretrained=pretrained, **settings)


def test_xlnet_has_no_gradient_checkpointing():
    with raises(UserError, "xlnet"):
        encoder("xlnet", gradient_checkpointing=True)


def test_decoders_are_rejected():
    refused("t5", "decoder", pretrained=False)


def test_vocabulary_smaller_than_the_tokenizers_is_rejected(saved):
    with raises(UserError, "5,000", "`data.tokenizer`"):
        Transformer(replace(SPACE, vocab_size=5000), str(saved))
    with raises(UserError, "vocab_size"):
        encoder(config={"vocab_size": 20})
