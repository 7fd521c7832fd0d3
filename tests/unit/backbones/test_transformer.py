"""Encoders of every family: padding, layers, pooling and gradients, against the library and slow loops."""

import re

import pytest
import torch

from backbones import Transformer
from tests.support.encoders import FAMILIES, LAYERS, LENGTHS, PAD, SPACE, documents, encoder
from tests.support.errors import raises
from zoo.core.errors import UserError

every_family = pytest.mark.parametrize("kind", FAMILIES)
CHECKPOINTED = [kind for kind in FAMILIES if kind != "xlnet"]  # the library's XLNet cannot


def weighted(tensor):
    """A weighted sum of a tensor; its plain sum is constant after a layer norm."""
    return (tensor * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(2))).sum()


def plain_model(model):
    """The library's own model with the same weights."""
    from transformers import AutoModel

    plain = AutoModel.from_config(model.config)
    plain.load_state_dict(model.encoder.state_dict(), strict=False)
    return plain.eval()


def gradients(model, value):
    model.zero_grad()
    value.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@every_family
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_padding_does_not_change_features(kind, pooling):
    model = encoder(kind, pooling=pooling)
    tight, wide = model(documents()), model(documents(columns=6, filler=17))
    for layer in range(1, LAYERS + 1):
        one, other = tight.states(layer), wide.states(layer)
        assert torch.allclose(one, other[:, : one.shape[1]], atol=1e-6)
        assert not other[~wide.mask].any()
        assert other[wide.mask].any(1).all()
    for one, other in zip((*tight.vectors, tight.pooled), (*wide.vectors, wide.pooled), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@every_family
def test_layers_and_vectors_follow_the_config(kind):
    model = encoder(kind)
    features = model(documents())
    assert model.num_layers == len(features.layers) == len(features.vectors) == LAYERS
    assert features.layers[-1] is features.tokens
    assert features.vectors[-1] is features.pooled
    assert features.tokens.shape == (len(LENGTHS), max(LENGTHS), model.dim)
    assert features.pooled.shape == (len(LENGTHS), model.dim)


@every_family
def test_states_equal_those_of_the_library(kind):
    model = encoder(kind)
    plain, features, batch = plain_model(model), model(documents(columns=3)), documents()
    for row, length in enumerate(LENGTHS):
        out = plain(input_ids=batch.ids[row : row + 1, :length], output_hidden_states=True)
        for layer in range(1, LAYERS + 1):
            expected = out.last_hidden_state if layer == LAYERS else out.hidden_states[layer]
            assert torch.allclose(features.states(layer)[row, :length], expected[0], atol=1e-6)


@every_family
def test_cls_pooling_reads_the_classification_token(kind):
    features = encoder(kind)(documents(columns=3))
    for states, vectors in zip(features.layers, features.vectors, strict=True):
        for row, length in enumerate(LENGTHS):
            assert torch.equal(vectors[row], states[row, length - 1 if kind == "xlnet" else 0])


@every_family
def test_mean_pooling_averages_real_tokens(kind):
    features = encoder(kind, pooling="mean")(documents(columns=3))
    for states, vectors in zip(features.layers, features.vectors, strict=True):
        for row, length in enumerate(LENGTHS):
            expected = torch.stack([states[row, place] for place in range(length)]).mean(0)
            assert torch.allclose(vectors[row], expected, atol=1e-6)


@every_family
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_every_trainable_parameter_gets_a_gradient(kind, pooling):
    model = encoder(kind, pooling=pooling).train()
    found = gradients(model, weighted(model(documents()).pooled))
    for name, parameter in model.named_parameters():
        assert (name in found) == parameter.requires_grad, name
        # a softmax does not change when all keys are shifted
        assert name not in found or found[name].any() or "key.bias" in name or "k_lin.bias" in name, name


@every_family
def test_layers_do_not_depend_on_layers_above(kind):
    model, layer = encoder(kind), 1
    found = gradients(model, weighted(model(documents()).states(layer)))
    numbers = {int(match[1]) for name in found if (match := re.search(r"\blayers?\.(\d+)\.", name))}
    assert numbers == set(range(layer))
    assert not any("final_norm" in name for name in found)


@every_family
def test_max_length_is_the_number_of_positions(kind):
    absolute = {"bert", "roberta", "distilbert"}
    assert encoder(kind).max_length == (64 if kind in absolute else None)
    if kind in absolute:
        model, batch = encoder(kind), documents(columns=64 - max(LENGTHS))
        batch.ids[0], batch.mask[0] = 5, True
        assert model(batch).tokens.isfinite().all()


@pytest.mark.parametrize("kind", CHECKPOINTED)
def test_gradient_checkpointing_does_not_change_gradients(kind):
    calls, found = [], []
    for checkpointing in (False, True):
        model = encoder(kind, gradient_checkpointing=checkpointing).train()
        counted = next(p for name, p in model.named_modules() if "0." in name and isinstance(p, torch.nn.Linear))
        seen = []
        counted.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        found.append(gradients(model, weighted(model(documents()).pooled)))
        calls.append(len(seen))
    assert calls[1] == 2 * calls[0] > 0  # computed again on the way back
    assert found[0].keys() == found[1].keys()
    assert all(torch.allclose(found[0][name], found[1][name], atol=1e-6) for name in found[0])


@every_family
def test_checkpoint_settings_rebuild_the_encoder(kind):
    model = encoder(kind)
    settings = model.self_contained()
    assert "_name_or_path" not in settings["config"]
    again = Transformer(SPACE, **settings).eval()
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(documents()).tokens, model(documents()).tokens)
    assert again.self_contained() == settings
    assert again.max_length == model.max_length


def test_checkpoint_settings_are_plain_values(tmp_path):
    settings = encoder(config={"id2label": {0: "x", 1: "y"}}).self_contained()
    torch.save(settings, tmp_path / "settings.pt")
    assert torch.load(tmp_path / "settings.pt", weights_only=True) == settings


def test_checkpoints_keep_a_vocabulary_larger_than_the_tokenizers():
    from transformers import BertConfig

    # the library's default: a shorter form of the settings leaves it out
    model = encoder(config={"vocab_size": BertConfig().vocab_size, "pad_token_id": 0})
    again = Transformer(SPACE, **model.self_contained())
    again.load_state_dict(model.state_dict())
    assert again.config.pad_token_id == 0


def test_gpu_attention_is_not_saved():
    model = encoder(attention="eager")
    assert "attention" not in model.self_contained()
    model.config._attn_implementation = "flash_attention_2"
    assert model.self_contained()["attention"] is None


def test_config_and_attention_reach_the_model():
    model = encoder(config={"hidden_size": 8, "num_hidden_layers": 2, "hidden_act": "relu"}, attention="eager")
    assert (model.dim, model.num_layers) == (8, 2)
    assert model.config.hidden_act == "relu"
    assert model.config._attn_implementation == "eager"
    assert model.encoder.get_input_embeddings().padding_idx == PAD


def test_tokenizer_of_an_encoder():
    assert Transformer.own_tokenizer() == "FacebookAI/roberta-base"
    assert Transformer.own_tokenizer(name="some/model", pooling="mean") == "some/model"
    assert Transformer.own_tokenizer(name="some/model", pretrained=False) == "some/model"
    assert Transformer.own_tokenizer(name="bert", pretrained=False) is None


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlnet"])
@torch.no_grad()
def test_only_the_first_tokens_are_read(kind):
    batch = documents()
    model, whole = (encoder(kind, pooling="mean", first=first) for first in (3, None))
    assert model.max_length is None  # documents may be longer than it reads
    got, expected = model(batch), whole(batch.first(3))
    assert got.tokens.shape[1] == 3
    assert torch.equal(got.tokens, expected.tokens)
    assert torch.equal(got.pooled, expected.pooled)


def test_first_tokens_that_cannot_be_read_are_refused():
    assert encoder("bert", first=65).max_length == encoder("bert").max_length == 64
    with raises(UserError, "`first=0`"):
        encoder("bert", first=0)
    with raises(UserError, "`first=3`", "pooling=mean"):
        encoder("xlnet", first=3)
