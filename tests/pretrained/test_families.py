"""Every family against transformers itself: states, logits, padding on both sides, caches, and the way back."""

from functools import cache
from itertools import cycle

import pytest
import torch
import transformers
from damage import read_json

import regard
from captioners import random_captioner
from regard import mask
from regard.pretrained.families import FAMILIES
from weights import random_checkpoint, same_weights, weights_of

ROPE = {"rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {**ROPE, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {**ROPE, "rope_type": "yarn", "beta_fast": 4.0, "rope_theta": 100.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "use_sliding_window": True}
GREY = {"num_channels": 1, "image_size": 8, "patch_size": 2, "qkv_bias": False, "hidden_act": "relu"}
VISION_UNTIED = {"tie_word_embeddings": False, "n_inner": 70, "scale_attn_weights": False}
UNCAPPED = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
VARIANTS = {
    **{name: (name, {}) for name in FAMILIES},
    "bert untied": ("bert", {"tie_word_embeddings": False, "hidden_act": "relu"}),
    "roberta untied": ("roberta", {"tie_word_embeddings": False, "pad_token_id": 3, "type_vocab_size": 2}),
    "gpt2 untied": ("gpt2", {"n_inner": 50, "tie_word_embeddings": False, "scale_attn_weights": False}),
    "gpt2 inverse layers": ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}),
    "gpt2 inverse layers only": ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 8, "tie_word_embeddings": True}),
    "llama linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}}),
    "llama dynamic": ("llama", {"max_position_embeddings": 8, "rope_parameters": DYNAMIC}),
    "llama llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama yarn": ("llama", {"rope_parameters": YARN}),
    "llama yarn mscale": ("llama", {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3}}),
    "mistral full": ("mistral", {"sliding_window": None}),
    "qwen2 full": ("qwen2", {"use_sliding_window": False, "tie_word_embeddings": False}),
    "qwen3 windows": ("qwen3", {**WINDOWS, "attention_bias": True, "sliding_window": 3}),
    "gemma2 uncapped": ("gemma2", {**UNCAPPED, "attention_bias": True}),
    "marian two vocabularies": ("marian", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 67}),
    "bart scaled": ("bart", {"scale_embedding": True, "activation_function": "relu"}),
    "t5 1.1": ("t5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "t5 silu": ("t5", {"feed_forward_proj": "gated-silu", "num_decoder_layers": None}),
    "vision projected": ("vision-encoder-decoder", {"decoder": {"n_embd": 32}}),
    "vision untied": ("vision-encoder-decoder", {"decoder": VISION_UNTIED}),
    "vision inverse layers": ("vision-encoder-decoder", {"decoder": {"scale_attn_by_inverse_layer_idx": True}}),
    "vision grey": ("vision-encoder-decoder", {"encoder": GREY, "decoder": {"n_embd": 24}}),
}
SAME_LAYOUT = ("llama linear", "llama dynamic", "llama llama3", "llama yarn", "llama yarn mscale")
SAME_LAYOUT += ("mistral full", "gemma2 uncapped", "bart scaled", "t5 silu", "gpt2 inverse layers only")
TOKENS, LENGTHS = 13, torch.tensor([13, 9, 5])
TARGETS, TARGET_LENGTHS = 9, torch.tensor([4, 9, 6])
LEFT_PADDING, TARGET_PADDING = TOKENS - LENGTHS, TARGETS - TARGET_LENGTHS


@pytest.fixture(scope="session")
def pairs(tmp_path_factory):
    """A function that returns one model, theirs and ours, and the folder, by the name of its variant."""

    @cache
    def get(name):
        (family, changes), folder = VARIANTS[name], tmp_path_factory.mktemp("family")
        is_vision = family == "vision-encoder-decoder"
        theirs = random_captioner(folder, **changes) if is_vision else random_checkpoint(folder, family, **changes)
        theirs.set_attn_implementation("eager")  # sdpa drops Gemma 2's soft-cap
        return theirs, regard.load(folder), folder

    return get


@pytest.fixture
def pair(request, pairs):
    return pairs(request.param)


def of_kind(*kinds):
    """Of models that read text, the variants of these kinds."""
    return [name for name, (family, _) in VARIANTS.items() if FAMILIES[family].kind in kinds and "vision" not in name]


def with_each(names, argument, values):
    """Variants with the first value of an argument, and families themselves with each."""
    rows = [(name, value) for name in names for value in values if value == values[0] or name in FAMILIES]
    return pytest.mark.parametrize(("pair", argument), rows, indirect=["pair"])


def error(ours, theirs, real):
    """On real tokens, as a share of their largest number; the numbers themselves are far from zero.

    T5's states grow to 30, where a rounding of float32, and with it the difference of two CPUs, is 30 times as large.
    """
    assert ours.shape == theirs.shape
    assert theirs[real].std() > 0.01
    return ((ours - theirs)[real].abs().max() / theirs[real].abs().max()).item()


def padded(theirs, tokens, lengths, side="right"):
    """Ids, which of them are real, and their positions."""
    start = tokens - lengths[:, None] if side == "left" else torch.zeros_like(lengths)[:, None]
    positions = torch.arange(tokens) - start
    real = (positions >= 0) & (positions < lengths[:, None])
    pad = min(theirs.config.pad_token_id or 0, 52)
    return torch.randint(4, 53, real.shape).masked_fill(~real, pad), real, positions.clamp(min=0)


def forget_long_texts(theirs):
    """Dynamic frequencies stay those of the longest text until a short one comes."""
    if "dynamic" in str(getattr(theirs.config, "rope_parameters", "")):
        theirs(torch.tensor([[4]]))


def both_logits(theirs, pretrained):
    """The logits of both for three ragged inputs, on real tokens."""
    model, everything = pretrained.model, torch.ones(len(TARGET_LENGTHS), TARGETS, dtype=torch.bool)
    forget_long_texts(theirs)
    if pretrained.modality == "images":
        patches = pretrained.config.patches
        pixels, ids = torch.randn(3, patches.channels, *patches.image_size), torch.randint(61, everything.shape)
        dtype = next(theirs.parameters()).dtype
        ours, expected = model(pixels, ids), theirs(pixel_values=pixels.to(dtype), decoder_input_ids=ids)
        return ours, expected.logits, everything
    ids, real, _ = padded(theirs, TOKENS, LENGTHS)
    if pretrained.kind == "encoder-decoder":
        target, _, _ = padded(theirs, TARGETS, TARGET_LENGTHS)
        ours = model(ids, target, mask.padding(LENGTHS))
        return ours, theirs(ids, attention_mask=real.long(), decoder_input_ids=target).logits, everything
    ours = model.logits(list(model.hidden_states(ids, None, mask.padding(LENGTHS)))[-1])
    return ours, theirs(ids, attention_mask=real.long()).logits, real


@with_each(of_kind("encoder", "decoder"), "side", ["right", "left"])
@torch.inference_mode()
def test_hidden_states_and_logits_with_padding(pair, side):
    theirs, model = pair[0], pair[1].model
    ids, real, positions = padded(theirs, TOKENS, LENGTHS, side)
    padding = {"mask": mask.padding(LENGTHS)} if side == "right" else {"left_padding": LEFT_PADDING}
    # RoBERTa's positions are its own: it counts them from the ids.
    options = {} if side == "right" or theirs.config.model_type == "roberta" else {"position_ids": positions}
    states = list(model.hidden_states(ids, None, **padding))
    forget_long_texts(theirs)
    expected = theirs(ids, attention_mask=real.long(), output_hidden_states=True, **options)
    errors = [error(*both, real) for both in zip(states, expected.hidden_states, strict=True)]
    assert max(*errors, error(model.logits(states[-1]), expected.logits, real)) < 2e-5


@with_each(of_kind("decoder"), "length", [None, 20])
@torch.inference_mode()
def test_cached_logits_of_a_decoder(pair, length):
    theirs, model = pair[0], pair[1].model
    ids, real, positions = padded(theirs, TOKENS, LENGTHS, "left")
    forget_long_texts(theirs)
    caches, past, start = model.caches(length=length), transformers.DynamicCache(config=theirs.config), 0
    for stop in (9, 10, 11, 13):
        part = slice(start, stop)
        ours = model(ids[:, part], left_padding=LEFT_PADDING if start == 0 else None, caches=caches)
        options = {"attention_mask": real[:, :stop].long(), "position_ids": positions[:, part]}
        expected = theirs(ids[:, part], past_key_values=past, use_cache=True, **options).logits
        assert error(ours, expected, real[:, part]) < 2e-5
        start = stop
    assert caches.num_tokens == TOKENS


@pytest.mark.parametrize("pair", of_kind("encoder-decoder"), indirect=True)
@torch.inference_mode()
def test_hidden_states_and_logits_of_both_stacks(pair):
    theirs, model = pair[0], pair[1].model
    ids, real, _ = padded(theirs, TOKENS, LENGTHS)
    target, target_real, _ = padded(theirs, TARGETS, TARGET_LENGTHS)
    masks = mask.padding(LENGTHS), mask.padding(TARGET_LENGTHS)
    encoded = list(model.encoder.hidden_states(ids, None, masks[0]))
    decoded = list(model.decoder.hidden_states(target, None, masks[1], context=encoded[-1], context_mask=masks[0]))
    logits = model(ids, target, *masks)
    attention = {"attention_mask": real.long(), "decoder_attention_mask": target_real.long()}
    expected = theirs(ids, decoder_input_ids=target, output_hidden_states=True, **attention)
    errors = [error(*both, real) for both in zip(encoded, expected.encoder_hidden_states, strict=True)]
    errors += [error(*both, target_real) for both in zip(decoded, expected.decoder_hidden_states, strict=True)]
    assert max(*errors, error(logits, expected.logits, target_real)) < 2e-5


@pytest.mark.parametrize("pair", [name for name in VARIANTS if name.startswith("vision")], indirect=True)
@torch.inference_mode()
def test_hidden_states_and_cached_logits_of_a_model_that_reads_images(pair):
    theirs, pretrained, _ = pair
    model, patches = pretrained.model, pretrained.config.patches
    assert (pretrained.kind, pretrained.modality) == ("encoder-decoder", "images")
    pixels, ids = torch.randn(3, patches.channels, *patches.image_size), torch.randint(61, (3, 9))
    expected = theirs(pixel_values=pixels, decoder_input_ids=ids, output_hidden_states=True)
    (*encoded, last), context = model.encoder.hidden_states(pixels), model.encoder(pixels)
    decoded = list(model.decoder.hidden_states(ids, context=context))
    caches = model.caches()
    parts = [
        model.decoder(ids[:, start:end], caches=caches, context=context if start == 0 else None)
        for start, end in ((0, 5), (5, 6), (6, 9))
    ]
    for ours, others in (
        *zip(encoded, expected.encoder_hidden_states[:-1], strict=True),  # the last of theirs is before the norm
        (last, expected.encoder_last_hidden_state),
        *zip(decoded, expected.decoder_hidden_states, strict=True),
        (model(pixels, ids), expected.logits),
        (torch.cat(parts, dim=1), expected.logits),
    ):
        assert others.std() > 0.01
        torch.testing.assert_close(ours, others, atol=2e-5, rtol=0)


@pytest.mark.parametrize("pair", of_kind("encoder-decoder"), indirect=True)
@torch.inference_mode()
def test_padding_on_the_left_of_both_stacks_and_cached(pair):
    """Against each pair of texts alone: in BART and Marian padding on the left takes positions from the text there."""
    theirs, model = pair[0], pair[1].model
    ids, _, _ = padded(theirs, TOKENS, LENGTHS, "left")
    target, _, _ = padded(theirs, TARGETS, TARGET_LENGTHS, "left")
    source = {"context": model.encoder(ids, left_padding=LEFT_PADDING), "context_mask": ~mask.padding(LEFT_PADDING)}
    whole = model.decoder(target, left_padding=TARGET_PADDING, **source)
    caches = model.caches()
    parts = [model.decoder(target[:, :6], left_padding=TARGET_PADDING, caches=caches, **source)]
    source.pop("context")
    parts += [model.decoder(target[:, start:stop], caches=caches, **source) for start, stop in ((6, 7), (7, 9))]
    cached = torch.cat(parts, dim=1)
    for row, (pad, target_pad) in enumerate(zip(LEFT_PADDING.tolist(), TARGET_PADDING.tolist(), strict=True)):
        alone = theirs(ids[row : row + 1, pad:], decoder_input_ids=target[row : row + 1, target_pad:]).logits[0]
        for ours in (whole, cached):
            assert (ours[row, target_pad:] - alone).abs().max() < 1e-4


# Where the names or the layout of the weights are others than in the family's first variant.
@pytest.mark.parametrize("pair", [name for name in VARIANTS if name not in SAME_LAYOUT], indirect=True)
def test_a_saved_model_is_the_same_checkpoint(pair, tmp_path):
    _, pretrained, folder = pair
    pretrained.save(tmp_path)
    assert {path.name for path in folder.iterdir()} == {path.name for path in tmp_path.iterdir()}
    assert same_weights(weights_of(folder), weights_of(tmp_path))
    for file in folder.glob("*config.json"):
        assert read_json(folder, file.name) == read_json(tmp_path, file.name)
    reloaded = regard.load(tmp_path)
    assert (reloaded.config, reloaded.image_processor) == (pretrained.config, pretrained.image_processor)
    assert same_weights(reloaded, pretrained)


DTYPES = cycle([torch.bfloat16, torch.float16, torch.float64])


@pytest.mark.parametrize(("pair", "dtype"), list(zip(FAMILIES, DTYPES, strict=False)), indirect=["pair"])
@torch.inference_mode()
def test_other_dtypes(pair, tmp_path, dtype):
    theirs, single, folder = pair
    pretrained = regard.load(folder, dtype=dtype)
    state = {name: tensor.to(dtype) for name, tensor in single.model.state_dict().items()}
    assert same_weights(pretrained, state)
    pretrained.save(tmp_path)
    assert read_json(tmp_path)["dtype"] == str(dtype).removeprefix("torch.")
    assert same_weights(regard.load(tmp_path, dtype=dtype), state)
    loaded = type(theirs).from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert loaded.dtype == dtype
    torch.manual_seed(0)
    ours, rounded, real = both_logits(loaded, pretrained)
    torch.manual_seed(0)
    exact = both_logits(loaded.float(), pretrained)[1]
    if dtype is torch.float64:
        assert error(ours.float(), exact, real) < 2e-5
    else:
        # Rounding is theirs as much as ours: on the mean we may be off by no more than half as much again.
        off, their_off = ((logits.float() - exact)[real].abs().mean().item() for logits in (ours, rounded))
        assert off < 1.5 * their_off
