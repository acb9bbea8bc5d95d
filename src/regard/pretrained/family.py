"""A family of checkpoints: how keys of config.json and names of weights correspond to `regard.transformer`.

Each file of `families/` describes one family, nearly all of it data; this file holds the code that reads all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regard.errors import InputError
from regard.pretrained.config_json import ConfigJSON
from regard.pretrained.renames import Rename, Weight, expand_layers, export_weights, load_weights, values_of
from regard.transformer import Config, Decoder, Encoder, EncoderDecoder

ModelKind = Literal["encoder", "decoder", "encoder-decoder"]
MODEL_CLASSES = {"encoder": Encoder, "decoder": Decoder, "encoder-decoder": EncoderDecoder}

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""The activations by their names in config.json."""

SUPPORTED_VALUES: dict[str, tuple[object, ...]] = {
    "add_cross_attention": (False,),
    "chunk_size_feed_forward": (0,),
    "cross_attention_hidden_size": (None,),
    "is_decoder": (False,),
    "pruned_heads": ({},),
    "quantization_config": (None,),
    "tie_encoder_decoder": (False,),
}
"""Keys of any family that change a model's numbers, with the values that regard supports."""

IGNORED_KEYS = frozenset({
    # where the file comes from, and how it was written
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_from_model_config", "_name_or_path",
    "_num_labels", "architectures", "dtype", "finetuning_task", "id2label", "label2id", "name_or_path", "num_labels",
    "problem_type", "task_specific_params", "tokenizer_class", "torch_dtype", "transformers_version",
    # training
    "classif_dropout", "classifier_dropout", "gradient_checkpointing", "initializer_range", "output_past",
    # what a call returns besides the result
    "output_attentions", "output_hidden_states", "output_scores", "return_dict", "return_dict_in_generate",
    "cache_implementation", "torchscript", "use_bfloat16", "use_cache",
    # the token ids, which `special_tokens` reads
    "bos_token_id", "decoder_start_token_id", "eos_token_id", "forced_bos_token_id", "forced_eos_token_id",
    "pad_token_id", "sep_token_id",
    # how text is generated, which is no part of the model
    "bad_words_ids", "begin_suppress_tokens", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "length_penalty", "max_length", "min_length",
    "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "prefix", "remove_invalid_values",
    "repetition_penalty", "suppress_tokens", "temperature", "top_k", "top_p", "tf_legacy_loss", "typical_p",
})  # fmt: skip
"""Keys of any family that change no number of a forward pass."""


@dataclass(frozen=True)
class ConstantTensor:
    """A tensor that some files store and training never changes: a mask, a table of positions.

    Names may hold ``{n}``, for any number.
    """

    name: str
    is_expected: Callable[[Tensor, Config], bool]
    """Whether a tensor holds the values that the architecture gives it."""
    description: str
    """The expected values, for the error."""

    def matches(self, name: str) -> bool:
        """Whether a weight's name is the name of this constant."""
        return re.fullmatch(re.escape(self.name).replace(r"\{n\}", r"\d+"), name) is not None


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family of checkpoints. Names of weights lack the prefix that a model with a head puts before them."""

    name: str
    """The name in messages."""
    kind: ModelKind
    fields: Mapping[str, str]
    """Fields of `Config` by their keys in config.json; in an encoder-decoder the encoder's."""
    decoder_fields: Mapping[str, str] = field(default_factory=dict)
    """The same for the decoder, where it has keys of its own."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """The family's own values for keys that config.json lacks."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Config` that are the same in every checkpoint."""
    extra_config: Callable[[ConfigJSON], Mapping[str, Any]] | None = None
    """Computes the fields of `Config` that no single key gives."""
    extra_keys: frozenset[str] = frozenset()
    """The keys that `extra_config` reads."""
    supported: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Keys that change the model's numbers, with the values that regard supports."""
    ignored_keys: frozenset[str] = frozenset()
    """Keys about training, or about a head that is no part of the model."""
    submodels: Mapping[str, tuple[str, Family]] = field(default_factory=dict)
    """Where config.json holds one config for its ``encoder`` and one for its ``decoder``: the ``model_type`` that each
    must have, and the family that reads it."""

    renames: Callable[[Config], Sequence[Rename]]
    """The table that makes every parameter of a model with this config."""
    prefix: str = ""
    """The prefix of all other weights in a model with a head."""
    rename_legacy: Callable[[str], str] = lambda name: name
    """Today's name of a weight for the name in an old file."""
    tied_weights: Callable[[Config], Sequence[tuple[str, ...]]] = lambda config: ()
    """Names of one and the same weight; the first is the table's. A file may have any of them."""
    infer_config: Callable[[Config, Mapping[str, Weight]], Config] = lambda config, weights: config
    """Completes the config by looking at the weights."""
    constants: Sequence[ConstantTensor] = ()
    ignored_weights: tuple[str, ...] = ()
    """Prefixes of the names of weights that do not change the model's result: not loaded, but listed."""


@dataclass(frozen=True)
class CheckpointLayout:
    """The names and the form of a model's weights in its checkpoint, so that they can be saved there again."""

    renames: tuple[Rename, ...]
    checkpoint_names: Mapping[str, tuple[str, ...]]
    """For each name in the table the names in the file: with a prefix, in an old spelling, or several if tied."""
    extra_tensors: Mapping[str, Tensor]
    """The file's other tensors, by their names there."""
    ignored_weights: tuple[str, ...]
    """Names of the weights that are no part of the model."""

    def tensors(self, model: torch.nn.Module) -> dict[str, Tensor]:
        """The model's weights and the file's other tensors, by the file's names."""
        tensors = dict(self.extra_tensors)
        for name, tensor in export_weights(model, self.renames).items():
            names = self.checkpoint_names[name]
            tensors |= {each: tensor.clone() if len(names) > 1 else tensor for each in names}
        return tensors


def build_config(family: Family, values: Mapping[str, Any], path: Path) -> Config:
    """The `Config` for the values of a ``config.json``, without the special tokens, which `special_tokens` reads.

    Raises:
        InputError: a key is unknown or missing, or has a value that is not supported.
    """
    config_json = ConfigJSON(values, path, family.defaults)
    _refuse_unsupported(family, values, path)
    if family.submodels:
        return _combined_config(family, config_json)
    extra = {} if family.extra_config is None else family.extra_config(config_json)
    decoder = None
    if family.kind == "encoder-decoder":
        keys = {name: key for key, name in family.fields.items()}
        keys |= {name: key for key, name in family.decoder_fields.items()}
        decoder = _config(family, config_json, {key: name for name, key in keys.items()}, extra)
    extra = {name: value for name, value in extra.items() if not name.startswith("decoder.")}
    return _config(family, config_json, family.fields, {**extra, "decoder": decoder} if decoder else extra)


def special_token_values(family: Family, values: Mapping[str, Any], path: Path) -> ConfigJSON:
    """The values that name special tokens; in a config with submodels, the decoder's replace missing ones."""
    if not family.submodels:
        return ConfigJSON(values, path, family.defaults)
    _, decoder = family.submodels["decoder"]
    of_decoder, of_whole = (
        {key: value for key, value in each.items() if value is not None} for each in (values["decoder"], values)
    )
    return ConfigJSON(of_whole, path, {**decoder.defaults, **of_decoder})


def _refuse_unsupported(family: Family, values: Mapping[str, Any], path: Path) -> None:
    """Refuse keys that would change the model's numbers, and keys that are unknown."""
    supported = {**SUPPORTED_VALUES, "is_encoder_decoder": (family.kind == "encoder-decoder",), **family.supported}
    known = {"model_type", *supported, *family.fields, *family.decoder_fields, *family.extra_keys, *family.submodels}
    known |= IGNORED_KEYS | family.ignored_keys
    for key, value in values.items():
        # True == 1 in Python, and a file that says one for the other means the same.
        if key in supported and value not in supported[key]:
            choices = " or ".join(repr(each) for each in supported[key])
            raise InputError(f"{path}: {key} is {value!r}; for {family.name}, regard supports {choices}")
        if key not in known:
            raise InputError(
                f"{path}: regard does not know the setting {key!r} (here {value!r}), so it cannot tell whether "
                "the model would be right without it. If it does not matter, take it out of the file"
            )


def _combined_config(family: Family, config_json: ConfigJSON) -> Config:
    """The config of a model whose config.json holds one for each of its two stacks."""
    configs = {}
    for name, (model_type, submodel) in family.submodels.items():
        values = config_json[name]
        if not isinstance(values, dict) or values.get("model_type") != model_type:
            actual = values.get("model_type") if isinstance(values, dict) else values
            raise InputError(
                f"{config_json.path}: the {name} is of the model_type {actual!r}; in a {family.name}, regard supports "
                f"{model_type!r} there"
            )
        configs[name] = build_config(submodel, values, Path(f"{config_json.path} ({name})"))
    return replace(configs["encoder"], vocab_size=configs["decoder"].vocab_size, decoder=configs["decoder"])


def _config(family: Family, config_json: ConfigJSON, names: Mapping[str, str], extra: Mapping[str, Any]) -> Config:
    """One stack's config.

    Args:
        family: gives the fixed fields.
        config_json: gives the values.
        names: the field of `Config` for each key.
        extra: further fields; the decoder's may begin with ``decoder.``.
    """
    fields: dict[str, Any] = {name: config_json[key] for key, name in names.items()}
    if "activation" in fields:
        key = next(key for key, name in names.items() if name == "activation")
        activation = fields["activation"]
        if not isinstance(activation, str) or activation not in ACTIVATIONS:
            config_json.refuse(key, f"supported are {', '.join(ACTIVATIONS)}")
        fields["activation"] = ACTIVATIONS[activation]
    fields |= {**family.fixed, **{name.removeprefix("decoder."): value for name, value in extra.items()}}
    try:
        return Config(**fields)
    except (TypeError, ValueError) as error:
        renamed = [f"{name} is {key} there" for key, name in names.items() if f"{name}=" in str(error)]
        raise InputError(f"{config_json.path}: {error}" + (f" ({', '.join(renamed)})" if renamed else "")) from error


def build_model(
    family: Family, config: Config, tensors: Mapping[str, Weight], *, dtype: torch.dtype, path: Path
) -> tuple[Encoder | Decoder | EncoderDecoder, CheckpointLayout]:
    """A model with a checkpoint's weights, in evaluation mode, and the layout of the checkpoint.

    Raises:
        InputError: a weight is missing, unknown or of another shape; two weights that should be one differ.
    """
    checkpoint_names: dict[str, tuple[str, ...]] = {}
    weights: dict[str, Weight] = {}
    for checkpoint_name, tensor in tensors.items():
        name = family.rename_legacy(checkpoint_name.removeprefix(family.prefix))
        if name in weights:
            raise InputError(f"{path} holds two weights for {name}; one of them is named {checkpoint_name}")
        weights[name], checkpoint_names[name] = tensor, (checkpoint_name,)
    config = family.infer_config(config, weights)
    table = family.renames(config)
    for names in family.tied_weights(config):
        _merge_tied(names, weights, checkpoint_names, path)
    extra_tensors = _pop_constants(family, config, weights, checkpoint_names, path)
    num_layers = {"n": config.num_layers, "m": (config.decoder or config).num_layers}
    _check_last_layers(table, num_layers, weights, path)
    renames = tuple(expand_layers(table, num_layers))
    used = {name for rename in renames for name in rename.checkpoint_names}
    ignored = sorted(name for name in weights if name.startswith(family.ignored_weights) and name not in used)
    extra_tensors |= {checkpoint_names[name][0]: values_of(weights.pop(name)).clone() for name in ignored}
    try:
        with torch.device("meta"), _WithoutNormalNumbers():
            model: Encoder | Decoder | EncoderDecoder = MODEL_CLASSES[family.kind](config)
    except RuntimeError as error:  # sizes whose product is too large for any tensor
        raise InputError(f"the sizes of {config} make no model: {error}") from error
    load_weights(model, weights, renames, dtype=dtype, source=path)
    layout = CheckpointLayout(renames, {name: checkpoint_names[name] for name in used}, extra_tensors, tuple(ignored))
    return model.eval(), layout


class _WithoutNormalNumbers(TorchFunctionMode):
    """Leaves out the drawing of normal numbers, for which PyTorch imports its compiler on the meta device: a second."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (torch.nn.init.normal_, Tensor.normal_):
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def _merge_tied(
    names: tuple[str, ...], weights: dict[str, Weight], checkpoint_names: dict[str, tuple[str, ...]], path: Path
) -> None:
    """Store the weight that has all of these names under the first name only."""
    present = [name for name in names if name in weights]
    if not present:
        return
    tensor = weights[present[0]]
    for name in present[1:]:
        if weights[name].shape != tensor.shape or not torch.equal(values_of(weights[name]), values_of(tensor)):
            raise InputError(
                f"{path}: {checkpoint_names[present[0]][0]} and {checkpoint_names[name][0]} differ, but by the config "
                "they are one weight (tie_word_embeddings)"
            )
    checkpoint_names[names[0]] = tuple(each for name in present for each in checkpoint_names[name])
    for name in present:
        del weights[name]
    weights[names[0]] = tensor


def _pop_constants(
    family: Family,
    config: Config,
    weights: dict[str, Weight],
    checkpoint_names: Mapping[str, tuple[str, ...]],
    path: Path,
) -> dict[str, Tensor]:
    """Check the constants, and take them out of the weights."""
    constants = {}
    for name in list(weights):
        for constant in family.constants:
            if constant.matches(name):
                tensor = values_of(weights.pop(name))
                if not constant.is_expected(tensor, config):
                    raise InputError(
                        f"{path}: {name} is not {constant.description}; regard supports nothing else there"
                    )
                constants[checkpoint_names[name][0]] = tensor.clone()
                break
    return constants


def _check_last_layers(
    table: Sequence[Rename], num_layers: Mapping[str, int], weights: Mapping[str, Weight], path: Path
) -> None:
    """Refuse a number of layers that the weights do not have, before a model of millions of layers is built."""
    for rename in table:
        if rename.parameter.endswith("feed_forward.down.weight"):
            letter = next(letter for letter in num_layers if f"{{{letter}}}" in rename.parameter)
            last = rename.checkpoint_names[0].replace(f"{{{letter}}}", str(num_layers[letter] - 1))
            if last not in weights:
                raise InputError(f"{path} lacks {last}")
