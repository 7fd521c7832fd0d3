"""Encoders from folders and from the hub: weights as they were saved, no needless look at the net, errors in a line."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from functools import partial

import pytest
import torch

from backbones import Transformer
from datamodules.errors import UserError
from datamodules.hub import load_model
from tests.encoders import SPACE, documents, encoder, save_bert

SMALL = replace(SPACE, vocab_size=10)  # fits the folder's vocabulary
TEXTS = ["the cat sat on the mat", "a dog and a cat"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("bert"), TEXTS)


@pytest.fixture
def folder(saved, tmp_path):
    """One to spoil."""
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


def refused(name, **settings):
    with pytest.raises(UserError) as caught:
        Transformer(SMALL, str(name), **settings)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 400
    return line


# --- from folders


@pytest.mark.usefixtures("no_net")
def test_weights_of_a_folder_without_a_look_at_the_net(saved):
    from transformers import BertModel

    made, plain = Transformer(SMALL, str(saved)), BertModel.from_pretrained(saved)
    weights = made.encoder.state_dict()
    assert not any(name.startswith("pooler") for name in weights)
    assert all(torch.equal(weights[name], value) for name, value in plain.state_dict().items() if name in weights)
    assert made.encoder.training


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_saved_in_half_precision_train_in_single(saved, tmp_path, dtype):
    from transformers import BertModel

    half = BertModel.from_pretrained(saved).to(dtype)
    half.save_pretrained(tmp_path)
    made = Transformer(SMALL, str(tmp_path))
    weights = made.encoder.state_dict()
    assert {value.dtype for value in made.parameters()} == {torch.float32}
    assert all(
        torch.equal(weights[name], value.float()) for name, value in half.state_dict().items() if name in weights
    )
    again = Transformer(SMALL, **made.self_contained())
    assert {value.dtype for value in again.parameters()} == {torch.float32}


def test_a_folder_saved_without_a_pooler_or_with_a_head_of_its_own(saved, tmp_path):
    from transformers import BertConfig, BertForMaskedLM

    BertForMaskedLM(BertConfig.from_pretrained(saved)).save_pretrained(tmp_path)
    made = Transformer(SMALL, str(tmp_path)).eval()
    assert made(documents_of(10)).tokens.isfinite().all()


def documents_of(vocabulary):
    batch = documents()
    return replace(batch, ids=batch.ids % vocabulary)


def test_a_folder_of_the_home(saved, monkeypatch):
    monkeypatch.setenv("HOME", str(saved.parent))
    assert Transformer(SMALL, f"~/{saved.name}").dim == 16


def test_random_weights_with_the_settings_of_a_folder(saved):
    made = Transformer(SMALL, str(saved), pretrained=False)
    trained = Transformer(SMALL, str(saved)).encoder.state_dict()["encoder.layer.0.output.dense.weight"]
    assert made.dim == 16
    assert made.config.vocab_size == 10
    assert not torch.equal(made.encoder.state_dict()["encoder.layer.0.output.dense.weight"], trained)


def test_settings_in_place_of_the_folder_s(saved):
    made = Transformer(SMALL, str(saved), config={"num_hidden_layers": 2, "hidden_dropout_prob": 0.3})
    assert made.num_layers == 2
    assert made.encoder.embeddings.dropout.p == 0.3


def test_settings_that_follow_from_others_are_made_anew(tmp_path):
    from transformers import ModernBertConfig

    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 4}
    ModernBertConfig(**sizes, vocab_size=20, pad_token_id=0).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["layer_types"]  # as the hub has it
    (tmp_path / "config.json").write_text(json.dumps(config | {"global_attn_every_n_layers": 2}))
    made = Transformer(SMALL, str(tmp_path), pretrained=False, config={"num_hidden_layers": 3})
    assert made.config.layer_types == ["full_attention", "sliding_attention", "full_attention"]
    assert Transformer(SMALL, **made.self_contained()).config.layer_types == made.config.layer_types


# --- what goes wrong


def test_no_such_folder(tmp_path):
    for name in (tmp_path / "none", "./none", "~/none", "a/b/c"):
        assert refused(name).startswith(f"no encoder '{name}': there is no such folder")


def test_a_folder_without_a_config_or_with_a_broken_one(folder):
    (folder / "config.json").write_text("{")
    assert "not a valid JSON" in refused(folder)
    (folder / "config.json").write_text('{"model_type": "of tomorrow"}')
    assert "of tomorrow" in refused(folder)
    (folder / "config.json").unlink()
    assert "it has no config.json" in refused(folder)


def test_a_folder_without_weights_or_with_broken_ones(folder):
    (folder / "model.safetensors").write_text("hello")
    assert refused(folder).startswith("no encoder")
    (folder / "model.safetensors").unlink()
    assert "no file named model.safetensors" in refused(folder)


def test_weights_of_another_kind_are_not_random_ones(folder):
    line = refused(edit(folder, model_type="distilbert", architectures=["DistilBertModel"]))
    assert "are not what its settings say" in line
    assert "are missing" in line


def test_weights_of_another_size(folder):
    assert "are (24,) and not (32,)" in refused(edit(folder, intermediate_size=32))


def test_more_layers_than_there_are_weights_for(saved):
    assert "encoder.layer.3" in refused(saved, config={"num_hidden_layers": 4})


def test_settings_that_there_are_not(saved):
    line = refused(saved, config={"hiden_size": 3})
    assert line == "--model.backbone.config: bert has no setting 'hiden_size'; did you mean 'hidden_size'?"
    assert "no setting 'dropout'" in refused(saved, config={"dropout": 0.1})
    assert "did you mean 'hidden_size'" in refused("deberta-v2", pretrained=False, config={"hiden_size": 3})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"config": {"hidden_size": 15}}, "multiple"),
        ({"config": {"hidden_size": "wide"}}, "expected int, got str"),
        ({"attention": "fast"}, "fast"),
    ],
)
@pytest.mark.parametrize("pretrained", [True, False])
def test_settings_that_do_not_fit(saved, settings, words, pretrained):
    line = refused(saved, pretrained=pretrained, **settings)
    assert "cannot be made with these settings" in line
    assert words in line


def test_an_encoder_without_gradient_checkpointing():
    with pytest.raises(UserError, match="does not support gradient checkpointing"):
        encoder("xlnet", gradient_checkpointing=True)


def test_a_decoder_is_refused():
    assert "has a decoder" in refused("t5", pretrained=False)


def test_a_tokenizer_of_more_tokens(saved):
    with pytest.raises(UserError, match=r"has 5,000 tokens, more than .*: leave --data.tokenizer out"):
        Transformer(replace(SPACE, vocab_size=5000), str(saved))
    with pytest.raises(UserError, match="leave vocab_size of"):
        encoder(config={"vocab_size": 20})


# --- the hub


class Hub:
    """Stands in for the hub and the cache of what was got from it."""

    def __init__(self, cached=False, error=None):
        self.cached, self.error, self.asked, self.loaded = cached, error, 0, []

    def model_info(self, _, name, timeout):
        assert timeout <= 10
        self.asked += 1
        if self.error:
            raise self.error

    def load(self, source, local_files_only):
        self.loaded.append(local_files_only)
        if local_files_only and not self.cached:
            raise OSError("not in the cache")
        return source


@pytest.fixture
def hub(monkeypatch):
    def make(**settings):
        made = Hub(**settings)
        monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *args, **kw: made.model_info(*args, **kw))
        return made, partial(load_model, "some/model", made.load, "encoder", "--option")

    return make


def test_what_was_got_before_is_not_asked_for_again(hub):
    made, load = hub(cached=True)
    assert load() == "some/model"
    assert (made.asked, made.loaded) == (0, [True])


def test_what_was_not_is_got_from_the_hub(hub):
    made, load = hub()
    assert load() == "some/model"
    assert (made.asked, made.loaded) == (1, [True, False])


def test_a_hub_that_cannot_be_reached_is_asked_once(hub):
    made, load = hub(error=ConnectionError("Name or service not known"))
    with pytest.raises(UserError) as caught:
        load()
    assert (made.asked, made.loaded) == (1, [True])
    assert str(caught.value) == (
        "no encoder 'some/model': it is not on this machine, and the hub cannot be reached: get it once while online; "
        "a folder that has one can be given with --option"
    )


def test_what_the_hub_says(hub):
    from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError

    def told(error):
        with pytest.raises(UserError) as caught:
            hub(error=error)[1]()
        return str(caught.value)

    assert "nor such a model of the hub" in told(made_by(RepositoryNotFoundError))
    assert "hf auth login" in told(made_by(GatedRepoError))
    assert "HF_HUB_OFFLINE is set" in told(OfflineModeIsEnabled("offline"))


def made_by(kind):
    error = kind.__new__(kind)  # its constructor wants a response
    Exception.__init__(error, "no")
    return error
