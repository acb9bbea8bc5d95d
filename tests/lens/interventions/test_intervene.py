"""`regard.intervene`: whose calls it edits, what it leaves alone, what it refuses, what it reports."""

import threading
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

import regard
from attention_styles import with_baddbmm, with_exponentials, with_groups, with_matmul
from lens.test_watch_graphs import KERNELS, ByName
from lens.watching import MODES, FunctionModel, random_qkv, record
from models import SMALL, randomized
from regard import mask

X = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))


def encoder(**options):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


@pytest.mark.parametrize("mode", MODES)
def test_without_edits_every_bit_is_the_models_own(mode):
    model = encoder()
    with mode():
        expected = model(X)
        with regard.intervene(model) as edit:
            got = model(X)
    assert torch.equal(got, expected)
    assert edit.report().edits == ()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("norm_first", [True, False])
def test_a_head_of_pytorchs_layers_is_ablated_as_in_its_output_projection(mode, norm_first):
    model = encoder(norm_first=norm_first)
    with mode():
        with regard.intervene(model) as edit:
            edit["layers.1.self_attn"].heads[1].ablate()
            got = model(X)
        with torch.no_grad():
            model.layers[1].self_attn.out_proj.weight[:, 8:] = 0
        torch.testing.assert_close(got, model(X), atol=1e-6, rtol=1e-6)


def test_the_report_says_that_the_fused_path_stepped_aside():
    model = encoder()
    with torch.no_grad(), regard.intervene(model) as edit:
        edit["layers.0.self_attn"].block([-1], [0])
        model(X)
    assert "leave their fused inference path" in edit.report().notes[0]


@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_of_pytorch_that_returns_its_weights_is_edited_too(need_weights):
    layer = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    model = FunctionModel()
    model.attn = layer
    with regard.intervene(model) as edit:
        edit["attn"].heads[0].block([-1], [1, 2])
        got = layer(X, X, X, need_weights=need_weights)[0]
    blocked = torch.zeros(4, 5, 5, dtype=torch.bool)
    blocked[::2, -1, [1, 2]] = True
    torch.testing.assert_close(got, layer(X, X, X, attn_mask=blocked)[0], atol=1e-6, rtol=1e-6)


STYLES = [with_matmul, with_groups, with_baddbmm, with_exponentials]


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.__name__)
def test_attention_in_the_models_own_code_is_edited_by_its_weights(style):
    allowed = torch.ones(5, 5).tril() > 0
    q, k, v = random_qkv(queries=5, keys=5)
    model = FunctionModel(lambda *qkv: style(*qkv, allowed))
    model.attn.num_heads = 4
    with regard.intervene(model) as edit:
        edit["attn"].heads[1].block([-1, 2], [0])
        edit["attn"].heads[3].ablate()
        got = model(q, k, v)
    keep = allowed.expand(4, -1, -1).clone()
    keep[1, [2, 4], 0] = False
    expected = scaled_dot_product_attention(q, k, v, keep)
    expected[:, 3] = 0
    torch.testing.assert_close(got, expected, atol=2e-6, rtol=2e-6)
    assert edit.report().edits[0].error < 1e-5


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_that_is_called_by_its_name_is_edited(kernel):
    model = ByName(KERNELS[kernel])
    x = torch.randn(2, 5, 8)
    with regard.intervene(model) as edit:
        edit[""].block([-1], [0, 1])
        got = model(x)
    q, k, v = model.projection(x)[:, None].chunk(3, -1)
    allowed = torch.ones(5, 5).tril() > 0
    allowed[-1, :2] = False
    torch.testing.assert_close(got, scaled_dot_product_attention(q, k, v, allowed), atol=2e-6, rtol=2e-6)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_edited():
    q, k, v = random_qkv(queries=8, keys=8, width=16)
    model = FunctionModel(flex_attention)
    with torch.no_grad(), regard.intervene(model) as edit:
        edit["attn"].heads[1].mask(mask.causal())
        got = model(q, k, v)
    expected = flex_attention(q, k, v)
    expected[:, 1] = scaled_dot_product_attention(q, k, v, is_causal=True)[:, 1]
    torch.testing.assert_close(got, expected, atol=2e-6, rtol=2e-6)


def test_a_model_of_regard_is_edited_with_its_caches_step_by_step():
    model = randomized(regard.transformer.Decoder(regard.transformer.Config(**SMALL)))
    with regard.intervene(model) as edit:
        edit["blocks.0.attention"].heads[1].ablate()
        edit["blocks.1.attention"].block(range(3, 12), [1, 2])
        text = regard.generate(model, [[1, 2, 3, 4]], max_new_tokens=6)
        whole = model(torch.tensor(text))
    assert whole[0, 3:-1].argmax(-1).tolist() == text[0][4:]


def test_a_recording_notes_the_attention_that_is_edited_in_whatever_order_they_are_opened():
    model, (q, k, v) = FunctionModel(), random_qkv()
    with regard.intervene(model) as edit:
        edit["attn"].ablate()
        with regard.watch(model) as inside:
            model(q, k, v)
    with regard.watch(model) as outside, regard.intervene(model) as edit:
        edit["attn"].ablate()
        model(q, k, v)
    assert outside["attn"].verified
    assert not inside["attn"].verified  # its sample of the output is the edited one
    for recording in (inside, outside):
        assert "attn: regard.intervene edits it" in recording.notes[0]
    with regard.watch(model) as later:
        model(q, k, v)
    assert not later.notes


def test_another_thread_is_not_edited():
    model, (q, k, v) = FunctionModel(), random_qkv()
    outputs = []
    with regard.intervene(model) as edit:
        edit["attn"].ablate()
        thread = threading.Thread(target=lambda: outputs.append(model(q, k, v)))
        thread.start()
        thread.join()
        model(q, k, v)
    assert torch.equal(outputs[0], scaled_dot_product_attention(q, k, v))


def test_activation_checkpointing_computes_the_edited_attention_again():
    model = FunctionModel()
    q, k, v = (t.requires_grad_() for t in random_qkv())

    def gradients(*, checkpointed):
        with regard.intervene(model) as edit:
            edit["attn"].heads[1].block([2], [3])
            output = (
                torch.utils.checkpoint.checkpoint(model, q, k, v, use_reentrant=False)
                if checkpointed
                else model(q, k, v)
            )
            return torch.autograd.grad(output.square().sum(), (q, k, v)), edit.report()

    (again, report), (once, _) = gradients(checkpointed=True), gradients(checkpointed=False)
    assert all(torch.equal(a, b) for a, b in zip(again, once, strict=True))
    assert report.edits[0].calls == 1


def fail(*_):
    raise RuntimeError("the model's own error")


def recording_of(**sizes):
    return record(FunctionModel(), *random_qkv(seed=1, **sizes))[0]


REFUSED = {
    "a path that is no module": (lambda e: e["atn"], KeyError, "no module 'atn'; close to it: attn"),
    "a module without attention": (lambda e: e[""].ablate(), ValueError, "met no attention call: .*that ran: attn"),
    "a head": (lambda e: e["attn"].heads[4].ablate(), IndexError, "there is no head 4: it has 4, 0 to 3"),
    "an empty range of heads": (lambda e: e["attn"].heads[4:].ablate(), IndexError, "4: names no head"),
    "a batch row": (lambda e: e["attn"].batch[2].ablate(), IndexError, "there is no batch row 2: it has 2"),
    "a key": (lambda e: e["attn"].block([-1], [7]), IndexError, r"no call had the keys \[7\]"),
    "a query": (lambda e: e["attn"].block([70], [1]), ValueError, r"no call had one of queries=\[70\]"),
    "nothing to block": (lambda e: e["attn"].block(), ValueError, "without queries and keys"),
    "an empty list": (lambda e: e["attn"].block([]), ValueError, r"queries=\[\]: name one position"),
    "a slice of keys": (lambda e: e["attn"].block(keys=slice(2)), TypeError, "a list of positions"),
    "a name as a head": (lambda e: e["attn"].heads["a"], TypeError, r"heads\['a'\]: a number counted from 0"),
    "a tensor as a mask": (lambda e: e["attn"].mask(torch.ones(5, 7)), TypeError, "takes a mask from regard.mask"),
    "a mask of another size": (
        lambda e: e["attn"].mask(mask.allowed(torch.ones(4, 4) > 0)),
        ValueError,
        "does not fit 5 queries and 7 keys",
    ),
    "a bias of another size": (lambda e: e["attn"].bias(torch.ones(4, 7)), ValueError, r"\(4, 7\) does not broadcast"),
    "a bias that is no tensor": (lambda e: e["attn"].bias(1.0), TypeError, "takes a tensor"),
    "a scale that is no number": (lambda e: e["attn"].scale(float("nan")), ValueError, r"scale\(nan\)"),
    "an ablation": (lambda e: e["attn"].ablate("max"), ValueError, "one of 'zero', 'mean', 'resample'"),
    "resample without a source": (lambda e: e["attn"].ablate("resample"), ValueError, "source=recording"),
    "zero with a source": (lambda e: e["attn"].ablate("zero", recording_of()), ValueError, "takes no recording"),
    "a part": (lambda e: e["attn"].patch(recording_of(), "heads"), ValueError, "one of 'output', 'weights'"),
    "queries of values": (
        lambda e: e["attn"].patch(recording_of(), "values", queries=[1]),
        ValueError,
        'named for part "output" only',
    ),
    "a recording of another length": (
        lambda e: e["attn"].patch(recording_of(queries=4)),
        ValueError,
        "has 4 queries, and this call 5",
    ),
    "values of another length": (
        lambda e: e["attn"].patch(recording_of(keys=6), "values"),
        ValueError,
        "has 6 keys, and this call 7",
    ),
    "values of another width": (
        lambda e: e["attn"].patch(recording_of(v_width=4), "values"),
        ValueError,
        r"\(2, 4, 7, 4\), and this call \(2, 4, 7, 8\)",
    ),
    "another number of texts": (lambda e: e["attn"].patch(recording_of(batch=3)), ValueError, "has 3 texts"),
    "a recording of fewer heads": (
        lambda e: e["attn"].heads[3].patch(recording_of(heads=2)),
        IndexError,
        r"no head 3: it has \[0, 1\]",
    ),
    "dropout that would be drawn anew": (
        lambda e: e["attn"].block([-1], [0]),
        ValueError,
        r"dropout of 0.5 .* model.eval\(\)",
        partial(scaled_dot_product_attention, dropout_p=0.5),
    ),
    "scores that eager attention does not show": (
        lambda e: e["attn"].scale(0.5),
        ValueError,
        "the weights are known, not queries and keys",
        lambda q, k, v: (q @ k.mT).softmax(-1) @ v,
    ),
    "an error of the model, and not that no call was met": (
        lambda e: e["attn"].ablate(),
        RuntimeError,
        "the model's own error",
        fail,
    ),
}


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_there_or_does_not_fit_is_named(case):
    write, error, message, *function = REFUSED[case]
    model = FunctionModel(*function)
    with pytest.raises(error, match=message), torch.no_grad(), regard.intervene(model) as edit:  # noqa: PT012
        write(edit)
        model(*random_qkv())


def test_a_compiled_model_is_refused():
    model = torch.compile(FunctionModel(), backend="eager")
    with pytest.raises(ValueError, match=r"compiled.*intervene the model as it was"), regard.intervene(model):
        pass


def test_the_report_counts_calls_heads_and_rows_and_gives_the_largest_change():
    model, (q, k, v) = FunctionModel(), random_qkv()
    with regard.intervene(model) as edit:
        edit["attn"].heads[[0, 2]].block([-1, 1], [0])
        first, _ = (model(q, k, v) for _ in range(2))
    (report,) = edit.report().edits
    assert (report.path, report.edit) == ("attn.heads[[0, 2]]", "block(queries=[-1, 1], keys=[0])")
    assert (report.calls, report.heads, report.rows) == (2, 2, 2 * 2 * 2)
    change = (first - scaled_dot_product_attention(q, k, v)).abs().max()
    assert report.largest_change == pytest.approx(float(change))
    assert "largest change" in str(edit.report())
