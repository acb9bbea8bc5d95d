"""After watching, the model and the process are as before; watches do not meet; what changed is never shown."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import pytest
import torch
import transformers
from model_cases import GROUPED, eager_maps, load_model, make_inputs, sharpen
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import regard
from regard import InputError


class Attention(nn.Module):
    """One attention, whose tensors the test holds."""

    def forward(self, q, k, v):
        return functional.scaled_dot_product_attention(q, k, v)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = Attention()

    def forward(self, q, k, v):
        return self.attn(q, k, v)


def qkv(seed=0, tokens=6):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 4, tokens, 8, generator=generator) for _ in range(3)]


def weights(q, k):
    return (q.double() @ k.double().mT / q.shape[-1] ** 0.5).softmax(-1)


HOOKS = [name for name in vars(nn.Module()) if "hook" in name]
NAMES = [
    (functional, "scaled_dot_product_attention"),
    (functional, "multi_head_attention_forward"),
    (functional, "softmax"),
    (torch, "softmax"),
    (torch, "matmul"),
    (torch, "bmm"),
    (torch, "einsum"),
    (torch, "_transformer_encoder_layer_fwd"),
    (torch, "_native_multi_head_attention"),
    (torch.Tensor, "softmax"),
    (torch.Tensor, "__matmul__"),
    (torch._C._nn, "scaled_dot_product_attention"),
    (nn.Module, "__call__"),
    (nn.Module, "_call_impl"),
    (nn.MultiheadAttention, "forward"),
    (nn.TransformerEncoderLayer, "forward"),
    (torch.nn.attention.flex_attention, "flex_attention")
    if hasattr(torch.nn.attention, "flex_attention")
    else (nn, "Linear"),
]


def traces(model):
    """Everything that a watch could leave behind."""
    return {
        "functions": [getattr(place, name) for place, name in NAMES],
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": len(_get_current_dispatch_mode_stack()),
        "global hooks": [
            len(h) for n, h in vars(nn.modules.module).items() if n.startswith("_global") and hasattr(h, "__len__")
        ],
        "threads": threading.active_count(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "threads of torch": (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()),
        "dtype": torch.get_default_dtype(),
        "saved hooks": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "random": torch.get_rng_state().tolist(),
        "modules": [
            (
                name,
                type(module),
                module.training,
                sorted(vars(module)),
                [len(vars(module)[hook] or ()) for hook in HOOKS if hasattr(vars(module)[hook], "__len__")],
                [id(p) for p in module.parameters(recurse=False)],
            )
            for name, module in model.named_modules()
        ],
        "versions": [p._version for p in model.parameters()],
        "grads": [p.grad for p in model.parameters()],
    }


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "torch", "own"])
def test_nothing_stays_behind(name):
    if name == "torch":
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 20, batch_first=True), 2).eval()
        model_inputs, args = {}, (torch.randn(2, 6, 16),)
    elif name == "own":
        model, model_inputs, args = Model(), {}, tuple(qkv())
    else:
        model, model_inputs, args = load_model(name), make_inputs(name, "right"), ()
    before = traces(model)
    with torch.no_grad(), regard.watch(model) as recording:
        model(*args, **model_inputs)
    assert traces(model) == before
    for path in recording:
        recording[path].entropy()
        assert recording[path].error < 1e-4
    str(recording)
    assert traces(model) == before
    with torch.inference_mode(), regard.watch(model):
        model(*args, **model_inputs)
    assert traces(model) == before


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, GeneratorExit])
def test_nothing_stays_behind_after_an_exception(error):
    """In the block, or in the middle of the model."""
    model, model_inputs = load_model("bert"), make_inputs("bert", "right")
    before = traces(model)
    with pytest.raises(error), regard.watch(model):  # noqa: PT012
        model(**model_inputs)
        raise error
    assert traces(model) == before

    def interrupt(*_):
        raise error

    hook = model.encoder.layer[1].attention.self.value.register_forward_hook(interrupt)
    with pytest.raises(error), regard.watch(model):
        model(**model_inputs)
    hook.remove()
    assert traces(model) == before
    with torch.no_grad(), regard.watch(model) as recording:
        model(**model_inputs)
    for path, dense in eager_maps("bert", model_inputs).items():
        assert recording[path].shape == dense.shape


def test_what_was_seen_before_an_exception_can_be_read():
    model = load_model("bert")
    model_inputs = make_inputs("bert", "even")
    kept_recording = None
    with pytest.raises(RuntimeError, match="after the model"), torch.no_grad(), regard.watch(model) as recording:  # noqa: PT012
        kept_recording = recording
        model(**model_inputs)
        raise RuntimeError("after the model")
    for path, dense in eager_maps("bert", model_inputs).items():
        torch.testing.assert_close(kept_recording[path].dense(), dense, atol=1e-5, rtol=0)


def test_hooks_of_others_stay():
    model, calls = Model(), []
    model.attn.register_forward_hook(lambda *_: calls.append("after"))
    model.attn.register_forward_pre_hook(lambda *_: calls.append("before"))
    before = traces(model)
    with regard.watch(model):
        model(*qkv())
    assert calls == ["before", "after"]
    assert traces(model) == before


def test_watch_is_used_with_with():
    """What is made and never entered does nothing."""
    model = Model()
    before = traces(model)
    regard.watch(model)
    assert traces(model) == before


def live():
    gc.collect()
    return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())


def resident():
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


MODELS = {
    "own": lambda: (Model(), tuple(qkv(tokens=64)), {}),
    "bert": lambda: (load_model("bert"), (), make_inputs("bert", "right")),
    "torch": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 20, batch_first=True), 1).eval(),
        (torch.randn(2, 6, 16),),
        {},
    ),
}
LONG_BERT, LONG_TORCH = (pytest.param(name, 1000, marks=pytest.mark.slow) for name in ("bert", "torch"))


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize(("name", "times"), [("own", 1000), ("bert", 20), ("torch", 20), LONG_BERT, LONG_TORCH])
def test_a_thousand_watches_leak_nothing(name, times):
    """Each watches one pass and reads a little of it."""
    model, args, model_inputs = MODELS[name]()

    def once():
        with torch.no_grad(), regard.watch(model) as recording:
            model(*args, **model_inputs)
        recording[next(iter(recording))][0, 0, 0]

    for _ in range(times // 10):
        once()
    tensors, memory = live(), resident()
    for _ in range(times):
        once()
    assert live() == tensors
    assert resident() - memory < 8  # MiB; one tensor kept of each pass of `own` would be 16 at least


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_thousand_passes_in_one_watch_leak_nothing():
    model, args = Model(), tuple(qkv())
    tensors = live()
    with torch.no_grad(), regard.watch(model) as recording:
        for _ in range(1000):
            model(*args)
    assert len(recording) >= 1
    del recording
    assert live() == tensors


def test_a_recording_does_not_outlive_its_last_reference_nor_keep_the_model():
    model, args = Model(), tuple(qkv())
    with regard.watch(model) as recording:
        model(*args)
    m = recording["attn"]
    gone = weakref.ref(model)
    recording_ref = weakref.ref(recording)
    del recording
    assert m.error < 1e-4
    del model
    gc.collect()
    assert recording_ref() is None
    assert gone() is None, "a recording keeps the model alive"
    torch.testing.assert_close(m.dense().double(), weights(*args[:2]), atol=1e-5, rtol=0)


def test_a_map_keeps_no_graph():
    """Nor the activations that the backward pass would need."""
    model = Model()
    q, k, v = (t.requires_grad_() for t in qkv())
    with regard.watch(model) as recording:
        inner = q.exp()
        out = model(inner.sin(), k.sin(), v.sin())
    m = recording["attn"]
    assert not any(t.requires_grad for t in (m.q, m.k, m.v, m.dense(), m.entropy(), m.received()))
    activation = weakref.ref(inner)
    del inner, out
    gc.collect()
    assert activation() is None


# Several watches


def test_nested_watches_of_two_models():
    one, two = load_model("bert"), load_model("gpt2")
    a, b = make_inputs("bert", "right"), make_inputs("gpt2", "even")
    with torch.no_grad(), regard.watch(one) as first:
        one(**a)
        with regard.watch(two) as second:
            two(**b)
    for recording, name, model_inputs in ((first, "bert", a), (second, "gpt2", b)):
        expected = eager_maps(name, model_inputs)
        assert list(recording) == list(expected)
        rows = (
            model_inputs["attention_mask"].bool()[:, None, :, None]
            if "attention_mask" in model_inputs
            else torch.tensor(True)
        )
        for path, dense in expected.items():
            assert ((recording[path].dense() - dense) * rows).abs().max() <= 1e-5


def test_the_outer_of_two_nested_watches_sees_its_model_inside_the_inner_one():
    one, two = Model(), Model()
    with regard.watch(one) as first, regard.watch(two) as second:
        two(*qkv(1))
        one(*qkv(2))
    for recording, seed in ((first, 2), (second, 1)):
        assert list(recording) == ["attn"]
        torch.testing.assert_close(recording["attn"].dense().double(), weights(*qkv(seed)[:2]), atol=1e-5, rtol=0)


def test_a_watch_of_a_part_inside_a_watch_of_the_whole():
    model, model_inputs = load_model("bert"), make_inputs("bert", "even")
    with torch.no_grad(), regard.watch(model) as whole, regard.watch(model.encoder.layer[1]) as part:
        model(**model_inputs)
    assert list(part) == ["attention.self"]
    assert torch.equal(part["attention.self"].dense(), whole["encoder.layer.1.attention.self"].dense())


def test_the_same_model_twice_is_an_error():
    model, before = Model(), traces(Model())
    with regard.watch(model) as recording:
        with pytest.raises((ValueError, RuntimeError, InputError), match="already"), regard.watch(model):
            pass
        model(*qkv())
    assert list(recording) == ["attn"]
    with regard.watch(model) as again:  # one after the other is fine
        model(*qkv())
    assert list(again) == ["attn"]
    assert {k: v for k, v in traces(model).items() if k != "modules"} == {
        k: v for k, v in before.items() if k != "modules"
    }


def together(*calls):
    """Run each in a thread of its own, all at once; the first error of any of them."""
    errors, barrier = [], threading.Barrier(len(calls))

    def run(call):
        try:
            call(barrier)
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_threads_that_watch_keep_apart():
    """Each its own model, and each sees its own passes only."""
    models = [Model(), Model(), Model()]

    def watcher(i):
        def call(barrier):
            for turn in range(20):
                model_inputs = qkv(100 * i + turn, tokens=4 + i)
                barrier.wait()
                with torch.no_grad(), regard.watch(models[i]) as recording:
                    models[i](*model_inputs)
                    barrier.wait()
                assert list(recording) == ["attn"]
                torch.testing.assert_close(
                    recording["attn"].dense().double(), weights(*model_inputs[:2]), atol=1e-5, rtol=0
                )

        return call

    before = [traces(model) for model in models]
    together(*(watcher(i) for i in range(3)))
    assert [traces(model) for model in models] == before


def test_a_thread_that_does_not_watch_is_not_recorded():
    """Not with a model of its own, nor with the one that is watched: that run is not of this thread's block."""
    model, other = Model(), Model()
    model_inputs = qkv(1)

    def watching(barrier):
        with torch.no_grad(), regard.watch(model) as recording:
            barrier.wait()
            model(*model_inputs)
            barrier.wait()
        assert list(recording) == ["attn"]
        assert recording["attn"].shape == (2, 4, 6, 6)
        torch.testing.assert_close(recording["attn"].dense().double(), weights(*model_inputs[:2]), atol=1e-5, rtol=0)

    def running(barrier):
        barrier.wait()
        for seed in range(20):
            other(*qkv(seed, tokens=9))
            model(*qkv(seed, tokens=9))
        barrier.wait()

    together(watching, running)


# Tensors that change


def test_a_map_of_tensors_that_changed_is_refused():
    """Each of them, whatever is asked; what was answered before stays."""
    for changed in range(3):
        model, model_inputs = Model(), qkv()
        with torch.no_grad(), regard.watch(model) as recording:
            model(*model_inputs)
        before = recording["attn"].entropy()
        model_inputs[changed].mul_(2)
        questions = [
            lambda m: m.dense(),
            lambda m: m[0, 0, 0],
            lambda m: m.received(),
            lambda m: m.mass(torch.arange(6) % 2),
            lambda m: m.distance(),
            lambda m: m.top(2),
            lambda m: m.pooled(2, 2),
        ]
        for ask in questions if changed < 2 else ():
            with pytest.raises((RuntimeError, ValueError, InputError), match="changed"):
                ask(recording["attn"])
        if changed == 2:  # values do not make the map, but its proof
            with pytest.raises((RuntimeError, ValueError, InputError), match="changed"):
                _ = recording["attn"].error
        assert before.isfinite().all()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_mask_that_changed_is_not_used(mode):
    class Masked(nn.Module):
        def forward(self, q, k, v, mask):
            return functional.scaled_dot_product_attention(q, k, v, mask)

    for kind in ("bool", "float"):
        with mode():
            model, (q, k, v) = Masked(), qkv()
            mask = torch.ones(6, 6).tril().bool() if kind == "bool" else torch.randn(6, 6)
            bias = torch.zeros(6, 6).masked_fill(~mask, -torch.inf) if kind == "bool" else mask.clone()
            expected = (q.double() @ k.double().mT / 8**0.5 + bias.double()).softmax(-1)
            with regard.watch(model) as recording:
                model(q, k, v, mask)
            mask.fill_(1)
        right_or_refused(lambda recording=recording: next(iter(recording.values())), expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_mask_that_is_written_again_between_two_layers(mode):
    """One buffer, of which each layer sees other numbers."""

    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(2))
            self.reset()

        def reset(self):
            self.mask = torch.zeros(6, 6)

        def forward(self, q, k, v):
            for number, layer in enumerate(self.layers):
                self.mask.zero_().masked_fill_(torch.ones(6, 6).triu(1 + 2 * number).bool(), -torch.inf)
                q = layer(q, k, v, self.mask)
            return q

    class Layer(nn.Module):
        def forward(self, q, k, v, mask):
            self.q = q.clone()
            return functional.scaled_dot_product_attention(q, k, v, mask)

    with mode():
        model, model_inputs = Layers(), qkv()
        model.reset()
        with regard.watch(model) as recording:
            model(*model_inputs)
        for number, layer in enumerate(model.layers):
            scores = layer.q.double() @ model_inputs[1].double().mT / 8**0.5
            expected = scores.masked_fill(torch.ones(6, 6).triu(1 + 2 * number).bool(), -torch.inf).softmax(-1)
            right_or_refused(lambda number=number: recording[f"layers.{number}"], expected)


def right_or_refused(read, expected):
    """A map is the one that the model used, or it says that its tensors changed. Which of the two."""
    try:
        dense = read().dense()
    except (RuntimeError, ValueError, InputError) as error:
        if "changed" not in str(error):
            raise
        return "refused"
    keys = expected.shape[-1]
    torch.testing.assert_close(dense.double()[..., :keys], expected.double(), atol=1e-5, rtol=0)
    assert not dense[..., keys:].any()
    return "right"


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inputs_that_are_overwritten_after_the_pass(mode):
    """In inference mode tensors count no versions."""
    with mode():
        model, model_inputs = Model(), qkv()
        expected = weights(*model_inputs[:2])
        with regard.watch(model) as recording:
            model(*model_inputs)
        model_inputs[1].normal_()
    right_or_refused(lambda: recording["attn"], expected)


class Buffered(nn.Module):
    """A decoder's attention that writes its keys into a buffer made beforehand."""

    def __init__(self, length=16, how="index_copy_"):
        super().__init__()
        self.length, self.how = length, how
        self.reset()

    def reset(self):
        self.k, self.v = torch.zeros(2, 4, self.length, 8), torch.zeros(2, 4, self.length, 8)

    def forward(self, q, k, v, start):
        at = torch.arange(start, start + q.shape[2])
        for buffer, new in ((self.k, k), (self.v, v)):
            if self.how == "index_copy_":
                buffer.index_copy_(2, at, new)
            elif self.how == "slice":
                buffer[:, :, start : start + q.shape[2]] = new
            else:
                buffer.narrow(2, start, q.shape[2]).copy_(new)
        mask = torch.arange(self.length) <= at[:, None]
        return functional.scaled_dot_product_attention(q, self.k, self.v, mask)


class Growing(Buffered):
    """The same, reading only the part of the buffer that is filled: a view."""

    def forward(self, q, k, v, start):
        end = start + q.shape[2]
        self.k[:, :, start:end], self.v[:, :, start:end] = k, v
        mask = torch.arange(end) <= torch.arange(start, end)[:, None]
        return functional.scaled_dot_product_attention(q, self.k[:, :, :end], self.v[:, :, :end], mask)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("how", ["index_copy_", "slice", "copy_", "view"])
def test_a_buffer_of_keys_that_is_filled_step_by_step(how, mode):
    """Read when generation is done; read again when another text was written over it."""

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = Growing() if how == "view" else Buffered(how=how)

        def forward(self, *args):
            return self.attn(*args)

    with mode():
        model = Around()
        model.attn.reset()
        q, k, v = qkv(tokens=9)
        scores = q.double() @ k.double().mT / 8**0.5
        expected = scores.masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf).softmax(-1)
        with regard.watch(model) as recording:
            model(q[:, :, :5], k[:, :, :5], v[:, :, :5], 0)
            for i in range(5, 9):
                model(q[:, :, i : i + 1], k[:, :, i : i + 1], v[:, :, i : i + 1], i)
        (path,) = recording
        assert recording[path].shape[:3] == (2, 4, 9)
        right_or_refused(lambda: recording[path], expected)
        with regard.watch(model) as later:
            model(q[:, :, :5], k[:, :, :5], v[:, :, :5], 0)
        model(*(t[:, :, :5] for t in qkv(7, tokens=9)), 0)
        right_or_refused(lambda: later["attn"], expected[:, :, :5, :5])


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("llama", torch.inference_mode),
        ("gpt2", torch.no_grad),
        ("mistral", torch.inference_mode),
        pytest.param("llama", torch.no_grad, marks=pytest.mark.slow),
        pytest.param("gpt2", torch.inference_mode, marks=pytest.mark.slow),
        pytest.param("mistral", torch.no_grad, marks=pytest.mark.slow),
    ],
)
def test_a_static_cache_of_transformers(name, mode):
    model = load_model(name)
    ids = make_inputs(name, "even")["input_ids"]
    expected = eager_maps(name, {"input_ids": ids})
    with mode():
        cache = transformers.StaticCache(config=model.config, max_cache_len=16)
        with regard.watch(model) as recording:
            model(ids[:, :8], past_key_values=cache)
            for i in range(8, 12):
                model(ids[:, i : i + 1], past_key_values=cache)
        assert list(recording) == list(expected)
        for path, dense in expected.items():
            assert recording[path].shape[2] == 12
            right_or_refused(lambda path=path: recording[path], dense)
        cache.reset()
        model(ids.flip(1)[:, :8], past_key_values=cache)
        for path, dense in expected.items():
            right_or_refused(lambda path=path: recording[path], dense)


def test_generation_with_a_static_cache():
    config = transformers.LlamaConfig(**GROUPED)
    model = sharpen(transformers.LlamaForCausalLM(config))
    ids = make_inputs("llama", "even")["input_ids"]
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    expected_text = model.generate(ids, cache_implementation="static", disable_compile=True, **options)
    with regard.watch(model) as recording:
        text = model.generate(ids, cache_implementation="static", disable_compile=True, **options)
    assert torch.equal(text, expected_text)
    for path, dense in eager_maps("llama", {"input_ids": text[:, :-1]}, model.base_model).items():
        right_or_refused(lambda path=path: recording[f"model.{path}"], dense)


def test_weights_that_learn_afterwards_change_no_map():
    """Queries and keys are the model's products, not its weights."""
    model, model_inputs = (
        sharpen(transformers.LlamaModel(transformers.LlamaConfig(**GROUPED))),
        make_inputs("llama", "even"),
    )
    expected = eager_maps("llama", model_inputs, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with regard.watch(model) as recording:
        model(**model_inputs).last_hidden_state.sum().backward()
    optimizer.step()
    for path, dense in expected.items():
        torch.testing.assert_close(recording[path].dense(), dense, atol=1e-5, rtol=0)


# What cannot be watched


def test_a_model_without_attention():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.raises((ValueError, InputError), match="no attention"), regard.watch(model):
        model(torch.randn(2, 4))


def test_a_model_that_was_not_run():
    with (
        pytest.raises(ValueError, match=r"no attention was seen in BertModel.*not called"),
        regard.watch(load_model("bert")),
    ):
        pass


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("wrong", [None, "bert-base-uncased", torch.zeros(2), Model, lambda x: x])
def test_what_is_no_module(wrong):
    with pytest.raises(TypeError, match="Module"), regard.watch(wrong):
        pass


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_options_that_do_not_exist():
    model = load_model("bert")
    with pytest.raises(ValueError, match="keep"), regard.watch(model, keep="everything"):
        pass
    with pytest.raises((ValueError, IndexError), match="layer"), torch.no_grad(), regard.watch(model, layers=[7]):
        model(**make_inputs("bert", "even"))
    with pytest.raises((ValueError, IndexError), match="head"), torch.no_grad(), regard.watch(model, heads=[4]):
        model(**make_inputs("bert", "even"))
    for bad in (1, "1", [], [-1], [1.0], [True]):
        for name in ("layers", "heads"):
            said = rf"^{name}=.*: a list of numbers counted from 0, such as \[0, 3\]$"
            with pytest.raises(ValueError, match=said), regard.watch(model, **{name: bad}):
                pass
    assert torch._C._len_torch_function_stack() == 0
    assert len(_get_current_dispatch_mode_stack()) == 0


@pytest.mark.parametrize("padding", ["even", "right"])
def test_some_layers_and_heads(padding):
    model, model_inputs = load_model("llama"), make_inputs("llama", padding)
    expected = eager_maps("llama", model_inputs)
    counted = model_inputs["attention_mask"].bool()[:, None, :, None] if padding != "even" else torch.tensor(True)
    with torch.no_grad(), regard.watch(model, layers=[1], heads=[0, 3]) as recording:
        model(**model_inputs)
    assert list(recording) == ["layers.1.self_attn"]
    m = recording["layers.1.self_attn"]
    assert m.shape == (3, 2, 12, 12)
    assert ((m.dense() - expected["layers.1.self_attn"][:, [0, 3]]) * counted).abs().max() <= 1e-5
    assert m.error < 1e-4


def test_summaries_answer_as_the_maps_do():
    model, model_inputs = load_model("t5"), make_inputs("t5", "right")
    with torch.no_grad():
        expected = model(**model_inputs)[0]
        with regard.watch(model) as maps:
            model(**model_inputs)
        with regard.watch(model, keep="summary") as summaries:
            got = model(**model_inputs)[0]
    assert torch.equal(expected, got)
    assert list(maps) == list(summaries)
    for path in maps:
        m, s = maps[path], summaries[path]
        assert s.shape == m.shape
        assert s.error == m.error
        for question in ("entropy", "received"):
            torch.testing.assert_close(getattr(s, question)(), getattr(m, question)(), atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(s.distance().mean, m.distance().mean, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(s.top(2).weights, m.top(2).weights, atol=1e-6, rtol=1e-5)
        with pytest.raises(Exception, match='keep="maps"'):
            s.dense()


def gpt(seed=0):
    torch.manual_seed(seed)
    config = transformers.GPT2Config(vocab_size=20, n_embd=16, n_layer=2, n_head=4, n_positions=32)
    return transformers.GPT2LMHeadModel(config).eval()


def test_another_text_of_the_same_length_and_end_is_not_stitched_on():
    """Keys of layer 0 hang on token and position only, so the last ones of two texts can be equal."""
    model, a, b = gpt(), torch.tensor([[1, 2, 3, 4, 9]]), torch.tensor([[5, 6, 7, 8, 9]])
    with torch.no_grad(), regard.watch(model) as recording:
        first = model(a, use_cache=True)
        model(b)
        model(torch.tensor([[11]]), past_key_values=first.past_key_values)
    assert len(recording) == 6
    for m in recording.values():
        assert m.error < 1e-4


def test_a_beam_search_of_transformers_gives_no_wrong_map():
    model = gpt()
    with torch.no_grad(), regard.watch(model) as recording:
        model.generate(torch.tensor([[1, 2, 3]]), num_beams=4, max_new_tokens=8, do_sample=False, pad_token_id=0)
    for path in recording:
        try:
            assert recording[path].error < 1e-4
        except RuntimeError as error:
            assert "changed" in str(error)  # noqa: PT017


@pytest.mark.parametrize("change", ["bias", "sinks", "allowed", "positions"])
def test_what_attend_was_given_is_looked_after(change):
    bias, sinks, table = torch.zeros(1, 5, 5), torch.zeros(1), torch.ones(5, 5, dtype=torch.bool)
    positions = regard.positions.T5Relative(1)
    options = {
        "bias": {"bias": bias},
        "sinks": {"sinks": sinks},
        "allowed": {"mask": regard.mask.allowed(table)},
        "positions": {"bias": positions},
    }[change]

    class Model(nn.Module):
        def forward(self, x):
            return regard.attend(x, x, x, **options)

    model = Model()
    with torch.no_grad(), regard.watch(model) as recording:
        model(torch.randn(2, 1, 5, 8))
    before = recording[""].dense()
    assert before.sum(-1).max() <= 1.0001
    with torch.no_grad():
        {"bias": bias, "sinks": sinks, "allowed": table, "positions": positions.weight}[change][..., 0] = 1
        if change == "allowed":
            table[:, 1:] = False
    with pytest.raises(RuntimeError, match="changed in place"):
        recording[""].dense()


def test_heads_of_a_generation_with_folded_heads():
    """transformers folds heads that share keys into the queries of one token, where there is padding."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=32, bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    ids, mask = torch.randint(5, 50, (2, 6)), torch.ones(2, 6, dtype=torch.long)
    mask[1, :2] = 0

    def generate(**options):
        with torch.no_grad(), regard.watch(model, **options) as recording:
            model.generate(ids, attention_mask=mask, max_new_tokens=4, min_new_tokens=4, do_sample=False)
        return recording

    (whole,), (some,) = generate().values(), generate(heads=[3, 1]).values()
    assert whole.shape == (2, 4, 9, 9)
    assert torch.equal(some.dense(), whole.dense()[:, [3, 1]])
    assert some.error < 1e-4
    steps = generate(keep="summary")
    assert [m.shape[1:3] for m in steps.values()] == [(4, 6), (4, 1), (4, 1), (4, 1)]
    assert steps.notes == ()


def test_rollout_needs_every_layer():
    model = gpt()
    with torch.no_grad(), regard.watch(model, layers=[0]) as recording:
        model(torch.tensor([[1, 2, 3]]))
    with pytest.raises(ValueError, match="rollout needs every layer"):
        recording.rollout(2)


def test_a_layer_that_is_skipped_keeps_the_others_numbers():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(regard.MultiHeadAttention(16, 2) for _ in range(4))

        def forward(self, x):
            return self.layers[3](self.layers[2](self.layers[0](x)))

    model = Model()
    with torch.no_grad(), regard.watch(model, layers=[2]) as recording:
        model(torch.randn(1, 5, 16))
    assert list(recording) == ["layers.2"]
    assert recording.entry("layers.2").layer == 2


def test_a_float32_mask_in_bfloat16():
    q, mask = torch.randn(1, 2, 5, 8).bfloat16(), torch.randn(5, 5)

    class Model(nn.Module):
        def forward(self, q, mask):
            return functional.scaled_dot_product_attention(q, q, q, mask)

    with torch.no_grad(), regard.watch(model := Model()) as recording:
        model(q, mask)
    assert recording[""].verified
    assert "sdpa" in str(recording)


def test_summaries_hold_no_queries_and_keys():
    """Nothing of the size of tokens x width stays alive while the block goes on.

    A width of 8 would look like the summary's own top 8 keys.
    """

    class Model(nn.Module):
        def forward(self, x):
            return functional.scaled_dot_product_attention(x + 1, x + 2, x + 3)

    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), regard.watch(model := Model(), keep="summary") as recording:
            for _ in range(3):
                model(torch.randn(1, 2, 50, 6))
            gc.collect()
            sizes = [t.shape for t in gc.get_objects() if type(t) is torch.Tensor]
            assert (1, 2, 50, 6) not in sizes
        assert list(recording) == ["", "#1", "#2"]
