"""What a family of checkpoints is: how its config.json and its weights name what `regard.transformer` has.

Each file of `families/` describes one, nearly all of it data; here is the code that reads any of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from regard.errors import InputError
from regard.pretrained.config_json import Settings
from regard.pretrained.renames import Rename, back, every, fill
from regard.transformer import Config, Decoder, Encoder, EncoderDecoder

__all__ = ["ACTIVATIONS", "Constant", "Family", "Kind", "Layout", "config_of", "model_of", "settings_of_tokens"]

Kind = Literal["encoder", "decoder", "encoder-decoder"]
MODELS = {"encoder": Encoder, "decoder": Decoder, "encoder-decoder": EncoderDecoder}

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""config.json's names for the activations."""

ONLY: dict[str, tuple[object, ...]] = {
    "add_cross_attention": (False,),
    "chunk_size_feed_forward": (0,),
    "cross_attention_hidden_size": (None,),
    "is_decoder": (False,),
    "pruned_heads": ({},),
    "quantization_config": (None,),
    "tie_encoder_decoder": (False,),
}
"""Settings of any family that would change a model's numbers: no other value is supported."""

WITHOUT_EFFECT = frozenset(
    {
        # where the file comes from, and how it was written
        *(
            "_attn_implementation",
            "_attn_implementation_autoset",
            "_commit_hash",
            "_from_model_config",
            "_name_or_path",
        ),
        *("_num_labels", "architectures", "dtype", "finetuning_task", "id2label", "label2id", "name_or_path"),
        *(
            "num_labels",
            "problem_type",
            "task_specific_params",
            "tokenizer_class",
            "torch_dtype",
            "transformers_version",
        ),
        # training
        *("classif_dropout", "classifier_dropout", "gradient_checkpointing", "initializer_range", "output_past"),
        # what a call returns beside the result
        *("output_attentions", "output_hidden_states", "output_scores", "return_dict", "return_dict_in_generate"),
        *("cache_implementation", "torchscript", "use_bfloat16", "use_cache"),
        # the token ids read by `special`
        *("bos_token_id", "decoder_start_token_id", "eos_token_id", "forced_bos_token_id", "forced_eos_token_id"),
        *("pad_token_id", "sep_token_id"),
        # how text is generated: the business of whoever generates it
        *("bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping"),
        *("encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "length_penalty", "max_length"),
        *("min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "prefix"),
        *("remove_invalid_values", "repetition_penalty", "suppress_tokens", "temperature", "top_k", "top_p"),
        *("tf_legacy_loss", "typical_p"),
    }
)
"""Settings of any family that change no number of a forward pass."""


@dataclass(frozen=True)
class Constant:
    """A tensor that some files store and nobody learns: a mask, a table of positions. It must be what is calculated.

    Names may hold ``{n}``, for any number.
    """

    name: str
    is_right: Callable[[Tensor, Config], bool]
    what: str
    """What it must be, for the error."""

    def names(self, name: str) -> bool:
        """Whether a weight's name is this one."""
        return re.fullmatch(re.escape(self.name).replace(r"\{n\}", r"\d+"), name) is not None


def _as_it_is(name: str) -> str:
    return name


def _settled(config: Config, tensors: Mapping[str, Tensor]) -> Config:
    return config


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family of checkpoints. Names of weights are those without the prefix that a wrapper puts before them."""

    name: str
    """As people say it."""
    kind: Kind
    fields: Mapping[str, str]
    """config.json's names for fields of `Config`; those of an encoder-decoder's encoder."""
    decoder: Mapping[str, str] = field(default_factory=dict)
    """The same for the decoder, where its fields have names of their own."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What the family's own code takes where config.json says nothing."""
    always: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Config` that are alike in every checkpoint."""
    more: Callable[[Settings], Mapping[str, Any]] | None = None
    """Fields of `Config` that take more than a name."""
    reads: frozenset[str] = frozenset()
    """The settings which that looks at."""
    only: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Settings that would change the model's numbers: no other value is supported."""
    without_effect: frozenset[str] = frozenset()
    """Settings of how the model was trained, or of what stands on top of it."""
    parts: Mapping[str, tuple[str, Family]] = field(default_factory=dict)
    """Where config.json holds one config for its ``encoder`` and one for its ``decoder``: the ``model_type`` that each
    must have, and the family that reads it."""

    renames: Callable[[Config], Sequence[Rename]]
    """The table that makes every parameter of a model with this config."""
    prefix: str = ""
    """What a model with a head on top puts before the names of the weights inside."""
    respell: Callable[[str], str] = _as_it_is
    """Older names of weights as newer ones."""
    one: Callable[[Config], Sequence[tuple[str, ...]]] = lambda config: ()
    """Names that stand for one and the same weight; the first is the table's. A file may have any of them."""
    settle: Callable[[Config, Mapping[str, Tensor]], Config] = _settled
    """What only the weights can say about the config."""
    constants: Sequence[Constant] = ()
    on_top: tuple[str, ...] = ()
    """Beginnings of names of weights that do not change the model's result: left out, and listed."""


@dataclass(frozen=True)
class Layout:
    """Where a model's weights lay in the checkpoint, so that they can be put back."""

    renames: tuple[Rename, ...]
    spelled: Mapping[str, tuple[str, ...]]
    """For each name in the table those in the file: with a prefix, spelled as of old, or twice."""
    kept: Mapping[str, Tensor]
    """What the file holds beside, by its names there."""
    unused: tuple[str, ...]
    """Names of the weights on top of the model."""

    def tensors(self, model: torch.nn.Module) -> dict[str, Tensor]:
        """The model's weights, and what the file held beside them, by the file's names."""
        tensors = dict(self.kept)
        for name, tensor in back(model, self.renames).items():
            spelled = self.spelled[name]
            tensors |= {other: tensor.clone() if len(spelled) > 1 else tensor for other in spelled}
        return tensors


def config_of(family: Family, values: Mapping[str, Any], source: Path) -> Config:
    """The settings of a ``config.json``; its special tokens are read by `special`.

    Raises:
        InputError: a setting that is unknown, missing, or has a value that is not supported.
    """
    settings = Settings(values, source, family.defaults)
    _refuse_unknown(family, values, source)
    if family.parts:
        return _of_parts(family, settings)
    more = {} if family.more is None else family.more(settings)
    decoder = None
    if family.kind == "encoder-decoder":
        names = {ours: theirs for theirs, ours in family.fields.items()}
        names |= {ours: theirs for theirs, ours in family.decoder.items()}
        decoder = _config(family, settings, {theirs: ours for ours, theirs in names.items()}, more)
    fields = {name: value for name, value in more.items() if not name.startswith("decoder.")}
    return _config(family, settings, family.fields, {**fields, "decoder": decoder} if decoder else fields)


def settings_of_tokens(family: Family, values: Mapping[str, Any], source: Path) -> Settings:
    """The settings that name special tokens; a config of two parts leaves to its decoder's what it does not say."""
    if not family.parts:
        return Settings(values, source, family.defaults)
    _, part = family.parts["decoder"]
    said = [{name: value for name, value in each.items() if value is not None} for each in (values["decoder"], values)]
    return Settings(said[1], source, {**part.defaults, **said[0]})


def _refuse_unknown(family: Family, values: Mapping[str, Any], source: Path) -> None:
    """Refuse settings that would change the model's numbers, or might."""
    only = {**ONLY, "is_encoder_decoder": (family.kind == "encoder-decoder",), **family.only}
    known = {"model_type", *only, *family.fields, *family.decoder, *family.reads, *family.parts}
    known |= WITHOUT_EFFECT | family.without_effect
    for name, value in values.items():
        # True == 1 in Python, and a file that says one for the other means the same.
        if name in only and value not in only[name]:
            supported = " or ".join(repr(v) for v in only[name])
            raise InputError(f"{source}: {name} is {value!r}; for {family.name}, regard supports {supported}")
        if name not in known:
            raise InputError(
                f"{source}: regard does not know the setting {name!r} (here {value!r}), so it cannot tell whether "
                "the model would be right without it. If it does not matter, take it out of the file"
            )


def _of_parts(family: Family, settings: Settings) -> Config:
    """The config of a model whose config.json holds one for each of its two stacks."""
    found = {}
    for name, (kind, part) in family.parts.items():
        values = settings[name]
        if not isinstance(values, dict) or values.get("model_type") != kind:
            said = values.get("model_type") if isinstance(values, dict) else values
            raise InputError(
                f"{settings.source}: the {name} is of the model_type {said!r}; in a {family.name}, regard supports "
                f"{kind!r} there"
            )
        found[name] = config_of(part, values, Path(f"{settings.source} ({name})"))
    return replace(found["encoder"], vocab_size=found["decoder"].vocab_size, decoder=found["decoder"])


def _config(family: Family, settings: Settings, names: Mapping[str, str], more: Mapping[str, Any]) -> Config:
    fields: dict[str, Any] = {ours: settings[theirs] for theirs, ours in names.items()}
    if "activation" in fields:
        theirs = next(theirs for theirs, ours in names.items() if ours == "activation")
        activation = fields["activation"]
        if not isinstance(activation, str) or activation not in ACTIVATIONS:
            settings.refuse(theirs, f"supported are {', '.join(ACTIVATIONS)}")
        fields["activation"] = ACTIVATIONS[activation]
    fields |= {**family.always, **{name.removeprefix("decoder."): value for name, value in more.items()}}
    try:
        return Config(**fields)
    except (TypeError, ValueError) as error:
        renamed = [f"{ours} is {theirs} there" for theirs, ours in names.items() if f"{ours}=" in str(error)]
        raise InputError(f"{settings.source}: {error}" + (f" ({', '.join(renamed)})" if renamed else "")) from error


def model_of(
    family: Family, config: Config, tensors: Mapping[str, Tensor], *, dtype: torch.dtype, source: Path
) -> tuple[Encoder | Decoder | EncoderDecoder, Layout]:
    """A model with a checkpoint's weights, in evaluation mode, and where they lay.

    Raises:
        InputError: a weight is missing, left over, of another shape, or two that should be one.
    """
    spelled: dict[str, tuple[str, ...]] = {}
    named: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        current = family.respell(name.removeprefix(family.prefix))
        if current in named:
            raise InputError(f"{source} holds two weights for {current}; one of them is named {name}")
        named[current], spelled[current] = tensor, (name,)
    config = family.settle(config, named)
    table = family.renames(config)
    for names in family.one(config):
        _unite(names, named, spelled, source)
    kept = _constants(family, config, named, spelled, source)
    layers = {"n": config.num_layers, "m": (config.decoder or config).num_layers}
    _has_last_layers(table, layers, named, source)
    renames = tuple(every(table, layers))
    used = {name for rename in renames for name in rename.theirs}
    unused = sorted(name for name in named if name.startswith(family.on_top) and name not in used)
    kept |= {spelled[name][0]: named.pop(name).clone() for name in unused}
    try:
        with torch.device("meta"):
            model: Encoder | Decoder | EncoderDecoder = MODELS[family.kind](config)
    except RuntimeError as error:  # sizes whose product is no size any more
        raise InputError(f"the sizes of {config} make no model: {error}") from error
    fill(model, named, renames, dtype=dtype, source=source)
    return model.eval(), Layout(renames, {name: spelled[name] for name in used}, kept, tuple(unused))


def _unite(names: tuple[str, ...], named: dict[str, Tensor], spelled: dict[str, tuple[str, ...]], source: Path) -> None:
    """Make weights that are one and the same one, under the first of their names."""
    found = [name for name in names if name in named]
    if not found:
        return
    for name in found[1:]:
        if named[name].shape != named[found[0]].shape or not torch.equal(named[name], named[found[0]]):
            raise InputError(
                f"{source}: {spelled[found[0]][0]} and {spelled[name][0]} differ, but by the config they are one "
                "weight (tie_word_embeddings)"
            )
    tensor = named[found[0]]
    spelled[names[0]] = tuple(other for name in found for other in spelled[name])
    for name in found:
        del named[name]
    named[names[0]] = tensor


def _constants(
    family: Family,
    config: Config,
    named: dict[str, Tensor],
    spelled: Mapping[str, tuple[str, ...]],
    source: Path,
) -> dict[str, Tensor]:
    """Take the constants out of the weights, each checked."""
    kept = {}
    for name in list(named):
        for constant in family.constants:
            if constant.names(name):
                if not constant.is_right(named[name], config):
                    raise InputError(f"{source}: {name} is not {constant.what}; regard supports nothing else there")
                kept[spelled[name][0]] = named.pop(name).clone()
                break
    return kept


def _has_last_layers(
    table: Sequence[Rename], layers: Mapping[str, int], named: Mapping[str, Tensor], source: Path
) -> None:
    """Refuse a number of layers before anything is built: a wrong one could be one that takes hours."""
    for rename in table:
        if rename.ours.endswith("feed_forward.down.weight"):
            letter = next(letter for letter in layers if f"{{{letter}}}" in rename.ours)
            last = rename.theirs[0].replace(f"{{{letter}}}", str(layers[letter] - 1))
            if last not in named:
                raise InputError(f"{source} lacks {last}")
