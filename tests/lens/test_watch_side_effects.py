"""After watching, the model and the process are as before; watches do not meet; what changed is never shown."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional

import regard
from grids import grid
from lens.left_behind import live_tensors, state_of
from lens.model_cases import MODEL_CASES, cached_eager_maps, eager_maps, load_model, make_inputs, token_mask
from lens.watching import FunctionModel, FunctionModule, assert_map, definition, random_qkv

NO_GRAD_MODES = [torch.no_grad, torch.inference_mode]


def qkv(seed=0, tokens=6):
    return random_qkv(queries=tokens, keys=tokens, seed=seed)


MODELS = {
    "function": lambda: (FunctionModel(), tuple(qkv()), {}),
    "torch": lambda: (nn.TransformerEncoderLayer(16, 4, 20, batch_first=True).eval(), (torch.randn(2, 6, 16),), {}),
    **{name: lambda name=name: (load_model(name), (), make_inputs(name, "right")) for name in ("bert", "llama", "t5")},
}


@pytest.mark.parametrize("name", MODELS)
def test_nothing_stays_behind(name):
    model, args, model_inputs = MODELS[name]()
    before = state_of(model)
    regard.watch(model)  # never entered
    assert state_of(model) == before
    for mode in NO_GRAD_MODES:
        with mode(), regard.watch(model) as recording:
            model(*args, **model_inputs)
        assert state_of(model) == before
        assert all(m.error < 1e-4 for m in recording.values())
        str(recording)
        assert state_of(model) == before


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, GeneratorExit])
def test_nothing_stays_behind_after_an_exception(error):
    model, model_inputs = load_model("bert"), make_inputs("bert", "right")
    before = state_of(model)

    def interrupt(*_):
        raise error

    with pytest.raises(error), torch.no_grad(), regard.watch(model) as recording:  # noqa: PT012
        model(**model_inputs)
        interrupt()
    for path, expected in cached_eager_maps("bert", "right").items():
        assert_map(recording[path], expected, token_mask("right"))
    assert state_of(model) == before
    hook = model.encoder.layer[1].attention.self.value.register_forward_hook(interrupt)
    with pytest.raises(error), regard.watch(model):
        model(**model_inputs)
    hook.remove()
    assert state_of(model) == before


@pytest.fixture
def small_heap():
    """The collector looks at what the test makes only: the millions of objects before it would take seconds."""
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("as_a_user_runs_it", "small_heap")
@pytest.mark.parametrize("name", ["function", "bert", "torch"])
@pytest.mark.parametrize("times", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_watches_leak_nothing(name, times):
    model, args, model_inputs = MODELS[name]()
    if name == "function":
        args = tuple(random_qkv(1, 1, queries=32, keys=32, width=2**14))
    tensors, memory = [], []
    for number in (10, times):
        for _ in range(number):
            with torch.no_grad(), regard.watch(model) as recording:
                model(*(t.clone() for t in args), **model_inputs)
            recording[next(iter(recording))][0, 0, 0]
        tensors.append(len(live_tensors()))
        memory.append(int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) / 1024)
    assert tensors[0] == tensors[1]
    assert memory[1] - memory[0] < 16  # MiB; one tensor kept of each pass of `function` would be 40


@pytest.mark.usefixtures("small_heap")
def test_a_map_keeps_neither_its_recording_nor_the_model():
    q, k, v = qkv()
    with regard.watch(model := FunctionModel()) as recording:
        model(q, k, v)
    m, gone = recording["attn"], (weakref.ref(model), weakref.ref(recording))
    del recording, model
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert_map(m, definition(q, k))


@pytest.mark.usefixtures("small_heap")
def test_a_map_keeps_no_graph():
    """Nor the activations that the backward pass would need."""
    inner = torch.randn(2, 4, 6, 8, requires_grad=True).exp()
    with regard.watch(model := FunctionModel()) as recording:
        model(*[inner.sin()] * 3)
    m, activation = recording["attn"], weakref.ref(inner)
    assert not any(t.requires_grad for t in (m.q, m.k, m.v))
    del inner
    gc.collect()
    assert activation() is None


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("mode", NO_GRAD_MODES)
def test_summaries_hold_no_queries_and_keys(mode):
    """Nothing of the size of tokens x width stays alive while the block goes on."""
    model = FunctionModule(lambda x: functional.scaled_dot_product_attention(x + 1, x + 2, x + 3))
    with mode(), regard.watch(model, keep="summary") as recording:
        for _ in range(3):
            model(torch.randn(1, 2, 50, 6))  # a width of 8 would look like the summary's own top 8 keys
        assert (1, 2, 50, 6) not in live_tensors()
    assert list(recording) == ["", "#1", "#2"]


# Several watches


@pytest.mark.parametrize("outer_first", [True, False])
def test_nested_watches_of_two_models_keep_apart(outer_first):
    """The outer one records its model also while the inner one is on."""
    outer, inner = (lambda name=name: load_model(name)(**make_inputs(name, "right")) for name in ("bert", "gpt2"))
    with torch.no_grad(), regard.watch(load_model("bert")) as first:
        if outer_first:
            outer()
        with regard.watch(load_model("gpt2")) as second:
            inner()
            if not outer_first:
                outer()
    for name, recording in (("bert", first), ("gpt2", second)):
        maps = cached_eager_maps(name, "right")
        assert list(recording) == list(maps)
        for path, expected in maps.items():
            assert_map(recording[path], expected, token_mask("right"))


def test_the_attention_of_another_model_is_not_the_watched_ones():
    """Whatever function calls both: a step of distillation, a closure, a model that is given the other one."""
    student, teacher = FunctionModel(), FunctionModel()

    def step(student, teacher, *inputs):
        module = student  # a name that functions of transformers use
        return module(*inputs), teacher(*inputs), functional.scaled_dot_product_attention(*inputs)

    with regard.watch(student) as recording:
        step(student, teacher, *qkv())
    assert list(recording) == ["attn"]
    with pytest.raises(ValueError, match="no attention was seen"), regard.watch(student):
        (lambda student, x: teacher(*x))(student, qkv())


def test_an_attention_in_another_method_than_forward():
    class Model(FunctionModel):
        def encode(self, *inputs):
            return helper(self, *inputs)

    def helper(module, *inputs):
        return functional.scaled_dot_product_attention(*inputs)

    model = Model()
    with regard.watch(model) as recording:
        model.encode(*qkv())
    assert list(recording) == [""]


def test_a_watch_of_a_part_inside_a_watch_of_the_whole():
    model = load_model("bert")
    with torch.no_grad(), regard.watch(model) as whole, regard.watch(model.encoder.layer[1]) as part:
        model(**make_inputs("bert", "even"))
    assert list(part) == ["attention.self"]
    assert torch.equal(part["attention.self"].dense(), whole["encoder.layer.1.attention.self"].dense())


def test_the_same_model_is_watched_once_at_a_time():
    with regard.watch(model := FunctionModel()) as recording:
        with pytest.raises(ValueError, match="this FunctionModel is watched already in this thread"):
            regard.watch(model).__enter__()
        model(*qkv())
    with regard.watch(model) as again:
        model(*qkv())
    assert list(recording) == list(again) == ["attn"]


def test_threads_keep_apart():
    models = FunctionModel(), FunctionModel()
    barrier = threading.Barrier(3, timeout=60)

    def watch(seed):
        for turn in range(5):
            q, k, v = qkv(100 * seed + turn, tokens=4 + seed)
            with torch.no_grad(), regard.watch(models[seed]) as recording:
                barrier.wait()
                models[seed](q, k, v)
                barrier.wait()
            assert list(recording) == ["attn"]
            assert_map(recording["attn"], definition(q, k))

    def run_only():
        for seed in range(5):
            barrier.wait()
            for model in models:
                model(*qkv(seed, tokens=9))
            barrier.wait()

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(run_only), pool.submit(watch, 0), pool.submit(watch, 1)]:
            done.result()


# Tensors that change


def assert_right(recording, path, expected):
    """A map is the one that the model used, and empty where a buffer of keys was not written."""
    dense, keys = recording[path].dense(), expected.shape[-1]
    torch.testing.assert_close(dense.double()[..., :keys], expected.double(), atol=1e-5, rtol=0)
    assert not dense[..., keys:].any()


def assert_not_overwritten(recording, path, expected, mode):
    """What was written later is noticed; tensors of inference mode, which count no versions, were copied in time."""
    if mode == torch.inference_mode:
        assert_right(recording, path, expected)
        return
    with pytest.raises(RuntimeError, match="changed in place"):
        recording[path].dense()


@grid(changed=["q", "k", "v", "bool mask", "float mask"], mode=NO_GRAD_MODES)
def test_what_is_overwritten_after_the_pass_is_not_used(changed, mode):
    """Values do not make the map, but its proof."""
    with mode():
        model, (q, k, v) = FunctionModel(), qkv()
        mask = torch.ones(6, 6).tril().bool() if changed == "bool mask" else torch.randn(6, 6)
        expected = definition(q, k, **{"allowed" if changed == "bool mask" else "bias": mask.clone()})
        with regard.watch(model) as recording:
            model(q, k, v, mask)
        m = recording["attn"]
        {"q": q, "k": k, "v": v}.get(changed, mask).fill_(1)
    assert_not_overwritten(recording, "attn", expected, mode)
    if mode == torch.no_grad:
        with pytest.raises(RuntimeError, match="changed in place"):
            m.error  # noqa: B018


@pytest.mark.parametrize("mode", NO_GRAD_MODES)
def test_a_mask_that_is_written_again_between_two_layers(mode):

    with mode():
        mask, expected = torch.zeros(6, 6), []

        def run_layers(q, k, v):
            for number, layer in enumerate(model.layers):
                blocked = torch.ones(6, 6).triu(1 + 2 * number).bool()
                mask.zero_().masked_fill_(blocked, -torch.inf)
                expected.append(definition(q, k, allowed=~blocked))
                q = layer(q, k, v, mask)

        model = FunctionModule(run_layers)
        model.layers = nn.ModuleList(FunctionModule(functional.scaled_dot_product_attention) for _ in range(2))
        with regard.watch(model) as recording:
            model(*qkv())
        assert_right(recording, "layers.1", expected[1])
        with pytest.raises(RuntimeError, match="changed in place"):
            recording["layers.0"].dense()


def static_cache(write):
    """A decoder's attention that writes its keys into a buffer made beforehand, and reads all of it or a view."""
    buffers = [torch.zeros(2, 4, 16, 8) for _ in "kv"]

    def forward(q, k, v, start):
        at = torch.arange(start, start + q.shape[2])
        for buffer, new in zip(buffers, (k, v), strict=True):
            if write == "index_copy_":
                buffer.index_copy_(2, at, new)
            else:
                buffer[:, :, start : start + q.shape[2]] = new
        length = start + q.shape[2] if write == "slice, and read a view" else 16
        mask = torch.arange(length) <= at[:, None]
        return functional.scaled_dot_product_attention(q, *(buffer[:, :, :length] for buffer in buffers), mask)

    return FunctionModule(forward)


@grid(write=["index_copy_", "slice", "slice, and read a view"], mode=NO_GRAD_MODES)
def test_a_buffer_of_keys_that_is_filled_step_by_step(write, mode):
    """Read when generation is done; read again when another text was written over it."""
    with mode():
        model = static_cache(write)
        q, k, v = qkv(tokens=9)
        expected = definition(q, k, allowed=torch.ones(9, 9).tril().bool())
        with regard.watch(model) as recording:
            for start, end in ((0, 5), (5, 6), (6, 7), (7, 8), (8, 9)):
                model(*(t[:, :, start:end] for t in (q, k, v)), start)
        assert recording[""].shape[:3] == (2, 4, 9)
        assert_right(recording, "", expected)
        with regard.watch(model) as later:
            model(*(t[:, :, :5] for t in (q, k, v)), 0)
        model(*(t[:, :, :5] for t in qkv(7, tokens=9)), 0)
        assert_not_overwritten(later, "", expected[:, :, :5, :5], mode)


@grid(name=["llama", "gpt2", "mistral"], mode=NO_GRAD_MODES)
def test_a_static_cache_of_transformers(name, mode):
    model, ids = load_model(name), make_inputs(name, "even")["input_ids"]
    maps = eager_maps(name, {"input_ids": ids})
    with mode():
        cache = transformers.StaticCache(config=model.config, max_cache_len=16)
        with regard.watch(model) as recording:
            model(ids[:, :8], past_key_values=cache)
            for i in range(8, 12):
                model(ids[:, i : i + 1], past_key_values=cache)
        assert list(recording) == list(maps)
        for path, expected in maps.items():
            assert recording[path].shape[2] == 12
            assert_right(recording, path, expected)
        cache.reset()
        model(ids.flip(1)[:, :8], past_key_values=cache)
        for path, expected in maps.items():
            # The sliding cache of Mistral gives the model copies.
            assert_not_overwritten(recording, path, expected, torch.inference_mode if name == "mistral" else mode)


def test_weights_that_learn_afterwards_change_no_map():
    """Queries and keys are the model's products, not its weights."""
    model, model_inputs = MODEL_CASES["llama"].build(), make_inputs("llama", "even")
    maps = eager_maps("llama", model_inputs, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with regard.watch(model) as recording:
        model(**model_inputs).last_hidden_state.sum().backward()
    optimizer.step()
    for path, expected in maps.items():
        assert_map(recording[path], expected)


@pytest.mark.parametrize(
    ("tensor", "options"),
    [
        (bias := torch.zeros(1, 5, 5), {"bias": bias}),
        (sinks := torch.zeros(1), {"sinks": sinks}),
        (allowed := torch.ones(5, 5).bool(), {"mask": regard.mask.allowed(allowed)}),
        ((positions := regard.positions.T5Relative(1)).weight, {"bias": positions}),
    ],
    ids=["bias", "sinks", "allowed", "positions"],
)
def test_options_of_attend_that_changed_are_noticed(tensor, options):
    model = FunctionModule(lambda x: regard.attend(x, x, x, **options))
    with torch.no_grad(), regard.watch(model) as recording:
        model(torch.randn(2, 1, 5, 8))
    assert recording[""].dense().sum(-1).max() <= 1.0001
    with torch.no_grad():
        tensor[..., 0] = 1
    with pytest.raises(RuntimeError, match="changed in place"):
        recording[""].dense()
