"""One generation is one map per attention, however the model is called: chunks, beams, guesses, several answers."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from grids import grid
from lens.explained import pretrained
from lens.model_cases import MODEL_CASES, eager_maps
from lens.watching import FunctionModule, assert_map, definition, random_qkv

NAMES = ["gpt2", "llama"]
IDS = torch.tensor([[5, 9, 7, 5, 9, 7, 5, 9]])
GREEDY = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": 8, "min_new_tokens": 8}


def language_model(name: str) -> nn.Module:
    return MODEL_CASES[name].build("LMHeadModel" if name == "gpt2" else "ForCausalLM")


def watch_generation(model, ids=IDS, **options):
    """The recording and the text, which is that of an unwatched generation."""
    expected = model.generate(ids, **{**GREEDY, **options})
    with regard.watch(model) as recording:
        text = model.generate(ids, **{**GREEDY, **options})
    assert torch.equal(text, expected)
    assert not recording.notes
    return recording, text


def maps_of(name, model, text):
    """What the eager model gives out for a text, by the paths of a language model."""
    maps = eager_maps(name, {"input_ids": text}, model.base_model)
    return {f"{model.base_model_prefix}.{path}": m for path, m in maps.items()}


@grid(name=NAMES, kernel=["sdpa", "eager"])
def test_beams_that_change_places_are_followed(name, kernel):
    """Each row of the map is one beam from its first token on: the texts that are returned are among them."""
    model = language_model(name)
    model.set_attn_implementation(kernel)
    recording, text = watch_generation(model, IDS[:, :3], num_beams=4, num_return_sequences=4)
    read = text[:, :-1].unique(dim=0)
    expected = maps_of(name, model, read)
    assert list(recording) == list(expected)
    for path, m in recording.items():
        assert m.verified
        differences = (m.dense()[None] - expected[path][:, None]).abs().amax((2, 3, 4))
        assert (differences.amin(1) < 1e-5).all()


def test_beams_of_a_translation():
    """The cross-attention's rows follow the decoder's beams, whose source has the same keys."""
    model = MODEL_CASES["bart"].build("ForConditionalGeneration")
    recording, text = watch_generation(model, num_beams=4, num_return_sequences=4, decoder_start_token_id=3)
    read = text[:, :-1].unique(dim=0)
    source = {"input_ids": IDS.expand(len(read), -1), "decoder_input_ids": read}
    for path, expected in eager_maps("bart", source, model).items():
        m = recording[f"model.{path}"]
        assert m.verified
        if m.shape[2:] == expected.shape[2:]:
            differences = (m.dense()[None] - expected[:, None]).abs().amax((2, 3, 4))
            assert (differences.amin(1) < 1e-5).all()
    assert len(recording) == 6


@pytest.mark.parametrize("name", NAMES)
def test_guessed_tokens_that_were_refused_are_no_rows(name):
    """Prompt lookup: several tokens at once, of which the cache keeps those that are right."""
    model = language_model(name)
    recording, text = watch_generation(model, prompt_lookup_num_tokens=3)
    for (path, m), (own, expected) in zip(recording.items(), maps_of(name, model, text).items(), strict=True):
        assert path == own
        rows = m.shape[2]
        assert rows >= text.shape[1] - 1
        part = min(rows, text.shape[1])
        torch.testing.assert_close(m.dense()[:, :, :part, :part], expected[:, :, :part, :part], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_an_assistants_layers_are_not_the_models(name):
    model, assistant = language_model(name), language_model(name)
    with torch.no_grad():
        for p in assistant.parameters():
            p.mul_(1.01)
    recording, text = watch_generation(model, assistant_model=assistant)
    assert list(recording) == list(maps_of(name, model, text))
    assert all(m.verified for m in recording.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_in_chunks_and_a_second_turn(name):
    model = language_model(name)
    text = torch.cat([IDS, IDS.flip(1), IDS], 1)
    with torch.no_grad(), regard.watch(model) as recording:
        cache = None
        for part in text.split([5, 3, 1, 1, 6, 8], 1):
            cache = model(part, past_key_values=cache, use_cache=True).past_key_values
    for (path, m), (own, expected) in zip(recording.items(), maps_of(name, model, text).items(), strict=True):
        assert path == own
        assert_map(m, expected)


@pytest.mark.parametrize("name", NAMES)
def test_several_answers_to_one_prompt(name):
    """On copies of its cache: the first continues the prompt's map, each other has a map of its own."""
    model, answers = language_model(name), torch.tensor([[[11, 12, 13]], [[21, 22, 23]], [[31, 12, 14]]])
    with torch.no_grad(), regard.watch(model) as recording:
        prompt = model(IDS, use_cache=True).past_key_values
        caches = [copy.deepcopy(prompt) for _ in answers]
        for step in range(3):  # in turns
            for answer, cache in zip(answers, caches, strict=True):
                model(answer[:, step : step + 1], past_key_values=cache)
    for number, answer in enumerate(answers):
        for path, expected in maps_of(name, model, torch.cat([IDS, answer], 1)).items():
            m = recording[path + (f"#{number}" if number else "")]
            assert_map(m, expected if not number else expected[:, :, -3:])
    assert len(recording) == 6


@pytest.mark.parametrize("name", NAMES)
def test_classifier_free_guidance_is_two_texts(name):
    model = language_model(name)
    other = IDS.flip(1)
    recording, text = watch_generation(model, guidance_scale=1.5, negative_prompt_ids=other)
    texts = text[:, :-1], torch.cat([other, text[:, 8:-1]], 1)
    for mark, one in zip(("", "#1"), texts, strict=True):
        for path, expected in maps_of(name, model, one).items():
            assert_map(recording[path + mark], expected)
    assert len(recording) == 4


def test_keys_that_were_rewritten_between_two_calls_are_not_continued():
    """In a buffer made beforehand, of which each call reads what is written."""
    q, k, v = random_qkv(queries=16, keys=16)
    model = FunctionModule(lambda *args: model.attn(*args))
    model.attn = FunctionModule(sdpa)
    with torch.no_grad(), regard.watch(model) as recording:
        model(q[:, :, :5], k[:, :, :5], v[:, :, :5])
        k[:, :, :5] = 1
        model(q[:, :, 5:6], k[:, :, :6], v[:, :, :6])
    assert list(recording) == ["attn", "attn#1"]
    assert_map(recording["attn#1"], definition(q[:, :, 5:6], k[:, :, :6]))
    with pytest.raises(RuntimeError, match="changed in place"):
        recording["attn"].dense()


def test_a_row_that_the_mask_hides_from_every_key_is_uniform_in_a_generation_too():
    """The lowest number of the dtype on every key: the scores are lost in the sum."""
    q, k, v = random_qkv(queries=4, keys=4)
    mask = torch.zeros(3, 3).masked_fill(torch.ones(3, 3).triu(1).bool(), torch.finfo(torch.float32).min)
    mask[0] = torch.finfo(torch.float32).min
    model = FunctionModule(lambda *args: model.attn(*args))
    model.attn = FunctionModule(sdpa)
    with torch.no_grad(), regard.watch(model) as recording:
        model(q[:, :, :3], k[:, :, :3], v[:, :, :3], mask)
        model(q[:, :, 3:], k, v, torch.zeros(1, 4))
    expected = definition(q, k, allowed=torch.ones(4, 4).tril().bool())
    expected[:, :, 0] = torch.tensor([1 / 3, 1 / 3, 1 / 3, 0])
    assert list(recording) == ["attn"]
    assert_map(recording["attn"], expected)


def test_a_text_that_the_mask_hides_whole_is_uniform_in_a_generation_too():
    """One row of the mask for all queries, as transformers expands it: the second text is all padding."""
    q, k, v = random_qkv(queries=4, keys=4)
    hidden = torch.zeros(2, 1, 1, 4)
    hidden[1] = torch.finfo(torch.float32).min
    model = FunctionModule(lambda *args: model.attn(*args))
    model.attn = FunctionModule(sdpa)
    with torch.no_grad(), regard.watch(model) as recording:
        model(q[:, :, :3], k[:, :, :3], v[:, :, :3], hidden[..., :3].expand(2, 1, 3, 3))
        model(q[:, :, 3:], k, v, hidden)
    m = recording["attn"].dense()
    torch.testing.assert_close(m[1, :, 3], torch.full((4, 4), 0.25))
    torch.testing.assert_close(m[1, :, 0], torch.tensor([1 / 3, 1 / 3, 1 / 3, 0]).expand(4, 4))


def test_two_passes_over_the_keys_of_one_source():
    """They are no steps of a generation."""
    q, k, v = random_qkv()
    model = FunctionModule(lambda q: model.cross_attn(q, k, v))
    model.cross_attn = FunctionModule(sdpa)
    with regard.watch(model) as recording:
        model(q)
        model(q.flip(2))
    assert list(recording) == ["cross_attn", "cross_attn#1"]
    assert_map(recording["cross_attn#1"], definition(q.flip(2), k))


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
@pytest.mark.parametrize("strategy", [regard.Greedy(), regard.Sample(seed=1)], ids=["greedy", "sample"])
def test_a_generation_of_regard_itself_is_one_map(family, strategy):
    """Its decoding steps call no module of the model, so under `watch` the model's own forward takes their place."""
    model = pretrained(family).model
    expected = regard.generate(model, IDS, max_new_tokens=8, strategy=strategy)
    with regard.watch(model) as recording:
        text = regard.generate(model, IDS, max_new_tokens=8, strategy=strategy)
    assert torch.equal(text, expected)
    assert not recording.notes
    with regard.watch(model) as at_once, torch.inference_mode():
        model(text[:, :-1])
    assert list(recording) == list(at_once)
    for path, m in at_once.items():
        assert (recording[path].dense() - m.dense()).abs().max() < 1e-5


def test_the_beams_of_regard_itself_are_a_map_behind_that_of_their_prompt():
    """The prompt is read once for all beams; then each beam is a row."""
    model, beams = pretrained("llama").model, regard.Beam(num_beams=2)
    with regard.watch(model) as recording:
        text = regard.generate(model, IDS, max_new_tokens=8, strategy=beams)
    assert not recording.notes
    with regard.watch(model) as at_once, torch.inference_mode():
        model(text[:, :-1])
    prompt = IDS.shape[1]
    for path, expected in at_once.items():
        rows, steps = expected.dense().split([prompt, text.shape[1] - 1 - prompt], dim=2)
        assert (recording[path].dense() - rows[..., :prompt]).abs().max() < 1e-5
        differences = (recording[f"{path}#1"].dense() - steps).abs().amax((1, 2, 3))
        assert differences.shape == (2,)
        assert differences.min() < 1e-5


def test_a_stream_is_recorded_from_where_the_watching_begins():
    model = pretrained("llama").model
    pieces = regard.stream(model, IDS[0].tolist(), max_new_tokens=8)
    first = [next(pieces) for _ in range(3)]
    with regard.watch(model) as recording:
        rest = list(pieces)
    assert first + rest == regard.generate(model, IDS, max_new_tokens=8)[0, IDS.shape[1] :].tolist()
    (path, m), *_ = recording.items()
    assert (path, m.shape[2]) == ("blocks.0.attention", len(rest))
