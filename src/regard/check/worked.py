"""Each mistake on the numbers of the course: three tokens of two numbers, and the weights of seed 42.

What a recipe can do is computed by the recipe, beside the definition; what only shows in how code behaves, by a few
lines of torch on the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from regard.attention.course import SelfAttention
from regard.check.causes import Mistake
from regard.check.probe import causal
from regard.check.recipe import NAMES, Case, Choices, Kitchen, ProjectionWeights, State, definition
from regard.check.tables import BASE, FORMULAS, PLAIN, Formula

__all__ = ["MatrixPair", "Worked", "begins", "leak", "worked"]


@dataclass(frozen=True)
class MatrixPair:
    """One matrix of a step, yours beside the definition's."""

    title: str
    yours: Tensor
    definition: Tensor
    rows: str = "token"
    """What a row is, and what a column is."""
    columns: str = "channel"


@dataclass(frozen=True)
class Worked:
    """An example of a mistake."""

    setting: str
    """The inputs: heads, mask, batch."""
    step: str
    """The first step that differs."""
    pairs: tuple[MatrixPair, ...]
    numbers: Mapping[str, object] = field(default_factory=dict)
    """The numbers for the sentences of the mistake."""


# The numbers. -------------------------------------------------------------------------------------------------------

X = torch.tensor([[1.16, 0.23], [0.57, 1.36], [4.41, -2.16]], dtype=torch.float64)
SECOND = torch.tensor([[-0.40, 1.10], [2.00, 0.30], [0.70, -1.50]], dtype=torch.float64)
CONTEXT = torch.tensor([[0.50, -1.00], [1.50, 0.80], [-0.70, 0.40]], dtype=torch.float64)
MASK = torch.tensor([[True, False, True], [True, True, False], [False, True, True]])
BIAS = torch.tensor([[0.0, -1.0, -2.0], [-1.0, 0.0, -1.0], [-2.0, -1.0, 0.0]], dtype=torch.float64)
BIASES = torch.tensor([[0.50, -0.50], [1.00, 0.25], [-0.30, 0.80]], dtype=torch.float64)


def drawn() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W_q, W_k and W_v as the documents draw them, and a fourth from the same stream, W_o."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(42)
        course = SelfAttention(2)
        out = nn.Linear(2, 2, bias=False)
    q, k, v, o = (each.weight.detach().double() for each in (course.W_q, course.W_k, course.W_v, out))
    return q, k, v, o


@dataclass(frozen=True)
class ExampleSetting:
    """Inputs of an example."""

    description: str
    case: Case
    asked: str = "none"


def _settings() -> dict[str, ExampleSetting]:
    w_q, w_k, w_v, w_o = drawn()
    one, two = ProjectionWeights(w_q, w_k, w_v, 1, 1), ProjectionWeights(w_q, w_k, w_v, 2, 2)
    x, both = X[None], torch.stack((X, SECOND))
    given = f"the second sample is {_short(SECOND)}"
    padding = torch.tensor([[True, True, True], [True, True, False]])[:, None, None]
    return {
        "one": ExampleSetting("one head of width 2, no mask", Case(x=x, weights=one)),
        "causal": ExampleSetting(
            "one head of width 2, a causal mask", Case(x=x, weights=one, may=causal(3, 3)), "flag"
        ),
        "padding": ExampleSetting(
            "one head of width 2; token 2 is padding", Case(x=x, weights=one, may=padding[1:]), "padding"
        ),
        "mask": ExampleSetting(
            "one head of width 2; query 0 may attend to keys 0 and 2, query 1 to keys 0 and 1, query 2 to keys 1 and 2",
            Case(x=x, weights=one, may=MASK[None, None]),
            "mask",
        ),
        "heads": ExampleSetting("two heads of width 1, no mask", Case(x=x, weights=two)),
        "heads, causal": ExampleSetting(
            "two heads of width 1, a causal mask", Case(x=x, weights=two, may=causal(3, 3)), "flag"
        ),
        "out": ExampleSetting(
            f"two heads of width 1 and an output projection, W_o = {_short(w_o)}",
            Case(x=x, weights=replace(two, out=w_o)),
        ),
        "context": ExampleSetting(
            f"one head of width 2; the context is {_short(CONTEXT)}", Case(x=x, context=CONTEXT[None], weights=one)
        ),
        "batch": ExampleSetting(f"one head of width 2, a batch of two; {given}", Case(x=both, weights=one)),
        "heads, batch": ExampleSetting(f"two heads of width 1, a batch of two; {given}", Case(x=both, weights=two)),
        "padding, batch": ExampleSetting(
            f"one head of width 2, a batch of two; {given}, and its token 2 is padding",
            Case(x=both, weights=one, may=padding),
            "padding",
        ),
        "bias": ExampleSetting(
            "one head of width 2; a bias of -1 for each token of distance",
            Case(x=x, weights=one, bias=BIAS[None, None]),
        ),
        "biased": ExampleSetting(
            "one head of width 2; projections with biases "
            + ", ".join(f"b_{name} = {_short(bias)}" for name, bias in zip("qkv", BIASES, strict=True)),
            Case(x=x, weights=replace(one, bias_q=BIASES[0], bias_k=BIASES[1], bias_v=BIASES[2])),
        ),
        "narrow": ExampleSetting(
            "one head with keys of width 2 and values of width 1 (the first row of W_v)",
            Case(x=x, weights=replace(one, v=w_v[:1])),
        ),
        "groups": ExampleSetting(
            f"four query heads of width 1 (W_q and below it {_short(w_o)}), two key and value heads",
            Case(x=x, weights=ProjectionWeights(torch.cat((w_q, w_o)), w_k, w_v, 4, 2)),
        ),
    }


def _short(tensor: Tensor) -> str:
    """Its numbers in brackets, each row in its own."""
    if tensor.ndim == 1:
        return f"[{' '.join(f'{number:.4f}'.rstrip('0').rstrip('.') for number in tensor.tolist())}]"
    return ", ".join(_short(row) for row in tensor)


SETTINGS = _settings()
PREFERRED = {
    "scale-heads": "heads",
    "scale-batch": "heads, batch",
    "softmax-batch": "batch",
    "mask-first-only": "padding, batch",
    "mask-one-head": "heads, causal",
}
"""The settings that show a mistake best; for the others, the first that shows it at all."""
VARIANT: dict[str, Choices] = {
    "scale-constant": {"scale": 1 / 8},
    "mask-weak-fill": {"fill": -10.0},
}
"""The choices that the line of code makes, where they are not the first that can be named."""


# What recipes show. -------------------------------------------------------------------------------------------------


def worked(known: Mistake, chosen: Choices | None = None) -> Worked:
    """A mistake on the course's numbers.

    Args:
        known: the mistake.
        chosen: in which way it is made; as in its line of code, by default.

    Raises:
        KeyError: one that has no choices, and no example written for it.
    """
    if known.id in BEHAVIOUR:
        return BEHAVIOUR[known.id]()
    several = (VARIANT[known.id],) if known.id in VARIANT else known.choices
    for choices in (chosen, *several) if chosen else several:
        for name in (PREFERRED[known.id],) if known.id in PREFERRED else SETTINGS:
            setting = SETTINGS[name]
            if known.asked and setting.asked not in known.asked:
                continue
            found = _shown(known, choices, setting)
            if found is not None:
                return found
    raise KeyError(known.id)


def _shown(known: Mistake, choices: Choices, setting: ExampleSetting) -> Worked | None:
    yours, right = Kitchen(setting.case).state(choices), definition(setting.case)
    if yours is None:
        return None
    names = NAMES[NAMES.index(begins(choices)) :]
    differing = [name for name in names if _differ(getattr(yours, name), getattr(right, name))]
    if not differing:
        return None
    single = right.output is not None and right.output.shape[1] == 1
    last = "projected" if right.projected is not None else "output" if single else "heads"
    shown = dict.fromkeys((differing[0], last if last in differing else differing[-1]))
    pairs = [pair for name in shown for pair in _pairs(name, getattr(yours, name), getattr(right, name))]
    return Worked(setting.description, differing[0], tuple(pairs), _numbers(known, choices, setting.case, yours, right))


def begins(choices: Choices) -> str:
    """The first step that choices may change, or that they change to what can be laid beside the definition's."""
    first = {
        "sources": "q",
        "linear": "q",
        "split": "scores" if choices.get("split") == "tokens" else "q",
        "roles": "scores",
        "groups": "scores" if choices.get("groups") == "one-sequence" else "q",
        "seen": "masked",
        "scores": "scores",
        "scale": "scaled",
        "bias": "biased",
        "fill": "masked",
        "softmax": "weights",
        "after": "weights",
        "product": "weights",
        "merge": "heads",
        "out": "projected",
    }
    return min((first[slot] for slot in choices), key=NAMES.index)


def _differ(yours: Tensor | None, right: Tensor | None) -> bool:
    if yours is None or right is None:
        return yours is not right
    return yours.shape != right.shape or not torch.allclose(yours, right, rtol=0, atol=1e-9, equal_nan=True)


AXES = {
    **dict.fromkeys(("scores", "scaled", "biased", "masked", "weights"), ("query", "key")),
    **dict.fromkeys(("output", "heads", "projected"), ("query", "channel")),
}


def _pairs(name: str, yours: Tensor | None, right: Tensor | None) -> Iterator[MatrixPair]:
    """The matrices of a step that differ, two at most."""
    if yours is None or right is None:
        return
    rows, columns = AXES.get(name, ("token", "channel"))
    left, leading = yours.reshape(-1, *yours.shape[-2:]), right.shape[:-2]
    beside = right.reshape(-1, *right.shape[-2:])
    if left.shape != beside.shape:
        sizes = " and ".join(
            f"{len(each)} of {each.shape[1]} x {each.shape[2]} {word}"
            for each, word in ((left, "here"), (beside, "in the definition"))
        )
        yield MatrixPair(f"{name}: {sizes}; the first of them", left[0], beside[0], rows, columns)
        return
    for at in [n for n in range(len(left)) if _differ(left[n], beside[n])][:2]:
        sample, head = (at // leading[1], at % leading[1]) if len(leading) == 2 else (at, 0)
        of = [f"sample {sample}"] if leading[0] > 1 else []
        of += [f"head {head}"] if len(leading) == 2 and leading[1] > 1 else []
        yield MatrixPair(", ".join([name, *of]), left[at], beside[at], rows, columns)


def _numbers(known: Mistake, choices: Choices, case: Case, yours: State, right: State) -> dict[str, object]:
    """What the sentences of a cause leave open, in this example."""
    assert case.x is not None
    assert case.weights is not None
    assert right.q is not None
    assert right.k is not None
    assert right.v is not None
    assert yours.weights is not None
    width, number = right.q.shape[-1], 1 / yours.scaling
    if "fill" in choices and isinstance(choices["fill"], float):
        number = choices["fill"]
    return {
        "batch": len(case.x),
        "heads": case.weights.heads,
        "tokens": case.x.shape[1],
        "count": right.k.shape[-2],
        "d": width,
        "d_value": right.v.shape[-1],
        "model": case.weights.heads * width,
        "right": width**0.5,
        "number": number,
        "inverse": yours.scaling,
        "known": "",
        "row": yours.weights[0, 0, 0].sum().item(),
        "what": WHAT.get((known.id, *choices.values()), ""),
        "mask": {"flag": "causal mask", "padding": "padding mask"}.get("padding" if _is_padding(case) else "flag"),
        "seen": "later positions only",
        "leak": leak(case, yours.weights),
    }


WHAT: dict[tuple[object, ...], str] = {
    ("k-from-x", "k-x"): "keys",
    ("untransposed", "QKV"): "queries, keys and values are",
    ("not-projected", "---"): "queries, keys and values are",
    ("shared-projection", "qqv"): "keys are",
    ("one-head-only", "first-head"): "the first head",
    ("mask-first-only", "first-sample"): "the first sample's mask is used for every sample",
    ("heads-added", "sum"): "added",
}
"""Words for the first choices of a cause."""


def _is_padding(case: Case) -> bool:
    return case.may is not None and case.may.shape[-2] == 1


def leak(case: Case, weights: Tensor) -> str:
    """How much attention goes where it must not."""
    if case.may is None:
        return ""
    weights = weights.abs().nan_to_num(0.0)
    share = (weights * ~case.may).sum(-1) / weights.sum(-1).clamp(min=1e-12)
    most = share.max().item()
    if most == 0:
        return "Allowed keys are blocked as well."
    sample, _, query = (int(each) for each in (share == most).nonzero()[0])
    of = f"Query {query}" + (f" of sample {sample}" if len(share) > 1 else "")
    what = "padding" if _is_padding(case) else "blocked keys"
    return f"{of} gives {100 * most:.3g} % of its attention to {what}."


# What behaviour shows. ----------------------------------------------------------------------------------------------


def _attention(x: Tensor, may: Tensor | None = None) -> Tensor:
    """The course's, one head of width 2."""
    q, k, v, _ = drawn()
    return _mixed(x @ q.t(), x @ k.t(), x @ v.t(), may)


def _mixed(q: Tensor, k: Tensor, v: Tensor, may: Tensor | None = None) -> Tensor:
    return _weights(q, k, may) @ v


def _weights(q: Tensor, k: Tensor, may: Tensor | None = None) -> Tensor:
    scores: Tensor = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    return (scores if may is None else scores.masked_fill(~may, -torch.inf)).softmax(-1)


def _norm(x: Tensor) -> Tensor:
    normed: Tensor = nn.functional.layer_norm(x, x.shape[-1:])
    return normed


def _made() -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, _ = drawn()
    return X @ q.t(), X @ k.t(), X @ v.t()


def _gap(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


ONE = "one head of width 2, no mask"


def _absolute_axes() -> Worked:
    q, k, v, _ = drawn()
    x = torch.stack((X[:2], SECOND[:2]))
    scores = (x @ q.t()) @ (x @ k.t()).transpose(0, 1) / 2**0.5
    yours = scores.softmax(1) @ (x @ v.t())
    setting = f"a batch of two, of two tokens each: the first two of X, and {_short(SECOND[:2])}"
    pairs = (
        MatrixPair("scores, sample 0", scores[0], (x @ q.t() @ (x @ k.t()).mT / 2**0.5)[0], "query", "key"),
        MatrixPair("output, sample 0", yours[0], _attention(x)[0], "query"),
    )
    return Worked(setting, "scores", pairs, {"named": "", "batch": 2})


def _dropped() -> tuple[Tensor, Tensor]:
    """Two draws of a dropout of 0.5: 0 where a number is dropped, 2 where it stays."""
    draws = torch.tensor([[[1, 0, 1], [1, 1, 0], [0, 1, 1]], [[0, 1, 1], [1, 0, 1], [1, 0, 1]]])
    return 2.0 * draws[0].double(), 2.0 * draws[1].double()


def _dropout_in_eval() -> Worked:
    q, k, v = _made()
    one, two = ((_weights(q, k) * draw) @ v for draw in _dropped())
    pairs = (
        MatrixPair("output of a first call in eval()", one, _mixed(q, k, v), "query"),
        MatrixPair("output of a second call, with the same input", two, _mixed(q, k, v), "query"),
    )
    return Worked(f"{ONE}, a dropout of 0.5 (two draws of it)", "weights", pairs, {"number": _gap(one, two)})


def _dropout_before_softmax() -> Worked:
    q, k, v = _made()
    draw, scores = _dropped()[0], q @ k.t() / 2**0.5
    yours, right = (scores * draw).softmax(-1), scores.softmax(-1) * draw
    pairs = (
        MatrixPair("weights in train(), keys 1, 2 and 0 dropped", yours, right, "query", "key"),
        MatrixPair("output", yours @ v, right @ v, "query"),
    )
    return Worked(f"{ONE}, a dropout of 0.5 (one draw of it; what stays is doubled)", "weights", pairs)


def _detached() -> Worked:
    with torch.enable_grad():
        gradients = []
        for detach in (True, False):
            w_q, w_k, w_v, _ = drawn()
            w_q.requires_grad_()
            w_v.requires_grad_()
            weights = _weights(X @ w_q.t(), X @ w_k.t())
            ((weights.detach() if detach else weights) @ (X @ w_v.t())).sum().backward()  # type: ignore[no-untyped-call]
            gradients.append((w_q.grad if w_q.grad is not None else torch.zeros_like(w_q), w_v.grad))
    (yours, values), (right, others) = gradients
    assert values is not None
    assert others is not None
    pairs = (
        MatrixPair("gradient of W_q, of the sum of the output", yours, right, "row", "column"),
        MatrixPair("gradient of W_v, which is right", values, others, "row", "column"),
    )
    return Worked(ONE, "weights", pairs, {"what": "queries and keys through the weights"})


def _inputs_changed() -> Worked:
    q, _, _ = _made()
    return Worked(ONE, "q", (MatrixPair("the caller's q after the call", q / 2**0.5, q),), {"what": "q"})


def _stateful() -> Worked:
    _, w_k, w_v, _ = drawn()
    q, k, v = _made()
    kept = torch.cat((SECOND @ w_k.t(), k)), torch.cat((SECOND @ w_v.t(), v))
    yours = _mixed(q, *kept)
    setting = f"{ONE}; an earlier call had {_short(SECOND)}, and its keys are still there"
    pair = MatrixPair("output of the second call", yours, _mixed(q, k, v), "query")
    return Worked(setting, "k", (pair,), {"number": _gap(yours, _mixed(q, k, v))})


def _batch_mixed() -> Worked:
    w_q, w_k, w_v, _ = drawn()
    outputs = []
    for second in (SECOND, SECOND.flip(0)):
        x = torch.stack((X, second))
        scores = (x @ w_q.t()) @ (x @ w_k.t()).mT / 2**0.5
        outputs.append((scores.softmax(0) @ (x @ w_v.t()))[0])
    setting = (
        f"one head of width 2, a batch of two; the second sample is {_short(SECOND)}, and then the same in reverse"
    )
    pairs = (
        MatrixPair("output of sample 0", outputs[0], _attention(X), "query"),
        MatrixPair("output of sample 0, with the second reversed", outputs[1], _attention(X), "query"),
    )
    return Worked(setting, "weights", pairs, {"number": _gap(*outputs)})


def _future_leak() -> Worked:
    may = causal(3, 3)[0, 0]
    other = torch.cat((X[:2], SECOND[2:]))
    yours = _attention(X), _attention(other)
    pairs = (
        MatrixPair("output", yours[0], _attention(X, may), "query"),
        MatrixPair(f"output, with token 2 replaced by {_short(SECOND[2])}", yours[1], _attention(other, may), "query"),
    )
    numbers = {"named": "its flag", "query": 0, "key": 2, "number": _gap(yours[0][0], yours[1][0])}
    return Worked("one head of width 2 with a flag for a causal mask", "masked", pairs, numbers)


def _mask_not_passed() -> Worked:
    pair = MatrixPair("output", _attention(X), _attention(X, causal(3, 3)[0, 0]), "query")
    setting = "one head of width 2 inside a module that gets a causal mask"
    return Worked(setting, "masked", (pair,), {"what": "the module around it"})


def _residual_missing() -> Worked:
    made = _attention(_norm(X))
    pair = MatrixPair("output of the attention's half of the block", made, X + made)
    return Worked("a pre-norm block with one head of width 2", "block", (pair,), {"what": "attention"})


def _residual_of_norm() -> Worked:
    normed = _norm(X)
    made = _attention(normed)
    pair = MatrixPair("output of the attention's half of the block", normed + made, X + made)
    return Worked("a pre-norm block with one head of width 2", "block", (pair,), {"what": "attention"})


def _ffn_skipped() -> Worked:
    out = drawn()[3]
    half = X + _attention(_norm(X))
    pair = MatrixPair("output of the block", half, half + (_norm(half) @ out.t()).relu() @ out)
    setting = f"a pre-norm block with one head of width 2 and a feed-forward network relu(x W^T) W, W = {_short(out)}"
    return Worked(setting, "block", (pair,))


def _positions(*causes: str, base: float = BASE) -> Callable[[], Worked]:
    """A table of three positions and four channels."""
    formula = PLAIN if not causes else next(each for each in FORMULAS if each.causes == causes)

    def made(formula: Formula, base: float) -> Tensor:
        return formula.made(3, 4, base)

    def example() -> Worked:
        pair = MatrixPair("the table", made(formula, base), made(PLAIN, BASE), "position")
        return Worked("three positions, d_model = 4", "positions", (pair,), {"number": base})

    return example


BEHAVIOUR: dict[str, Callable[[], Worked]] = {
    "absolute-axes": _absolute_axes,
    "dropout-in-eval": _dropout_in_eval,
    "dropout-before-softmax": _dropout_before_softmax,
    "detached": _detached,
    "inputs-changed": _inputs_changed,
    "stateful": _stateful,
    "batch-mixed": _batch_mixed,
    "future-leak": _future_leak,
    "mask-not-passed": _mask_not_passed,
    "residual-missing": _residual_missing,
    "residual-of-norm": _residual_of_norm,
    "ffn-skipped": _ffn_skipped,
    "pe-exponent": _positions("pe-exponent"),
    "pe-angle": _positions("pe-angle"),
    "pe-base": _positions(base=1000.0),
    "pe-swapped": _positions("pe-swapped"),
}
