"""After watching, the model and the process are as before; watches do not meet; what changed is never shown."""

from __future__ import annotations

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
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import regard
from grids import grid
from lens.model_cases import MODEL_CASES, cached_eager_maps, eager_maps, load_model, make_inputs, token_mask
from lens.watching import FunctionModel, FunctionModule, assert_map, definition, random_qkv

NO_GRAD_MODES = [torch.no_grad, torch.inference_mode]


def qkv(seed=0, tokens=6):
    return random_qkv(queries=tokens, keys=tokens, seed=seed)


HOOKS = [name for name in vars(nn.Module()) if "hook" in name]
PATCHABLE = functional, torch.Tensor, torch._C._nn, nn.Module, nn.MultiheadAttention, nn.TransformerEncoderLayer


def traces(model):
    """Everything that a watch could leave behind."""

    def of_module(module):
        hooks = [len(vars(module)[name] or ()) for name in HOOKS if hasattr(vars(module)[name], "__len__")]
        parameters = [(id(p), p._version, p.grad) for p in module.parameters(recurse=False)]
        return type(module), module.training, sorted(vars(module)), hooks, parameters

    global_hooks = [hooks for name, hooks in vars(nn.modules.module).items() if name.startswith("_global")]
    return {
        "functions": [dict(vars(place)) for place in PATCHABLE] + [torch.softmax, torch.matmul, torch.einsum],
        "modes": (torch._C._len_torch_function_stack(), len(_get_current_dispatch_mode_stack())),
        "global hooks": [len(hooks) for hooks in global_hooks if hasattr(hooks, "__len__")],
        "threads": threading.active_count(),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "settings": (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.get_default_dtype()),
        "saved hooks": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "random": torch.get_rng_state().tolist(),
        "modules": [(name, of_module(module)) for name, module in model.named_modules()],
    }


MODELS = {
    "function": lambda: (FunctionModel(), tuple(qkv()), {}),
    "torch": lambda: (nn.TransformerEncoderLayer(16, 4, 20, batch_first=True).eval(), (torch.randn(2, 6, 16),), {}),
    **{name: lambda name=name: (load_model(name), (), make_inputs(name, "right")) for name in ("bert", "llama", "t5")},
}


@pytest.mark.parametrize("name", MODELS)
def test_nothing_stays_behind(name):
    model, args, model_inputs = MODELS[name]()
    before = traces(model)
    regard.watch(model)  # never entered
    assert traces(model) == before
    for mode in NO_GRAD_MODES:
        with mode(), regard.watch(model) as recording:
            model(*args, **model_inputs)
        assert traces(model) == before
        assert all(m.error < 1e-4 for m in recording.values())
        str(recording)
        assert traces(model) == before


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, GeneratorExit])
def test_nothing_stays_behind_after_an_exception(error):
    """In the block, or in the middle of the model. What was recorded before can be read."""
    model, model_inputs = load_model("bert"), make_inputs("bert", "right")
    before = traces(model)

    def interrupt(*_):
        raise error

    with pytest.raises(error), torch.no_grad(), regard.watch(model) as recording:  # noqa: PT012
        model(**model_inputs)
        interrupt()
    for path, expected in cached_eager_maps("bert", "right").items():
        assert_map(recording[path], expected, token_mask("right"))
    assert traces(model) == before
    hook = model.encoder.layer[1].attention.self.value.register_forward_hook(interrupt)
    with pytest.raises(error), regard.watch(model):
        model(**model_inputs)
    hook.remove()
    assert traces(model) == before


@pytest.fixture
def small_heap():
    """The collector looks at what the test makes only: the millions of objects before it would take seconds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def live_tensors():
    gc.collect()
    return [t.shape for t in gc.get_objects() if issubclass(type(t), torch.Tensor)]


@pytest.mark.usefixtures("as_a_user_runs_it", "small_heap")
@pytest.mark.parametrize("name", ["function", "bert", "torch"])
@pytest.mark.parametrize("times", [20, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_watches_leak_nothing(name, times):
    """Each watches one pass and reads a little of it."""
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
    """Each watches its own model and sees its own passes only; those of a thread that does not watch are not seen."""
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


@pytest.mark.parametrize("changed", ["q", "k", "v"])
def test_a_map_of_tensors_that_changed_is_refused(changed):
    """Values do not make the map, but its proof."""
    args = qkv()
    with torch.no_grad(), regard.watch(model := FunctionModel()) as recording:
        model(*args)
    m = recording["attn"]
    args["qkv".index(changed)].mul_(2)
    for read in (lambda: m.error, lambda: recording["attn"].error):
        with pytest.raises(RuntimeError, match="changed in place"):
            read()


@grid(changed=["k", "bool mask", "float mask"], mode=NO_GRAD_MODES)
def test_what_is_overwritten_after_the_pass_is_not_used(changed, mode):
    with mode():
        model, (q, k, v) = FunctionModel(), qkv()
        mask = torch.ones(6, 6).tril().bool() if changed == "bool mask" else torch.randn(6, 6)
        expected = definition(q, k, **{"allowed" if changed == "bool mask" else "bias": mask.clone()})
        with regard.watch(model) as recording:
            model(q, k, v, mask)
        (k if changed == "k" else mask).fill_(1)
    assert_not_overwritten(recording, "attn", expected, mode)


@pytest.mark.parametrize("mode", NO_GRAD_MODES)
def test_a_mask_that_is_written_again_between_two_layers(mode):
    """One buffer, of which each layer sees other numbers."""

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


# Generations


def test_another_text_of_the_same_length_and_end_is_not_stitched_on():
    """Keys of layer 0 depend on token and position only, so the last ones of two texts can be equal.

    The third call continues the first text.
    """
    model, a, b = load_model("gpt2"), torch.tensor([[1, 2, 3, 4, 9]]), torch.tensor([[5, 6, 7, 8, 9]])
    with torch.no_grad(), regard.watch(model) as recording:
        first = model(a, use_cache=True)
        model(b)
        model(torch.tensor([[11]]), past_key_values=first.past_key_values)
    for text, mark in ((torch.tensor([[1, 2, 3, 4, 9, 11]]), ""), (b, "#1")):
        for path, expected in eager_maps("gpt2", {"input_ids": text}).items():
            assert_map(recording[path + mark], expected)
    assert len(recording) == 4


def test_heads_of_a_generation_with_folded_heads():
    """transformers folds heads that share keys into the queries of one token, where there is padding."""
    model = MODEL_CASES["llama"].build("ForCausalLM")
    model_inputs = {**make_inputs("llama", "left"), "max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}

    def generate(**options):
        with torch.no_grad(), regard.watch(model, **options) as recording:
            model.generate(**model_inputs, pad_token_id=0)
        return recording

    whole, some = generate(), generate(heads=[3, 1])
    for path, m in some.items():
        assert whole[path].shape == (3, 4, 15, 15)
        assert torch.equal(m.dense(), whole[path].dense()[:, [3, 1]])
        assert m.error < 1e-4
    steps = generate(keep="summary")
    assert [m.shape[1:3] for m in steps.values()] == [(4, 12)] * 2 + [(4, 1)] * 6
    assert steps.notes == ()


# Options, and what cannot be watched


def test_some_layers_and_heads():
    model, path = load_model("llama"), "layers.1.self_attn"
    with torch.no_grad(), regard.watch(model, layers=[1], heads=[0, 3]) as recording:
        model(**make_inputs("llama", "right"))
    assert list(recording) == [path]
    assert_map(recording[path], cached_eager_maps("llama", "right")[path][:, [0, 3]], token_mask("right"))
    with pytest.raises(ValueError, match="rollout needs every layer"):
        recording.rollout(2)


def test_a_layer_that_is_skipped_keeps_the_others_numbers():
    model = FunctionModule(lambda x: model.layers[3](model.layers[2](model.layers[0](x))))
    model.layers = nn.ModuleList(regard.MultiHeadAttention(16, 2) for _ in range(4))
    with torch.no_grad(), regard.watch(model, layers=[2]) as recording:
        model(torch.randn(1, 5, 16))
    assert list(recording) == ["layers.2"]
    assert recording.entry("layers.2").layer == 2


def test_two_attentions_of_a_numbered_block_are_of_one_layer_and_of_a_model_are_two_layers():
    def two_attentions():
        module = FunctionModule(lambda x: module.attn2(module.attn1(x)))
        module.attn1, module.attn2 = (regard.MultiHeadAttention(16, 2) for _ in range(2))
        return module

    x = torch.randn(1, 5, 16)
    alone, blocks = two_attentions(), nn.Sequential(two_attentions(), two_attentions())
    with torch.no_grad(), regard.watch(alone) as recording:
        alone(x)
    assert [recording.entry(path).layer for path in ("attn1", "attn2")] == [0, 1]
    with torch.no_grad(), regard.watch(blocks, layers=[1]) as recording:
        blocks(x)
    assert list(recording) == ["1.attn1", "1.attn2"]


def test_summaries_answer_as_the_maps_do():
    model, model_inputs = load_model("t5"), make_inputs("t5", "right")
    with torch.no_grad():
        with regard.watch(model) as maps:
            expected = model(**model_inputs)[0]
        with regard.watch(model, keep="summary") as summaries:
            assert torch.equal(expected, model(**model_inputs)[0])
    assert list(maps) == list(summaries)
    for path in maps:
        ours, of_map = ((m.entropy(), m.received(), *m.distance(), m.error) for m in (summaries[path], maps[path]))
        torch.testing.assert_close(ours, of_map, atol=1e-6, rtol=1e-5)
        assert summaries[path].shape == maps[path].shape
        with pytest.raises(AttributeError, match='keep="maps"'):
            summaries[path].dense()


def test_a_float32_mask_in_bfloat16():
    q, mask = torch.randn(1, 2, 5, 8).bfloat16(), torch.randn(5, 5)
    with torch.no_grad(), regard.watch(model := FunctionModel()) as recording:
        model(q, q, q, mask)
    assert recording["attn"].verified
    assert "sdpa" in str(recording)


def test_a_model_without_attention_is_named():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises(ValueError, match=r"no attention was seen in Sequential.*not called"), regard.watch(model):
        model(torch.randn(2, 4))


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("wrong", "message"),
    [(None, "Module"), (FunctionModel, "Module"), ("a text", "got the text 'a text': for a text regard.see")],
)
def test_what_is_no_module_is_refused(wrong, message):
    with pytest.raises(TypeError, match=message), regard.watch(wrong):
        pass


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": "everything"}, "keep='everything'"),
        ({"layers": [7]}, r"layers=\[7\]: BertModel has 2 layers, 0 to 1"),
        ({"heads": [4]}, r"heads=\[4\]: BertModel has 4 heads, 0 to 3"),
        *(({"layers": wrong}, r"^layers=.*: a list of numbers counted from 0") for wrong in (1, "1", [], [-1], [1.0])),
        ({"heads": [True]}, r"^heads=.*: a list of numbers counted from 0, such as \[0, 3\]$"),
    ],
)
def test_options_that_do_not_exist_are_refused(options, message):
    model = load_model("bert")
    with pytest.raises(ValueError, match=message), torch.no_grad(), regard.watch(model, **options):
        model(**make_inputs("bert", "even"))
    assert torch._C._len_torch_function_stack() == 0
