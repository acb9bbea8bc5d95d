"""Exercises 04 to 07 and 09: attention without weights, projections, scores, scale, attention."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.check.mistakes.catalog import MISTAKES
from regard.check.recipes.case import Case
from regard.check.recipes.state import State
from regard.exercises.problems.bank import Bank
from regard.exercises.problems.numbers import X, course_call, course_weights, draw, projected, random_call
from regard.exercises.problems.problem import Call, OwnMistake, Problem, no_trail, variants_of

__all__ = ["ATTENTION", "PROJECTIONS", "SCALE", "SCORES", "SIMPLE_ATTENTION", "qkv_case"]


def qkv_case(q: Tensor, k: Tensor, v: Tensor, may: Tensor | None = None) -> Case:
    """The recipe's case of one head: (tokens, width) or (batch, tokens, width)."""
    q, k, v = (each if each.ndim == 3 else each[None] for each in (q, k, v))
    return Case(q=q[:, None], k=k[:, None], v=v[:, None], may=may)


def _output(state: State) -> Tensor:
    return state.output[0, 0]


# 04 -------------------------------------------------------------------------------------------------------------------


def _channels(x: Tensor) -> Tensor:
    weights: Tensor = (x.T @ x / x.shape[-1] ** 0.5).softmax(-1)
    return weights


_SIMPLE = Bank(
    lambda x: qkv_case(x, x, x),
    _output,
    last="output",
    own=(
        OwnMistake(
            "channels-attend",
            "scores",
            "the scores are x^T x, (d_model, d_model): channels are compared; tokens are rows of x",
            "Channels are mixed instead of tokens.",
            lambda x: x @ _channels(x),
            lambda x: [x.T @ x, _channels(x)],
        ),
        OwnMistake(
            "softmax-queries",
            "weights",
            "columns of the weights sum to 1, and rows do not: the softmax runs over the queries, or the weights are "
            "transposed afterwards (here both give the same)",
            MISTAKES["softmax-queries"].impact,
            lambda x: (x @ x.T / x.shape[-1] ** 0.5).softmax(0) @ x,
            no_trail,
            r"softmax\(.*0|\.T @|transpose|softmax|sum",
        ),
        OwnMistake(
            "values-missing",
            "output",
            "the result is the weights, (tokens, tokens): nothing is read with them",
            "Weights say where to look; the result is what is seen there.",
            lambda x: (x @ x.T / x.shape[-1] ** 0.5).softmax(-1),
        ),
        OwnMistake(
            "cosine-instead",
            "scores",
            "the scores are cosines: the lengths of the tokens are divided away",
            "Weights are nearly uniform, since a cosine is at most 1.",
            lambda x: torch.nn.functional.cosine_similarity(x[:, None], x[None], dim=-1).softmax(-1) @ x,
            lambda x: [torch.nn.functional.cosine_similarity(x[:, None], x[None], dim=-1)],
            r"norm|cosine",
        ),
    ),
)
SIMPLE_ATTENTION = Problem(
    calls=lambda: [
        course_call(X),
        random_call("x", *draw(11, [5, 4])),
        random_call("x", *draw(12, [3, 6])),
        random_call("x", *draw(13, [4, 4])),
    ],
    right=_SIMPLE.right,
    variants=_SIMPLE.variants,
)


# 05 -------------------------------------------------------------------------------------------------------------------


def _projected(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.nn.functional.linear(x, weight) for weight in weights)


def _projection_mistake(id_: str, message: str, impact: str, choose: str) -> OwnMistake:
    """A mistake by letters: which weight makes q, k and v; a capital is not transposed, - is x itself."""

    def compute(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> tuple[Tensor, ...]:
        weights = {"q": w_q, "k": w_k, "v": w_v, "Q": w_q.T, "K": w_k.T, "V": w_v.T}
        return tuple(x if letter == "-" else torch.nn.functional.linear(x, weights[letter]) for letter in choose)

    def trail(*args: Tensor) -> list[Tensor]:
        yours, right = compute(*args), _projected(*args)
        return [
            one for one, other in zip(yours, right, strict=True) if one.shape != other.shape or not one.equal(other)
        ]

    step = next(role for role, letter in zip("qkv", choose, strict=True) if role != letter)
    if id_ == "untransposed":
        return OwnMistake(id_, step, message, impact, compute, trail)
    # The numbers are those of another role, too: the line is known by the name that it gives.
    pattern = r"return" if id_ == "results-exchanged" else rf"^\s*{step}\w*\s*=|return"
    return OwnMistake(id_, step, message, impact, compute, no_trail, pattern)


_ROLES = {"q": "queries", "k": "keys", "v": "values"}


def _untransposed(choose: str) -> OwnMistake:
    names = " and ".join(_ROLES[letter.lower()] for letter in choose if letter.isupper())
    return _projection_mistake(
        "untransposed",
        f"{names} are x times the weight as it is stored, (d_k, d_model); the axis that is summed over has to be "
        f"d_model",
        "It runs as long as the weight is square, and its numbers are wrong.",
        choose,
    )


PROJECTIONS = Problem(
    calls=lambda: [
        course_call(X, *course_weights()[:3]),
        random_call("x w_q w_k w_v", *draw(14, [5, 4], [3, 4], [3, 4], [3, 4])),
        random_call("x w_q w_k w_v", *draw(15, [4, 4], [4, 4], [4, 4], [4, 4])),
    ],
    right=_projected,
    variants=variants_of(
        *map(_untransposed, ("QKV", "Qkv", "qKv", "qkV", "QKv", "qKV", "QkV")),
        *(
            _projection_mistake(
                "results-exchanged",
                f"the three results come in another order: {', '.join(_ROLES[letter] for letter in choose)}",
                "Whoever calls it takes one for the other, and no error says so.",
                choose,
            )
            for choose in ("kqv", "qvk", "vkq", "kvq", "vqk")
        ),
        *(
            _projection_mistake(
                "shared-projection",
                ", ".join(
                    f"{_ROLES[role]} are made with the weight of the {_ROLES[letter]}"
                    for role, letter in zip("qkv", choose, strict=True)
                    if role != letter
                )
                + ": their own weight has no effect",
                "If queries equal keys, every token matches itself best.",
                choose,
            )
            for choose in ("qqv", "kkv", "qkq", "qkk", "qvv", "vkv", "qqq", "kkk", "vvv")
        ),
        *(
            _projection_mistake(
                "not-projected",
                f"{' and '.join(_ROLES[role] for role, letter in zip('qkv', choose, strict=True) if letter == '-')} "
                "are x itself: the weight has no effect",
                "What is looked for, how it is found and what is read are the same.",
                choose,
            )
            for choose in ("qk-", "-kv", "q-v", "---", "--v", "q--")
        ),
        OwnMistake(
            "results-transposed",
            "q",
            "the results are transposed, (d_k, tokens); each row has to be a token",
            "What reads them takes channels for tokens.",
            lambda x, *w: tuple(each.T for each in _projected(x, *w)),
            no_trail,
        ),
    ),
    names=("q", "k", "v"),
)


# 06 and 07 ------------------------------------------------------------------------------------------------------------


def _qk_calls(seed: int) -> list[Call]:
    return [
        course_call(*projected()[:2]),
        random_call("q k", *draw(seed, [3, 5], [4, 5])),
        random_call("q k", *draw(seed + 1, [4, 7], [4, 7])),
        random_call("q k", *draw(seed + 2, [3, 3], [3, 3])),
    ]


_SCORES = Bank(
    lambda q, k: qkv_case(q, k, k),
    lambda state: state.scores[0, 0],
    last="scores",
    pairs=False,
    own=(
        OwnMistake(
            "channels-compared",
            "scores",
            "the product is q^T k, (d_k, d_k): it sums over the tokens; a score sums over the channels",
            "The result says nothing of a query and a key.",
            lambda q, k: q.T @ k,
        ),
        OwnMistake(
            "same-place-only",
            "scores",
            "each query is compared with the key at its own place alone: there is one number a token",
            "No token can look at another one.",
            lambda q, k: (q * k).sum(-1),
        ),
        OwnMistake(
            "scaled-already",
            "scores",
            "the scores are scaled; that is the next exercise",
            "Scaled a second time, they are too small.",
            lambda q, k: q @ k.T / q.shape[-1] ** 0.5,
            pattern=r"sqrt|\*\*",
        ),
        OwnMistake(
            "softmax-already",
            "scores",
            "the result has gone through a softmax; scores are the dot products themselves",
            "A softmax of it is nearly uniform.",
            lambda q, k: (q @ k.T).softmax(-1),
            pattern=r"softmax",
        ),
        OwnMistake(
            "distance-instead",
            "scores",
            "the result is the distances of queries and keys",
            "It is smallest where they are alike; a score is largest there.",
            lambda q, k: (q[:, None] - k[None]).norm(dim=-1),
            pattern=r"cdist|norm|-",
        ),
        OwnMistake(
            "cosine-instead",
            "scores",
            "the result is cosines: the lengths of queries and keys are divided away",
            "A score never exceeds 1, and no key can be looked at much more than the others.",
            lambda q, k: torch.nn.functional.cosine_similarity(q[:, None], k[None], dim=-1),
            pattern=r"norm|cosine",
        ),
    ),
)
SCORES = Problem(calls=lambda: _qk_calls(21), right=_SCORES.right, variants=_SCORES.variants)

_SCALE = Bank(
    lambda q, k: qkv_case(q, k, k),
    lambda state: state.scaled[0, 0],
    last="scaled",
    own=(
        OwnMistake(
            "softmax-already",
            "scaled",
            "the result has gone through a softmax; that is the next exercise",
            "A softmax of it is nearly uniform.",
            lambda q, k: (q @ k.T / q.shape[-1] ** 0.5).softmax(-1),
            pattern=r"softmax",
        ),
    ),
)
SCALE = Problem(calls=lambda: _qk_calls(31), right=_SCALE.right, variants=_SCALE.variants)


# 09 -------------------------------------------------------------------------------------------------------------------

_ATTENTION = Bank(
    qkv_case,
    _output,
    last="output",
    own=(
        OwnMistake(
            "values-missing",
            "output",
            "the result is the weights, (queries, keys): the values are not read with them",
            "Weights say where to look; the result is what is seen there.",
            lambda q, k, v: (q @ k.T / q.shape[-1] ** 0.5).softmax(-1),
        ),
    ),
)
ATTENTION = Problem(
    calls=lambda: [
        course_call(*projected()),
        random_call("q k v", *draw(51, [3, 5], [4, 5], [4, 6])),
        random_call("q k v", *draw(52, [4, 7], [4, 7], [4, 7])),
        random_call("q k v", *draw(53, [3, 3], [3, 3], [3, 3])),
    ],
    right=_ATTENTION.right,
    variants=_ATTENTION.variants,
    is_attention=True,
)
