"""Every family against transformers itself: states, logits, padding on both sides, caches, and the way back."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file

import regard
from regard import mask
from weights import random_checkpoint

LONG = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "rope_theta": 100.0}
VARIANTS = {
    "bert": ("bert", {}),
    "bert untied": ("bert", {"tie_word_embeddings": False, "hidden_act": "relu"}),
    "roberta": ("roberta", {}),
    "roberta untied": ("roberta", {"tie_word_embeddings": False, "pad_token_id": 3, "type_vocab_size": 2}),
    "gpt2": ("gpt2", {}),
    "gpt2 untied": ("gpt2", {"n_inner": 50, "tie_word_embeddings": False, "scale_attn_weights": False}),
    "llama": ("llama", {}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 8, "tie_word_embeddings": True}),
    "llama linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}}),
    "llama dynamic": (
        "llama",
        {"max_position_embeddings": 8, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
    ),
    "llama llama3": (
        "llama",
        {"rope_parameters": {**LONG, "rope_theta": 500.0, "original_max_position_embeddings": 16}},
    ),
    "llama yarn": ("llama", {"rope_parameters": {**YARN, "original_max_position_embeddings": 16}}),
    "llama yarn mscale": (
        "llama",
        {"rope_parameters": {**YARN, "original_max_position_embeddings": 16, "mscale": 0.7, "mscale_all_dim": 1.3}},
    ),
    "mistral": ("mistral", {}),
    "mistral full": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2 full": ("qwen2", {"use_sliding_window": False, "tie_word_embeddings": False}),
    "qwen3": ("qwen3", {}),
    "qwen3 windows": (
        "qwen3",
        {
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "gemma2": ("gemma2", {}),
    "gemma2 uncapped": (
        "gemma2",
        {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True},
    ),
    "marian": ("marian", {}),
    "marian two vocabularies": ("marian", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 67}),
    "bart": ("bart", {}),
    "bart scaled": ("bart", {"scale_embedding": True, "activation_function": "relu"}),
    "t5": ("t5", {}),
    "t5 1.1": ("t5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "t5 silu": ("t5", {"feed_forward_proj": "gated-silu", "num_decoder_layers": None}),
}
TOKENS, LENGTHS = 13, torch.tensor([13, 9, 5])
TARGETS, TARGET_LENGTHS = 9, torch.tensor([4, 9, 6])
LEFT_PADDING = TOKENS - LENGTHS
CHUNKS = (9, 1, 1, 2)


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request, tmp_path_factory):
    """One model, theirs and ours, and the folder."""
    family, changes = VARIANTS[request.param]
    folder = tmp_path_factory.mktemp("family")
    theirs = random_checkpoint(folder, family, **changes)
    return theirs, regard.load(folder), folder


def of_kind(pair, *kinds):
    if pair[1].kind not in kinds:
        pytest.skip(f"a test of {' and '.join(kinds)}")
    return pair[0], pair[1].model


def close(ours, theirs, real):
    """On real tokens, and not by being nothing: the numbers themselves are far from zero."""
    assert ours.shape == theirs.shape
    assert theirs[real].std() > 0.01
    return (ours - theirs)[real].abs().max().item()


def random_ids(theirs, shape, real):
    pad = theirs.config.pad_token_id
    return torch.randint(4, 53, shape).masked_fill(~real, 0 if pad is None else min(pad, 52))


def source(theirs, *, left=False):
    """Ids, which of them are real, and their positions."""
    at = torch.arange(TOKENS)
    real = at >= LEFT_PADDING[:, None] if left else at < LENGTHS[:, None]
    positions = (at - LEFT_PADDING[:, None]).clamp(min=0) if left else at.expand(len(LENGTHS), -1)
    return random_ids(theirs, (len(LENGTHS), TOKENS), real), real, positions


def target(theirs):
    real = torch.arange(TARGETS) < TARGET_LENGTHS[:, None]
    return random_ids(theirs, (len(TARGET_LENGTHS), TARGETS), real), real


def implementations(theirs):
    """Gemma 2's soft-cap is dropped by transformers' sdpa, so that one has no say there."""
    kinds = ["eager"] if theirs.config.model_type == "gemma2" else ["sdpa", "eager"]
    for kind in kinds:
        theirs.set_attn_implementation(kind)
        if "dynamic" in str(getattr(theirs.config, "rope_parameters", "")):
            theirs(torch.tensor([[4]]))  # its frequencies stay those of the longest text until a short one comes
        yield kind


@torch.inference_mode()
def test_hidden_states_and_logits_with_padding_on_the_right(pair):
    theirs, model = of_kind(pair, "encoder", "decoder")
    ids, real, _ = source(theirs)
    states = list(model.hidden_states(ids, None, mask.padding(LENGTHS)))
    for _ in implementations(theirs):
        expected = theirs(ids, attention_mask=real.long(), output_hidden_states=True)
        worst = max(close(*both, real) for both in zip(states, expected.hidden_states, strict=True))
        assert max(worst, close(model.logits(states[-1]), expected.logits, real)) < 1e-4


@torch.inference_mode()
def test_hidden_states_and_logits_with_padding_on_the_left(pair):
    theirs, model = of_kind(pair, "encoder", "decoder")
    ids, real, positions = source(theirs, left=True)
    states = list(model.hidden_states(ids, left_padding=LEFT_PADDING))
    # RoBERTa's positions are its own: it counts them from the ids.
    told = {} if theirs.config.model_type == "roberta" else {"position_ids": positions}
    for _ in implementations(theirs):
        expected = theirs(ids, attention_mask=real.long(), output_hidden_states=True, **told)
        worst = max(close(*both, real) for both in zip(states, expected.hidden_states, strict=True))
        assert max(worst, close(model.logits(states[-1]), expected.logits, real)) < 1e-4


@pytest.mark.parametrize("length", [None, 20])
@torch.inference_mode()
def test_cached_logits_of_a_decoder(pair, length):
    theirs, model = of_kind(pair, "decoder")
    ids, real, positions = source(theirs, left=True)
    for _ in implementations(theirs):
        caches, past, start = model.caches(length=length), transformers.DynamicCache(config=theirs.config), 0
        for chunk in CHUNKS:
            part = slice(start, start + chunk)
            start += chunk
            ours = model(ids[:, part], left_padding=LEFT_PADDING if part.start == 0 else None, caches=caches)
            expected = theirs(
                ids[:, part],
                attention_mask=real[:, :start].long(),
                position_ids=positions[:, part],
                past_key_values=past,
                use_cache=True,
            ).logits
            assert close(ours, expected, real[:, part]) < 1e-4
        assert start == TOKENS == caches.num_tokens


@torch.inference_mode()
def test_hidden_states_and_logits_of_both_stacks(pair):
    theirs, model = of_kind(pair, "encoder-decoder")
    ids, real, _ = source(theirs)
    wanted, wanted_real = target(theirs)
    states = list(model.encoder.hidden_states(ids, None, mask.padding(LENGTHS)))
    context, seen = states[-1], mask.padding(LENGTHS)
    written = list(
        model.decoder.hidden_states(wanted, None, mask.padding(TARGET_LENGTHS), context=context, context_mask=seen)
    )
    logits = model(ids, wanted, mask.padding(LENGTHS), mask.padding(TARGET_LENGTHS))
    for _ in implementations(theirs):
        expected = theirs(
            ids,
            attention_mask=real.long(),
            decoder_input_ids=wanted,
            decoder_attention_mask=wanted_real.long(),
            output_hidden_states=True,
        )
        read, wrote = expected.encoder_hidden_states, expected.decoder_hidden_states
        worst = max(close(*both, real) for both in zip(states, read, strict=True))
        worst = max(worst, *(close(*both, wanted_real) for both in zip(written, wrote, strict=True)))
        assert max(worst, close(logits, expected.logits, wanted_real)) < 1e-4


@torch.inference_mode()
def test_padding_on_the_left_of_both_stacks_and_cached(pair):
    """Against each pair of texts alone: in BART and Marian padding on the left takes positions from the text there."""
    theirs, model = of_kind(pair, "encoder-decoder")
    ids, real, _ = source(theirs, left=True)
    wanted, _ = target(theirs)
    target_padding = TARGETS - TARGET_LENGTHS
    wanted = torch.stack([row.roll(int(pad)) for row, pad in zip(wanted, target_padding, strict=True)])
    context = model.encoder(ids, left_padding=LEFT_PADDING)
    hidden = ~mask.padding(LEFT_PADDING)
    whole = model.decoder(wanted, left_padding=target_padding, context=context, context_mask=hidden)
    caches, parts, start = model.caches(), [], 0
    for chunk in (6, 1, 2):
        again = {"context": context} if start == 0 else {}
        first = {"left_padding": target_padding} if start == 0 else {}
        part = wanted[:, start : start + chunk]
        parts.append(model.decoder(part, caches=caches, context_mask=hidden, **again, **first))
        start += chunk
    cached = torch.cat(parts, dim=1)
    for _ in implementations(theirs):
        for row, (pad, target_pad) in enumerate(zip(LEFT_PADDING.tolist(), target_padding.tolist(), strict=True)):
            alone = theirs(ids[row : row + 1, pad:], decoder_input_ids=wanted[row : row + 1, target_pad:]).logits[0]
            for ours in (whole, cached):
                assert (ours[row, target_pad:] - alone).abs().max() < 1e-4
    assert real.sum() == LENGTHS.sum()


@torch.inference_mode()
def test_a_saved_model_is_the_same_checkpoint(pair, tmp_path):
    theirs, pretrained, folder = pair
    pretrained.save(tmp_path)
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert json.loads((folder / "config.json").read_text()) == json.loads((tmp_path / "config.json").read_text())
    assert {path.name for path in folder.iterdir()} == {path.name for path in tmp_path.iterdir()}
    again = type(theirs).from_pretrained(tmp_path).eval()
    ids, _, _ = source(theirs)
    told = {"decoder_input_ids": target(theirs)[0]} if pretrained.kind == "encoder-decoder" else {}
    assert torch.equal(again(ids, **told).logits, type(theirs).from_pretrained(folder).eval()(ids, **told).logits)
    reloaded = regard.load(tmp_path)
    assert reloaded.config == pretrained.config
    ours = reloaded.model.state_dict()
    assert all(torch.equal(ours[name], tensor) for name, tensor in pretrained.model.state_dict().items())


@torch.inference_mode()
def test_changed_weights_are_saved(pair, tmp_path):
    theirs, _, folder = pair
    pretrained = regard.load(folder)
    generator = torch.Generator().manual_seed(1)
    for parameter in pretrained.model.parameters():
        parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    pretrained.save(tmp_path)
    again = type(theirs).from_pretrained(tmp_path).eval()
    ids, real, _ = source(theirs)
    everything = torch.ones(ids.shape, dtype=torch.bool)
    if pretrained.kind == "encoder-decoder":
        wanted, _ = target(theirs)
        ours = pretrained.model(ids, wanted, mask.padding(LENGTHS))
        expected = again(ids, attention_mask=real.long(), decoder_input_ids=wanted).logits
        everything = torch.ones(wanted.shape, dtype=torch.bool)
    else:
        final = list(pretrained.model.hidden_states(ids, None, mask.padding(LENGTHS)))[-1]
        ours, everything = pretrained.model.logits(final), real
        expected = again(ids, attention_mask=real.long()).logits
    assert close(ours, expected, everything) < 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@torch.inference_mode()
def test_other_dtypes(pair, tmp_path, dtype):
    theirs, single, folder = pair
    pretrained = regard.load(folder, dtype=dtype)
    state = pretrained.model.state_dict()
    assert all(torch.equal(state[name], tensor.to(dtype)) for name, tensor in single.model.state_dict().items())
    pretrained.save(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())["dtype"]
    assert said == str(dtype).removeprefix("torch.")
    again = regard.load(tmp_path, dtype=dtype).model.state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in state.items())
    ids, real, _ = source(theirs)
    wanted = [target(theirs)[0]] if pretrained.kind == "encoder-decoder" else []
    loaded = type(theirs).from_pretrained(tmp_path).eval()
    assert loaded.dtype == dtype
    told = {"decoder_input_ids": wanted[0]} if wanted else {}
    if wanted:
        ours, real = (
            pretrained.model(ids, *wanted, mask.padding(LENGTHS)),
            torch.ones(wanted[0].shape, dtype=torch.bool),
        )
    else:
        final = list(pretrained.model.hidden_states(ids, None, mask.padding(LENGTHS)))[-1]
        ours = pretrained.model.logits(final)
    seen = (torch.arange(TOKENS) < LENGTHS[:, None]).long()
    rounded = None if dtype is torch.float64 else loaded(ids, attention_mask=seen, **told).logits.float()
    exact = loaded.float()(ids, attention_mask=seen, **told).logits
    if rounded is None:
        assert close(ours.float(), exact, real) < 1e-4
        return
    # Rounding is theirs as much as ours: on the mean we may be off by no more than half as much again.
    off, their_off = ((logits.float() - exact)[real].abs().mean().item() for logits in (ours, rounded))
    print(f"{dtype}: off by {off:.2e}, transformers by {their_off:.2e}")
    assert off < 1.5 * their_off
