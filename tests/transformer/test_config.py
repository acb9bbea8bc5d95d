"""The config: defaults, and settings that make no model."""

import dataclasses

import pytest

from regard import positions
from regard.transformer import Config, Decoder, Encoder, EncoderDecoder

ONE_STACK = [Encoder, Decoder]
UNSHARED = "shared_embedding: the encoder has 30 tokens of width 12, the decoder"
SMALL = {"vocab_size": 30, "d_model": 12, "num_layers": 3, "num_heads": 4, "d_ff": 20}


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "num_layers=0 must be a whole number, at least 1 and below"),
        ({"vocab_size": 2**31}, r"vocab_size=2147483648 must be a whole number, at least 1 and below 2\*\*31"),
        ({"num_token_types": 2**31}, "num_token_types=2147483648 must be a whole number, at least 0"),
        ({"d_model": 12.0}, r"d_model=12\.0 must be a whole number"),
        ({"d_ff": True}, "d_ff=True must be a whole number"),
        ({"num_kv_heads": 0}, "num_kv_heads=0 must be a whole number"),
        ({"d_key": 0}, "d_key=0 must be a whole number"),
        ({"num_token_types": -1}, "num_token_types=-1 must be a whole number, at least 0"),
        ({"first_position": 0.5}, r"first_position=0\.5 must be a whole number, at least 0"),
        ({"d_model": 13}, "d_model=13 does not divide into num_heads=4"),
        ({"num_kv_heads": 3}, "num_heads=4 cannot share num_kv_heads=3 evenly"),
        ({"norm_eps": None}, "norm_eps=None must be a number from 0 to 1"),
        ({"dropout": 1.5}, r"dropout=1\.5 must be a number from 0 to 1"),
        ({"activation": "swish"}, "activation='swish' is not one of gelu, gelu_tanh, relu, silu"),
        ({"positions": "absolute"}, "positions='absolute' is not one of sinusoidal, learned, rotary, alibi, t5, none"),
        ({"norm": "batch"}, "norm='batch' is not one of layer, rms"),
        ({"norm_position": "sandwich"}, "norm_position='sandwich' is not one of post, pre, both"),
        ({"positions": "learned"}, "positions='learned' needs max_positions"),
        ({"norm_plus_one": True}, "norm_plus_one is for norm='rms'; got norm='layer'"),
        ({"windows": (3, None)}, r"windows=\(3, None\) must say one for each of num_layers=3"),
        ({"windows": (3, None, 0)}, r"windows=\(3, None, 0\): a window counts the token itself"),
        ({"windows": (3, None, 2.5)}, r"windows=\(3, None, 2\.5\): .* a whole number"),
        ({"softcap": 0}, "softcap=0 must be a number above 0"),
        ({"logit_softcap": -1.0}, r"logit_softcap=-1\.0 must be a number above 0"),
        ({"softcap": float("inf")}, "softcap=inf must be a number above 0, and one of float32"),
        ({"attention_scale": float("inf")}, "attention_scale=inf must be a finite number"),
    ],
)
def test_an_invalid_config_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        Config(**{**SMALL, **changes})


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("kinds", "changes", "message"),
    [
        (ONE_STACK, {"positions": "rotary"}, "positions='rotary' turn dimensions in pairs; here a head has d_key=3"),
        (ONE_STACK, {"positions": "rotary", "d_key": 4, "rotary_base": 1}, "base=1 must be a number above 1"),
        (ONE_STACK, {"positions": "t5", "t5_buckets": 1}, "num_buckets=1 must be at least 2"),
        (ONE_STACK, {"positions": "t5", "t5_max_distance": 4}, "max_distance=4 must be above"),
        ([Decoder], {"decoder": Config(**SMALL)}, "a Decoder has no second stack.*config.decoder belongs to an"),
        ([Decoder], {"mlm_head": True}, "a Decoder has no second stack.*config.mlm_head to an"),
        ([EncoderDecoder], {"mlm_head": True}, r"no masked-language-model head: config\.mlm_head belongs to an Enc"),
        ([EncoderDecoder], {"decoder": Config(**{**SMALL, "vocab_size": 31})}, UNSHARED),
        ([EncoderDecoder], {"decoder": Config(**{**SMALL, "d_model": 16})}, UNSHARED),
    ],
)
def test_a_config_of_another_model_is_named(kinds, changes, message):
    for kind in kinds:
        with pytest.raises(ValueError, match=message):
            kind(Config(**{**SMALL, **changes}))


def test_the_defaults_are_the_papers():
    paper = {"positions": "sinusoidal", "norm": "layer", "norm_position": "post", "activation": "relu", "dropout": 0.1}
    paper |= {"tie_word_embeddings": True, "shared_embedding": True, "scale_embedding": True}
    paper |= {"attention_bias": False, "out_bias": False, "feed_forward_bias": True}
    assert paper == {name: getattr(Config(**SMALL), name) for name in paper}


def test_equal_configs_are_equal():
    scaled = {**SMALL, "positions": "rotary", "d_key": 4, "rotary_scaling": positions.Linear(2.0)}
    assert (Config(**scaled), hash(Config(**scaled))) == (Config(**scaled), hash(Config(**scaled)))
    assert Config(**scaled) != dataclasses.replace(Config(**scaled), rotary_scaling=positions.Linear(3.0))
