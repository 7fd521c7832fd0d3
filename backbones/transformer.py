"""Any Hugging Face encoder."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from backbones.base import Backbone, Features
from datamodules.batch import Batch, LabelSpace
from datamodules.errors import UserError
from datamodules.hub import load_model, quiet, reason

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

DEFAULT = "FacebookAI/roberta-base"
OPTION = "--model.backbone.name"
# Parameters that a single text without masked words never reaches: DDP would wait for their gradients.
UNREACHED = {
    "xlnet": {"mask_emb", "seg_embed", "r_s_bias"},
    "longformer": {"query_global", "key_global", "value_global"},
}


class Transformer(Backbone):
    """A pretrained encoder such as BERT, RoBERTa, XLNet, DistilBERT, MiniLM, DeBERTa or ModernBERT.

    Its tokenizer is the corpus's too, where `--data.tokenizer` names no other.

    Args:
        name: a model of the Hugging Face hub, or a local folder, for which nothing is looked up elsewhere; without
            pretrained weights also a kind of model, such as `bert`.
        pretrained: take its weights; otherwise they are random.
        config: settings of the encoder in place of its own, such as `{attention_probs_dropout_prob: 0.0}`.
        pooling: the document's vector: the state of the token made for it, or the mean over all tokens.
        attention: how attention is computed: `eager`, `sdpa`, `flash_attention_2`; by default what is best here.
        gradient_checkpointing: compute layers again on the way back: less memory, a third more time.
    """

    def __init__(
        self,
        space: LabelSpace,
        name: str = DEFAULT,
        pretrained: bool = True,
        config: dict[str, Any] | None = None,
        pooling: Literal["cls", "mean"] = "cls",
        attention: str | None = None,
        gradient_checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.pooling = pooling
        settings = dict(config or {})
        if not pretrained:
            settings = {"vocab_size": space.vocab_size, "pad_token_id": space.pad_id} | settings
        found = find_config(name, settings, pretrained)
        self.encoder = load_encoder(name, found, pretrained, attention)
        self.config = self.encoder.config
        self.dim, self.num_layers = int(self.config.hidden_size), int(self.config.num_hidden_layers)
        self.max_length = longest(self.encoder)
        self.cls_is_last = getattr(self.config, "summary_type", None) == "last"
        if space.vocab_size > self.encoder.get_input_embeddings().num_embeddings:
            mend = "--data.tokenizer" if pretrained else "vocab_size of --model.backbone.config"
            raise UserError(f"the tokenizer has {space.vocab_size:,} tokens, more than {name} knows: leave {mend} out")
        if gradient_checkpointing:
            with settings_errors(name):
                self.encoder.gradient_checkpointing_enable({"use_reentrant": False})

    @classmethod
    def own_tokenizer(cls, name: str = DEFAULT, pretrained: bool = True, **others: Any) -> str | None:
        return name if pretrained or not is_kind(name) else None

    def forward(self, batch: Batch) -> Features:
        pad = self.config.pad_token_id
        ids = batch.ids if pad is None else batch.ids.masked_fill(~batch.mask, pad)
        out = self.encoder(input_ids=ids, attention_mask=batch.mask.long(), output_hidden_states=True)
        # The first of the hidden states are the embeddings; the last may lack a closing norm that the output has.
        tokens = out.last_hidden_state * batch.mask.unsqueeze(-1)
        layers = (*out.hidden_states[1:-1], tokens)
        vectors = tuple(self.pool(layer, batch.mask) for layer in layers)
        return Features(tokens, batch.mask, vectors[-1], layers, vectors)

    def pool(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """One vector for each document, (batch, dim)."""
        lengths = mask.sum(1)
        if self.pooling == "mean":
            return torch.einsum("bt,btd->bd", mask.to(tokens.dtype), tokens) / lengths.clamp_min(1).unsqueeze(-1)
        if not self.cls_is_last:
            return tokens[:, 0]
        return tokens[torch.arange(len(tokens), device=tokens.device), lengths - 1]

    def self_contained(self) -> dict[str, Any]:
        # all settings, not only those that differ from the library's defaults: another version may have others
        config = {key: value for key, value in plain(self.config.to_dict()).items() if key != "_name_or_path"}
        found = {"name": self.config.model_type, "pretrained": False, "config": config}
        flash = str(self.config._attn_implementation).startswith("flash")  # needs a GPU: elsewhere there is none
        return found | ({"attention": None} if flash else {})


def is_kind(name: str) -> bool:
    """Whether it names a kind of model, such as `bert`, and no model."""
    from transformers import CONFIG_MAPPING  # takes seconds to import

    return name in CONFIG_MAPPING


def find_config(name: str, settings: dict[str, Any], pretrained: bool) -> PretrainedConfig:
    """The settings of a folder, a name or a kind of model, changed as asked."""
    from transformers import CONFIG_MAPPING, AutoConfig

    base: PretrainedConfig
    given: dict[str, Any] = {}

    def load(source: str, local_files_only: bool) -> tuple[PretrainedConfig, dict[str, Any]]:
        if Path(source).is_dir() and not (Path(source) / "config.json").is_file():
            raise UserError("it has no config.json")
        found = AutoConfig.from_pretrained(source, local_files_only=local_files_only, trust_remote_code=False)
        return found, found.get_config_dict(source, local_files_only=local_files_only)[0]

    if not pretrained and is_kind(name):
        base = CONFIG_MAPPING[name]()
    else:
        base, given = load_model(name, load, "encoder", OPTION)
    check_settings(base, settings, known=bool(given))
    with settings_errors(name):
        config = type(base)(**given | settings)  # made anew: some settings follow from others
    if config.is_encoder_decoder:
        raise UserError(f"{name} has a decoder: choose an encoder, such as {DEFAULT}, with {OPTION}")
    return config


def check_settings(config: PretrainedConfig, settings: dict[str, Any], known: bool) -> None:
    """The library keeps whatever it is given: a setting that the encoder does not have is a mistake.

    Of a mere kind not all settings are `known`: there only those that look like others are refused.
    """
    if "transformers_version" in settings:  # all of a config, as a checkpoint has it
        return
    for key in settings:
        close = difflib.get_close_matches(key, config.to_dict(), n=1)
        if not hasattr(config, key) and (known or close):
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise UserError(f"--model.backbone.config: {config.model_type} has no setting {key!r}{meant}")


@contextmanager
def settings_errors(name: str) -> Iterator[None]:
    """Settings that do not fit each other, in one line."""
    try:
        with quiet():
            yield
    except Exception as error:  # of each encoder's own kind
        options = "config, attention and gradient_checkpointing of --model.backbone"
        raise UserError(f"{name} cannot be made with these settings ({options}): {reason(error)}") from error


def load_encoder(name: str, config: PretrainedConfig, pretrained: bool, attention: str | None) -> PreTrainedModel:
    """The encoder in single precision, without parts that nothing reaches."""
    from transformers import AutoModel

    chosen = {"dtype": torch.float32} | ({} if attention is None else {"attn_implementation": attention})
    with settings_errors(name), torch.device("meta" if pretrained else "cpu"):
        model = AutoModel.from_config(config, **chosen)  # also a trial of the settings, before weights are read
    if pretrained:
        model = load_weights(name, partial(AutoModel.from_pretrained, config=config, **chosen))
    if getattr(model, "pooler", None) is not None:
        model.pooler = None
    for path, parameter in model.named_parameters():
        if UNREACHED.get(config.model_type, set()) & set(path.split(".")):
            parameter.requires_grad = False
    return model.train()


def load_weights(name: str, load: Callable[..., Any]) -> PreTrainedModel:
    """The encoder with all its weights: the library would put random ones where some are missing or do not fit."""
    model, report = load_model(
        name, partial(load, output_loading_info=True, ignore_mismatched_sizes=True), "encoder", OPTION
    )
    wrong = {key: "are missing" for key in report["missing_keys"] if not key.startswith("pooler.")}
    for key, there, here in report["mismatched_keys"]:
        wrong[key] = f"are {tuple(there)} and not {tuple(here)}"
    if wrong:
        key = min(wrong)
        raise UserError(
            f"the weights of {name} are not what its settings say, {len(wrong):,} of them: those of {key} {wrong[key]}"
        )
    return model


def longest(encoder: nn.Module) -> int | None:
    """How many tokens it has positions for; None where they are relative."""
    for path, part in encoder.named_modules():
        if isinstance(part, nn.Embedding) and path.endswith("position_embeddings"):
            # RoBERTa and its kin begin to count after the padding id
            return part.num_embeddings - (0 if part.padding_idx is None else part.padding_idx + 1)
    return None


def plain(value: Any) -> Any:
    """Only what a checkpoint may hold."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
