"""A model in 8 bits: no weight moves by more than its bound, and what a page cannot compute is refused by name."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from lens.explained import DECODERS, ENCODER_DECODERS, pretrained
from regard.errors import InputError
from regard.views.html.quantized_model import (
    MAX_PART,
    MIN_ROW,
    QuantizationDistance,
    dequantize,
    quantize_model,
    quantize_rows,
)
from views.html.page_encoders import minilm_8_bits
from views.html.page_runs import page_run
from weights import LOAN, RIVER, minilm, random_bert

FLOATS = st.floats(-(2.0**127), 2.0**127, width=32)


@pytest.fixture
def small(tmp_path):
    random_bert(tmp_path)
    return regard.load(tmp_path)


def test_every_weight_is_within_its_rows_error_bound():
    quantized, full = minilm_8_bits(), minilm().model.state_dict()
    assert len(quantized.matrices) == 3 + 4 * 6
    for name, matrix in quantized.matrices.items():
        errors = (matrix.dequantize().double() - full[name].double()).abs().amax(1)
        assert bool((errors <= matrix.error_bound).all()), name
        assert bool((matrix.error_bound <= 0.5001 * full[name].abs().amax(1) / 127).all()), name


@given(st.lists(FLOATS, min_size=1, max_size=6), st.sampled_from([1.0, 2.0**-90, 2.0**-99, 2.0**-140]))
def test_the_bound_holds_for_any_numbers(numbers, size):
    weight = torch.tensor([numbers]) * size
    matrix = quantize_rows(weight)
    error = (matrix.dequantize().double() - weight.double()).abs().max()
    assert error <= matrix.error_bound.double()


def test_a_row_of_zeros_stays_zeros():
    matrix = quantize_rows(torch.tensor([[0.0, 0.0], [1.0, -2.0], [MIN_ROW / 2, 0.0]]))
    assert torch.equal(matrix.dequantize()[[0, 2]], torch.zeros(2, 2))
    assert matrix.values[1].tolist() == [64, -127]


def test_vectors_are_not_rounded():
    quantized, full = minilm_8_bits(), minilm().model.state_dict()
    assert {name for name in full if name not in quantized.matrices} == quantized.vectors.keys()
    assert all(torch.equal(vector, full[name]) for name, vector in quantized.vectors.items())


def test_a_dequantized_model_has_the_weights_of_the_page_and_works_as_the_full_one():
    model = dequantize(minilm_8_bits())
    weights = model.model.state_dict()
    assert all(torch.equal(weights[name], matrix.dequantize()) for name, matrix in minilm_8_bits().matrices.items())
    cosine = torch.cosine_similarity(*(torch.as_tensor(each.embed(RIVER)) for each in (model, minilm())), dim=-1)
    assert 0.999 < cosine < 0.9999999


def test_the_full_model_is_not_changed(small):
    before = copy.deepcopy(small.model.state_dict())
    quantize_model(small).dequantize().model.embeddings.token.weight.data.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in small.model.state_dict().items())


def test_half_precision_becomes_float32(small):
    small.model.half()
    model = quantize_model(small).dequantize()
    assert {tensor.dtype for tensor in model.model.state_dict().values()} == {torch.float32}


def test_a_masked_language_models_head_is_not_packed():
    assert pretrained("bert").config.mlm_head
    quantized = quantize_model(pretrained("bert"))
    assert not [name for name in (*quantized.matrices, *quantized.vectors) if "mlm" in name]


@pytest.mark.more
def test_minilm_takes_less_than_24_million_bytes_of_a_page():
    packed = minilm_8_bits().pack()
    assert len(packed.text.encode()) < 24e6
    assert not set(packed.text) & set("\0\n\r<")
    assert "".join(packed.parts) == packed.text
    assert max(map(len, packed.parts)) <= MAX_PART


def test_equal_models_are_packed_to_equal_text(small):
    assert quantize_model(small).pack() == quantize_model(small).pack()


@pytest.mark.more
def test_the_distance_is_that_of_the_two_models():
    distance = minilm_8_bits().compare([RIVER, LOAN])
    models = minilm(), dequantize(minilm_8_bits())
    full, quantized = (torch.cat([p.detach().flatten() for p in m.model.parameters()]).double() for m in models)
    assert distance.relative_error == pytest.approx(float((full - quantized).norm() / full.norm()), rel=1e-5)
    vectors = [torch.as_tensor(model.embed([RIVER, LOAN])).double() for model in models]
    cosine = float(torch.cosine_similarity(*vectors, dim=-1).min())
    assert distance.min_vector_cosine == pytest.approx(cosine, abs=1e-6)
    maps = ([m for text in (RIVER, LOAN) for m in page_run(text, model).recording.values()] for model in models)
    errors = [float((m.dense() - other.dense()).abs().max()) for m, other in zip(*maps, strict=True)]
    assert distance.max_attention_error == pytest.approx(max(errors), abs=1e-6)
    assert distance.min_token_cosine < distance.min_vector_cosine


def test_the_notes_say_the_distance_and_round_to_the_worse_side():
    distance = QuantizationDistance(
        num_texts=1, relative_error=0.0087, min_vector_cosine=0.99957, min_token_cosine=0.9, max_attention_error=0.0382
    )
    assert distance.notes() == [
        "Weights in 8 bits: each differs from the full one by at most 0.4% of the largest in its row, all of them by "
        "0.9% (root mean square).",
        "For the text that this page was made with, no attention weight differs from the full model's by more than "
        "0.039; the cosine of the text's vector with the full model's is 0.9995 or more.",
    ]


def test_models_that_are_the_same_have_no_distance(small):
    exact = quantize_model(small).dequantize()
    for parameter in exact.model.parameters():
        if parameter.ndim == 2:  # each row's largest number is 127 times a power of 2, so that nothing is rounded
            parameter.data.copy_((torch.rand_like(parameter) * 200 - 100).round() / 64)
            parameter.data[:, 0] = 127 / 64
    distance = quantize_model(exact).compare(["the river bank"])
    assert distance.relative_error == 0
    assert distance.max_attention_error == 0
    assert distance.min_token_cosine == pytest.approx(1)


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_models_are_compared_on_texts(small):
    with pytest.raises(InputError, match="by at least one text"):
        quantize_model(small).compare([])


@pytest.mark.parametrize(
    ("family", "kind"),
    [*((family, "a decoder") for family in DECODERS), *((family, "an encoder-decoder") for family in ENCODER_DECODERS)],
)
def test_what_is_no_encoder_is_refused_with_the_way_out(family, kind):
    says = f"is {kind}, and a page carries encoders of the BERT family only; for other models there is `regard live`"
    with pytest.raises(InputError, match=says):
        quantize_model(pretrained(family))


CHOICES = {
    "rotary": ({"positions": "rotary"}, "positions='rotary'.*learned position vectors"),
    "pre-norm": ({"norm_position": "pre"}, "norm_position='pre'.*after each sublayer"),
    "RMSNorm": ({"norm": "rms"}, "norm='rms'.*LayerNorm"),
    "activation": ({"activation": "gelu_tanh"}, "activation='gelu_tanh'.*exact GELU"),
    "gated": ({"gated": True}, "gated=True.*no gated"),
    "no norm": ({"embedding_norm": False}, "embedding_norm=False.*LayerNorm on its embeddings"),
    "bias": ({"attention_bias": False}, "attention_bias=False.*biases of queries"),
    "softcap": ({"softcap": 5.0}, "softcap=5.0.*caps no scores"),
    "windows": ({"windows": (3, None)}, "windows=.*every token attends"),
    "key heads": ({"num_kv_heads": 1}, "num_heads=3, num_kv_heads=1 and d_key=8"),
    "wide heads": ({"d_key": 10}, "d_key=10, which a page cannot compute"),
}


@pytest.mark.parametrize(("changes", "message"), CHOICES.values(), ids=CHOICES)
def test_what_the_page_cannot_compute_is_refused_by_name(small, changes, message):
    with pytest.raises(InputError, match=message):
        quantize_model(replace(small, config=replace(small.config, **changes)))


def test_a_model_without_a_known_pooling_is_refused(small):
    with pytest.raises(InputError, match="makes one vector of a text is not known"):
        quantize_model(replace(small, pooling=None))


def test_damaged_weights_are_refused(small):
    small.model.blocks[1].feed_forward.up.weight.data[3, 4] = torch.nan
    says = r"blocks\.1\.feed_forward\.up\.weight of .* not finite: the weights are damaged"
    with pytest.raises(InputError, match=says):
        quantize_model(small)
