"""The decoder: cached equals uncached, causality, and what it refuses."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grids import grid, some_examples
from models import (
    LONGEST,
    MODES,
    POSITIONS,
    SMALL,
    assert_every_parameter_learns,
    assert_same_gradients,
    cache_steps,
    decoder_configs,
    randomized,
)
from regard import mask, positions
from regard.transformer import Config, Decoder


def decoder(d_context=None, **changes):
    return randomized(Decoder(Config(**{**SMALL, **changes}), d_context=d_context))


def ids_of(*shape):
    return torch.randint(13, shape)


# Cached equals uncached.


@st.composite
def readings(draw):
    """A text read in steps: the arguments of `read`."""
    batch = draw(st.integers(1, 3))
    steps = draw(cache_steps(batch, least=1, most=6))
    left_padding = draw(st.none() | st.lists(st.integers(0, steps[0].tokens), min_size=batch, max_size=batch))
    total = sum(step.tokens for step in steps)
    return left_padding, steps, draw(st.sampled_from([None, total, LONGEST])), batch


def read(model, left_padding, steps, length, batch):
    """The logits of every step: with caches, and without, from the whole text so far."""
    torch.manual_seed(1)
    ids = torch.empty(batch, 0, dtype=torch.long)
    left_padding = None if left_padding is None else torch.tensor(left_padding)
    caches = model.caches(length=length)
    cached, truth = [], []
    for i, step in enumerate(steps):
        new = torch.randint(model.config.vocab_size, (len(ids), step.tokens))
        ids = torch.cat([ids, new], dim=1)
        with MODES[step.mode]():
            cached.append(model(new, caches=caches, left_padding=left_padding if i == 0 else None))
        truth.append(model(ids, left_padding=left_padding)[:, -step.tokens :])
        if step.rows is not None:
            rows = torch.tensor(step.rows)
            with MODES[step.mode]():
                caches.reorder(rows)
            ids, left_padding = ids[rows], None if left_padding is None else left_padding[rows]
    assert caches.num_tokens == ids.shape[1]
    return cached, truth


@given(decoder_configs(), readings())
def test_cached_equals_uncached(config, reading):
    model = decoder(**config)
    cached, truth = read(model, *reading)
    if all(step.mode == "gradients" for step in reading[1]):
        assert_same_gradients(model, *(torch.cat([t.flatten() for t in logits]) for logits in (cached, truth)))
    for ours, whole in zip(cached, truth, strict=True):
        torch.testing.assert_close(ours, whole, rtol=1e-9, atol=1e-9)


@some_examples(0.3)
@given(decoder_configs(), readings())
@pytest.mark.more
def test_cached_equals_uncached_in_float32(config, reading):
    model = decoder(**config)
    (_, truth), (cached, _) = (read(m, *reading) for m in (model, copy.deepcopy(model).float()))
    for ours, whole in zip(cached, truth, strict=True):
        torch.testing.assert_close(ours.double(), whole, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["sinusoidal", "rotary", "alibi", "t5"])
def test_a_long_text_needs_no_square_tensors(kind):
    """More than 2**20 pairs: the bias by position is no tensor then, and masks go by their kernels."""
    model, ids = decoder(positions=kind, windows=(None, 40)), ids_of(1, 1100)
    caches = model.caches()
    with torch.no_grad():
        model(ids[:, :1070], caches=caches)
        ours = model(ids[:, 1070:], caches=caches)
        torch.testing.assert_close(ours, model(ids)[:, 1070:], rtol=1e-9, atol=1e-9)


def test_packed_texts_in_a_cache():
    model, ids = decoder(positions="rotary"), ids_of(1, 9)
    documents, caches = mask.documents(torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 1])), model.caches()
    truth = model(ids, documents)
    ours = [model(ids[:, :5], mask.documents(torch.tensor([0, 0, 0, 1, 1])), caches=caches)]
    ours.append(model(ids[:, 5:], documents, caches=caches))
    torch.testing.assert_close(torch.cat(ours, dim=1), truth, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["learned", "sinusoidal", "rotary", "alibi", "t5"])
def test_padding_on_the_left_shifts_no_position__unsloth_3699(kind):
    """A text alone, and in a batch with a longer one: the same logits, also of tokens written later."""
    model = decoder(positions=kind, max_positions=12)
    long, short, new = ids_of(9), ids_of(4), ids_of(2, 3)
    batch = torch.stack([long, torch.cat([torch.zeros(5, dtype=torch.long), short])])
    caches = model.caches()
    logits = model(batch, left_padding=torch.tensor([0, 5]), caches=caches)
    later = model(new, caches=caches)
    for row, text in enumerate((long, short)):
        expected = model(torch.cat([text, new[row]]))
        torch.testing.assert_close(torch.cat([logits[row, -len(text) :], later[row]]), expected)


def test_a_row_of_padding_only_gives_no_nan():
    model = decoder()
    caches = model.caches()
    assert model(ids_of(2, 4), left_padding=torch.tensor([0, 4]), caches=caches).isfinite().all()
    new = ids_of(2, 2)
    torch.testing.assert_close(model(new, caches=caches)[1], model(new[1]))


def test_a_padding_of_0_is_none():
    model, ids = decoder(), ids_of(2, 4)
    caches = model.caches()
    assert torch.equal(model(ids, left_padding=torch.tensor([0, 0]), caches=caches), model(ids))
    assert caches.left_padding is None


# The whole model.


@grid(place=["post", "pre", "both"], windows=[None, (2, 3)])
def test_which_logits_depend_on_which_tokens(place, windows):
    """A token changes its own logits and those of later tokens, as far as windows reach, layer on layer."""
    model, ids = decoder(norm_position=place, windows=windows), ids_of(7)
    reach = 7 if windows is None else sum(w - 1 for w in windows)
    for i in range(7):
        changed = ids.clone()
        changed[i] = (ids[i] + 1) % 13
        differs = (model(changed) != model(ids)).any(dim=-1)
        assert differs.tolist() == [0 <= j - i <= reach for j in range(7)]


def test_hidden_states_and_logits_by_the_papers_section_3_4():
    model, ids = decoder(), ids_of(2, 5)
    states, vectors = list(model.hidden_states(ids)), model.embeddings.token.weight
    torch.testing.assert_close(states[0], vectors[ids] * 8**0.5 + positions.sinusoidal(5, 8, dtype=torch.float64))
    torch.testing.assert_close(model(ids), states[-1] @ vectors.T)


@pytest.mark.parametrize("logits_to_keep", [1, 3, 5, 9])
def test_logits_of_the_last_tokens_only(logits_to_keep):
    model, ids = decoder(), ids_of(2, 5)
    torch.testing.assert_close(model(ids, logits_to_keep=logits_to_keep), model(ids)[:, -logits_to_keep:])


@given(decoder_configs())
def test_a_gradient_reaches_every_parameter(config):
    model = decoder(**config)
    # A softmax over one key alone does not depend on its score.
    alone = [f"blocks.{i}." for i, window in enumerate(config["windows"] or ()) if window == 1]
    but = [f"{block}attention.{norm}.weight" for block in alone for norm in ("q_norm", "k_norm")]
    if len(alone) == config["num_layers"]:
        but.append("bias.weight")
    assert_every_parameter_learns(model, model(ids_of(3, 7)), but=but)


@pytest.mark.parametrize("kind", POSITIONS)
def test_nothing_is_saved_twice(kind):
    """What is not learned (rotary angles, slopes) is not saved, what is shared (T5's bias) is saved once."""
    model = decoder(positions=kind, max_positions=9, num_layers=3)
    state = model.state_dict()
    assert set(state) == {name for name, _ in model.named_parameters()}
    assert len({t.data_ptr() for t in state.values()}) == len(state)
    extra = {"learned": {"embeddings.position.weight"}, "t5": {"bias.weight"}}.get(kind, set())
    assert {name for name in state if not name.startswith("blocks.")} == {"embeddings.token.weight"} | extra


# What is refused.


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("ids", "more", "message"),
    [
        (torch.tensor([3, 13]), {}, "every token id must be 0 to 12; got 3 to 13"),
        (torch.tensor([-1]), {}, "every token id must be 0 to 12; got -1 to -1"),
        (torch.tensor([1.0]), {}, "ids are whole numbers, the token ids of the vocabulary; got torch.float32"),
        (torch.tensor([True]), {}, "ids are whole numbers, the token ids of the vocabulary; got torch.bool"),
        ((0,), {}, r"ids of shape \(0,\) hold no token"),
        ((2, 0), {}, r"ids of shape \(2, 0\) hold no token"),
        ((), {}, r"ids of shape \(\) hold no token"),
        ((5,), {}, "5 tokens, but this model has positions for 4"),
        ((2, 4), {"left_padding": torch.tensor([1])}, r"row of ids \(2, 4\); it has \(1,\)"),
        ((2, 4), {"left_padding": torch.tensor(1)}, r"row of ids \(2, 4\); it has \(\)"),
        ((4,), {"left_padding": torch.tensor([1])}, r"row of ids \(4,\); it has \(1,\)"),
        ((1, 4), {"left_padding": torch.tensor([-1])}, r"left_padding=\[-1\] must be 0 to 4"),
        ((1, 4), {"left_padding": torch.tensor([5])}, r"left_padding=\[5\] must be 0 to 4"),
        ((1, 4), {"left_padding": torch.tensor([1.0])}, "in whole numbers; got torch.float32"),
        ((1, 4), {"left_padding": torch.tensor([True])}, "in whole numbers; got torch.bool"),
        ((4,), {"context": torch.zeros(3, 8).double()}, "has no cross-attention"),
        ((4,), {"context_mask": mask.padding([3])}, "has no cross-attention"),
        ((4,), {"logits_to_keep": 0}, "logits_to_keep=0: logits of at least 1 token"),
        ((4,), {"logits_to_keep": -2}, "logits_to_keep=-2: logits of at least 1 token"),
    ],
)
@pytest.mark.parametrize("cached", [False, True])
def test_invalid_inputs_are_named(ids, more, message, cached):
    model = decoder(max_positions=4)
    with pytest.raises((ValueError, IndexError, TypeError), match=message):
        model(ids_of(*ids) if isinstance(ids, tuple) else ids, caches=model.caches() if cached else None, **more)


@pytest.mark.parametrize("d_context", [8, 5])
def test_a_missing_context_is_named(d_context):
    """With d_context = d_model, an attention without a context would be a self-attention that sees what follows."""
    model, ids = decoder(d_context=d_context), ids_of(2, 3)
    for caches in (None, model.caches()):
        with pytest.raises(ValueError, match=f"attends to a context of width d_context={d_context}; none was given"):
            model(ids, caches=caches)


def test_positions_run_out_token_by_token_too():
    model = decoder(max_positions=4, positions="learned")
    caches = model.caches()
    for _ in range(4):
        model(torch.tensor([[1]]), caches=caches)
    with pytest.raises(ValueError, match="5 tokens, but this model has positions for 4"):
        model(torch.tensor([[1]]), caches=caches)
    assert caches.num_tokens == 4


def test_padding_takes_no_position():
    model = decoder(max_positions=4, positions="learned")
    ids, left_padding = ids_of(2, 6), torch.tensor([2, 3])
    torch.testing.assert_close(model(ids, left_padding=left_padding)[0, 2:], model(ids[0, 2:]))
    with pytest.raises(ValueError, match="5 tokens, but this model has positions for 4"):
        model(ids, left_padding=torch.tensor([2, 1]))


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("kind", ["sinusoidal", "rotary"])
def test_caches_that_do_not_fit_are_named(kind):
    model, ids = decoder(positions=kind), ids_of(2, 4)
    caches = model.caches()
    model(ids, left_padding=torch.tensor([0, 1]), caches=caches)
    with pytest.raises(ValueError, match="left_padding belongs to the first call of a cache, which remembers it"):
        model(ids, left_padding=torch.tensor([0, 1]), caches=caches)
    for rows in (ids_of(3, 1), ids_of(1, 1), ids_of(2)):
        with pytest.raises(ValueError, match=r"left_padding needs one number per row of ids \("):
            model(rows, caches=caches)
    caches = model.caches()
    model(ids, caches=caches)
    for rows in (ids_of(3, 1), ids_of(2)):
        with pytest.raises(ValueError, match=r"Dynamic holds \(2, 2\) heads of width 4 .* one batch of sequences"):
            model(rows, caches=caches)
    for other in (decoder(windows=(3, 3)), decoder(num_layers=3)):
        with pytest.raises(ValueError, match=r"KVCaches\(2 layers, Dynamic, num_tokens=4\) belong to .* another"):
            other(ids, caches=caches)
    assert model(ids, caches=caches).shape == (2, 4, 13)  # still the same ones


def test_a_mask_over_dropped_tokens_is_refused():
    model = decoder(windows=(None, 3))
    caches, ids = model.caches(), ids_of(1, 5)
    model(ids, mask.padding([5]), caches=caches)
    with pytest.raises(ValueError, match=r"mask=.*sliding cache has dropped 3 of them"):
        model(ids, mask.padding([10]), caches=caches)
    truth = model(torch.cat([ids, ids], dim=1))[:, 5:]
    torch.testing.assert_close(model(ids, caches=caches), truth)  # nothing was kept of what was refused


def test_half_filled_caches_are_refused():
    """The first layer has no limit and the second does: going on would read the refused tokens twice."""
    model = decoder(windows=(3, None))
    caches, ids = model.caches(length=4), ids_of(1, 5)
    with pytest.raises(ValueError, match=r"Static\(length=4\) has room for 4 tokens more; got 5"):
        model(ids, caches=caches)
    with pytest.raises(ValueError, match=r"a call failed halfway, and some layers have its tokens; make new caches"):
        model(ids[:, :2], caches=caches)


def test_a_call_that_failed_leaves_no_padding_behind():
    model = decoder()
    caches = model.caches()
    with pytest.raises(IndexError, match="every token id"):
        model(torch.tensor([[13, 1]]), left_padding=torch.tensor([1]), caches=caches)
    ids = ids_of(1, 2)
    torch.testing.assert_close(model(ids, caches=caches), model(ids))
