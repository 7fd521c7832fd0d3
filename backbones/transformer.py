"""Hugging Face encoders."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from backbones.base import Backbone, Features
from backbones.long_documents import Combine, encode_windows
from datamodules.batch import Batch, LabelSpace
from datamodules.prepare.hub import SETTINGS_ALONE, load_model, quiet, reason
from zoo.core.errors import UserError, check_low
from zoo.core.exporting import is_exporting

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

Attention = Literal["eager", "sdpa", "flash_attention_2"]  # the library takes any name, and loads it from the hub
DEFAULT = "FacebookAI/roberta-base"
SETTING = "`name`"
NOT_STORED = {"_name_or_path", "auto_map"}
# Parameters that a forward pass on a single text does not use: DDP would wait for their gradients.
UNUSED = {
    "xlnet": {"mask_emb", "seg_embed", "r_s_bias"},
    "longformer": {"query_global", "key_global", "value_global"},
}


class Transformer(Backbone):
    """A Hugging Face encoder, such as BERT, RoBERTa, XLNet, DistilBERT, MiniLM, DeBERTa or ModernBERT.

    The data uses the encoder's tokenizer, unless `data.tokenizer` names another.

    Args:
        name: model on the Hugging Face hub, or a local folder, which is used offline; without pretrained weights also a
            model type, such as `bert`.
        pretrained: load the pretrained weights; otherwise they are random.
        config: settings that override those of the model, such as `{attention_probs_dropout_prob: 0.0}`.
        pooling: document vector: the state of the classification token, or the mean over all tokens.
        combine: how the vectors of a long document's windows (`data.windows`) become that of the document: `mean`,
            weighted by their numbers of tokens, or `max`.
        attention: attention implementation: `eager`, `sdpa` or `flash_attention_2`. Default: the library's choice.
        gradient_checkpointing: recompute layers in the backward pass: less memory, a third more time.
        first: read only the first tokens of a document, if another part of the model reads more. Default: all.
    """

    def __init__(
        self,
        space: LabelSpace,
        name: str = DEFAULT,
        pretrained: bool = True,
        config: dict[str, Any] | None = None,
        pooling: Literal["cls", "mean"] = "cls",
        combine: Combine = "mean",
        attention: Attention | None = None,
        gradient_checkpointing: bool = False,
        first: int | None = None,
    ) -> None:
        super().__init__()
        check_low(1, first=first)
        if combine not in get_args(Combine):
            raise UserError(f"`combine={combine}` is none of {', '.join(get_args(Combine))}")
        self.pooling, self.combine, self.first = pooling, combine, first
        settings = dict(config or {})
        if not pretrained:
            settings = {"vocab_size": space.vocab_size, "pad_token_id": space.pad_id} | settings
        self.encoder = load_encoder(name, find_config(name, settings, pretrained), pretrained, attention)
        self.config = self.encoder.config
        self.dim, self.num_layers = int(self.config.hidden_size), int(self.config.num_hidden_layers)
        positions = max_positions(self.encoder)
        self.max_length = None if first and first <= (positions or first) else positions
        self.cls_is_last = getattr(self.config, "summary_type", None) == "last"
        if first and self.cls_is_last and pooling == "cls":
            raise UserError(f"`first={first}` cuts off the classification token of {name}: set `pooling=mean`")
        if space.vocab_size > self.encoder.get_input_embeddings().num_embeddings:
            setting = "`data.tokenizer`" if pretrained else "vocab_size of `config`"
            raise UserError(
                f"the tokenizer has {space.vocab_size:,} tokens, more than the embedding of {name}: remove {setting}"
            )
        if gradient_checkpointing:
            with settings_errors(name):
                self.encoder.gradient_checkpointing_enable({"use_reentrant": False})

    @classmethod
    def own_tokenizer(cls, name: str = DEFAULT, pretrained: bool = True, **others: Any) -> str | None:
        return name if pretrained or not is_model_type(name) else None

    def forward(self, batch: Batch) -> Features:
        batch = batch.first(self.first)
        if batch.window and (is_exporting() or batch.window < batch.ids.shape[1]):
            return encode_windows(batch, self.encode, self.combine)
        return self.encode(batch)

    def encode(self, batch: Batch) -> Features:
        """Features of documents of one window."""
        pad = self.config.pad_token_id
        ids = batch.ids if pad is None else batch.ids.masked_fill(~batch.mask, pad)
        out = self.encoder(input_ids=ids, attention_mask=batch.mask.long(), output_hidden_states=True)
        # hidden_states[0] are the embeddings; hidden_states[-1] may lack the final norm of last_hidden_state.
        tokens = out.last_hidden_state * batch.mask.unsqueeze(-1)
        layers = (*out.hidden_states[1:-1], tokens)
        vectors = tuple(self.pool(layer, batch.mask) for layer in layers)
        return Features(tokens, batch.mask, vectors[-1], layers, vectors)

    def pool(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Document vectors (batch, dim) of token states."""
        lengths = mask.sum(1)
        if self.pooling == "mean":
            return torch.einsum("bt,btd->bd", mask.to(tokens.dtype), tokens) / lengths.clamp_min(1).unsqueeze(-1)
        if not self.cls_is_last:
            return tokens[:, 0]
        return tokens[torch.arange(tokens.shape[0], device=tokens.device), lengths - 1]

    def word_embeddings(self) -> list[nn.Embedding]:
        table = self.encoder.get_input_embeddings()
        return [table] if isinstance(table, nn.Embedding) else []

    def self_contained(self) -> dict[str, Any]:
        # All settings, also those at their defaults, which may differ in another version of the library.
        config = {key: value for key, value in plain(self.config.to_dict()).items() if key not in NOT_STORED}
        settings = {"name": self.config.model_type, "pretrained": False, "config": config}
        flash = str(self.config._attn_implementation).startswith("flash")  # needs a GPU
        return settings | ({"attention": None} if flash else {})


def is_model_type(name: str) -> bool:
    """Whether this is a model type, such as `bert`, and not a model."""
    from transformers import CONFIG_MAPPING  # takes seconds to import

    return name in CONFIG_MAPPING


def find_config(name: str, settings: dict[str, Any], pretrained: bool) -> PretrainedConfig:
    """Config of a model or model type, with `settings` applied."""
    from transformers import CONFIG_MAPPING, AutoConfig

    base: PretrainedConfig
    given: dict[str, Any] = {}

    def load(source: str, local_files_only: bool) -> tuple[PretrainedConfig, dict[str, Any]]:
        if Path(source).is_dir() and not (Path(source) / "config.json").is_file():
            raise UserError("it has no config.json")
        found = AutoConfig.from_pretrained(source, local_files_only=local_files_only, trust_remote_code=False)
        return found, found.get_config_dict(source, local_files_only=local_files_only)[0]

    if SETTINGS_ALONE.get():
        check_self_contained(name, pretrained, settings)
    if not pretrained and is_model_type(name):
        base = CONFIG_MAPPING[name]()
    else:
        base, given = load_model(name, load, "encoder", SETTING)
    check_settings(base, settings, known=bool(given))
    with settings_errors(name):
        config = type(base)(**given | settings)  # built again, since some settings are derived from others
    if config.is_encoder_decoder:
        raise UserError(f"{name} has a decoder: set {SETTING} to an encoder, such as {DEFAULT}")
    return config


def check_self_contained(name: str, pretrained: bool, settings: dict[str, Any] | None) -> None:
    """Refuse settings from a checkpoint that would load something else: weights, code, or a model within the model."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    )

    if pretrained or name not in {
        *MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        *MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    }:
        raise UserError(
            f"the checkpoint must not load {name!r}, which is not a type of text model such as bert; if you trust it: "
            "`trust=backbones`"
        )
    for key in settings or {}:
        if re.search("attn_implementation|auto_map|quantization|backbone|timm|kernel", str(key)):
            raise UserError(f"a checkpoint must not set {str(key)[:80]} of {name}")


def check_settings(config: PretrainedConfig, settings: dict[str, Any], known: bool) -> None:
    """Refuse settings that the encoder does not have; the library would accept them silently.

    The settings of a model type are not all `known`: only those that resemble others are refused.
    """
    if "transformers_version" in settings:  # a complete config, from a checkpoint
        return
    for key in settings:
        close = difflib.get_close_matches(key, config.to_dict(), n=1)
        if not hasattr(config, key) and (known or close):
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise UserError(f"`config`: {config.model_type} has no setting {key!r}{meant}")


@contextmanager
def settings_errors(name: str) -> Iterator[None]:
    """Turn errors about settings that do not fit together into one line."""
    try:
        with quiet():
            yield
    except Exception as error:  # each encoder raises its own
        options = "`config`, `attention` and `gradient_checkpointing`"
        raise UserError(f"{name} cannot be built with these settings ({options}): {reason(error)}") from error


def load_encoder(name: str, config: PretrainedConfig, pretrained: bool, attention: str | None) -> PreTrainedModel:
    """Build the encoder in single precision, without its pooler, and with unused parameters frozen."""
    from transformers import AutoModel

    chosen = {"dtype": torch.float32} | ({} if attention is None else {"attn_implementation": attention})
    with settings_errors(name), torch.device("meta" if pretrained else "cpu"):
        # This checks the settings before weights are loaded.
        model = AutoModel.from_config(config, trust_remote_code=False, **chosen)
    if pretrained:
        model = load_weights(name, partial(AutoModel.from_pretrained, config=config, **chosen))
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    for path, parameter in model.named_parameters():
        if UNUSED.get(config.model_type, set()) & set(path.split(".")):
            parameter.requires_grad = False
    return model.train()


def load_weights(name: str, load: Callable[..., Any]) -> PreTrainedModel:
    """Load all weights; refuse missing or mismatched ones, which the library would replace by random numbers."""
    model, report = load_model(
        name, partial(load, output_loading_info=True, ignore_mismatched_sizes=True), "encoder", SETTING
    )
    wrong = {key: "is missing" for key in report["missing_keys"] if not key.startswith("pooler.")}
    for key, there, here in report["mismatched_keys"]:
        wrong[key] = f"has shape {tuple(there)}, not {tuple(here)}"
    if wrong:
        key = min(wrong)
        raise UserError(f"{len(wrong):,} weights of {name} do not fit its settings: {key} {wrong[key]}")
    return model


def max_positions(encoder: nn.Module) -> int | None:
    """Number of position embeddings; None if positions are relative."""
    for path, part in encoder.named_modules():
        if isinstance(part, nn.Embedding) and path.endswith("position_embeddings"):
            # RoBERTa and its relatives count from the padding id.
            return part.num_embeddings - (0 if part.padding_idx is None else part.padding_idx + 1)
    return None


def plain(value: Any) -> Any:
    """Convert to types that a checkpoint may contain."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
