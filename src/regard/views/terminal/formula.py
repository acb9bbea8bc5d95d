"""The arithmetic of an explanation as a formula and in words, with every variant that the model has."""

from __future__ import annotations

from regard.lens import Explanation

OF = {"ALiBi": "ALiBi's", "T5Relative": "T5's"}
"""Whose number is added to a score, by the name of the bias."""


def formula(e: Explanation) -> str:
    """``softmax(q . k / sqrt(32)) @ v``, or what stands in its place."""
    how, d_key = e.variant, e.row.q.shape[-1]
    factor = f" / sqrt({d_key})" if _is_paper_scale(e) else "" if e.row.scale == 1 else f" * {e.row.scale:.4g}"
    score = f"q . k{factor}"
    if how.softcap is not None:
        score = f"{how.softcap:g} * tanh({score} / {how.softcap:g})"
    if how.bias is not None:
        score = f"{score} + bias"
    return f"softmax({score}) @ v"


def in_words(e: Explanation) -> str:
    """Where q, k and v come from, and what each column of the table is."""
    how = e.variant
    projected = f"{', normed,' if how.pre_norm else ','} times the weights of head {e.head}"
    if e.attention == "cross":
        text = (
            f"q is the vector that goes into the cross-attention of layer {e.layer}{projected}; k and v are the "
            "encoder's result times theirs."
        )
    else:
        text = f"q, k and v are the vectors that go into layer {e.layer}{projected}."
    if how.kv_head is not None:
        text += f" Several heads share their k and v: head {e.head} has number {how.kv_head}."
    if how.qk_norm:
        text += " q and k are then normed."
    if how.rotary:
        text += " q and k are then turned by their positions, so that q . k knows how far apart they are."
    root = f" = 1 / sqrt({e.row.q.shape[-1]})" if _is_paper_scale(e) else ""
    step, steps = "scaled", f"Scaled is q . k times {e.row.scale:.4f}{root}"
    if how.softcap is not None:
        step, steps = "capped", f"{steps}; capped is {how.softcap:g} * tanh(scaled / {how.softcap:g})"
    if how.bias is not None:
        step, steps = "biased", f"{steps}; biased is {step} + {OF[how.bias]} number for the distance of the two tokens"
    keys = "all keys" if e.row.allowed is None else "all keys that are not masked"
    sink = "" if how.sink is None else f" and the head's sink, e^{how.sink:.4f}"
    return f"{text} {steps}; a weight is e^{step}, divided by the sum of e^{step} over {keys}{sink}."


def positions(e: Explanation) -> str:
    """Where positions come in that are not added to the token vectors."""
    if e.variant.rotary:
        return "Positions come in later: in each layer they turn queries and keys."
    if e.variant.bias:
        return "Positions come in later: in each layer they are added to the scores."
    return "No position is added to it."


def _is_paper_scale(e: Explanation) -> bool:
    """Whether scores are scaled as in the paper, section 3.2.1."""
    return bool(abs(e.row.scale * e.row.q.shape[-1] ** 0.5 - 1) < 1e-9)
