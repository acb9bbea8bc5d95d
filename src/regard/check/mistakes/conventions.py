"""What code may differ in and still be right, and what it may differ in on purpose."""

from __future__ import annotations

from regard.check.mistakes.mistake import Convention

__all__ = ["CONVENTIONS"]

CONVENTIONS: tuple[Convention, ...] = (
    Convention("precision", "the scale is computed in float32", {"scale": "float32"}),
    Convention("precision", "the scale is computed in float32", {"scale": "float32-inverse"}),
    Convention("precision", "the softmax is computed in float32", {"softmax": "float32"}),
    Convention(
        "convention",
        "a head's channels are {heads} apart: (width, heads) instead of (heads, width)",
        {"split": "channels", "merge": "channels"},
    ),
    Convention(
        "convention",
        "a head's channels are {heads} apart in q, k and v: (width, heads) instead of (heads, width)",
        {"split": "channels"},
    ),
    Convention(
        "convention",
        "the output's channels are interleaved: (width, heads) instead of (heads, width)",
        {"merge": "channels"},
    ),
    Convention(
        "convention",
        "key and value heads are tiled: query head i reads key head i mod {kv_heads}, not i // {per} as in checkpoints "
        "of Llama, Mistral and others: it learns as well, but computes something else with their weights",
        {"groups": "tiled"},
    ),
    Convention(
        "convention",
        "the packed weights are ordered k, q, v",
        {"linear": "kqv"},
        packed=True,
    ),
    Convention(
        "convention",
        "the packed weights are ordered v, k, q",
        {"linear": "vkq"},
        packed=True,
    ),
    Convention(
        "convention",
        "the packed weights are ordered q, v, k",
        {"linear": "qvk"},
        packed=True,
    ),
    Convention(
        "convention",
        "the packed weights are ordered v, q, k",
        {"linear": "kvq"},
        packed=True,
    ),
    Convention(
        "convention",
        "the packed weights are ordered k, v, q",
        {"linear": "vqk"},
        packed=True,
    ),
    Convention(
        "convention",
        "causal from the first position: query i attends to keys 0 to i, also if there are more keys",
        {"seen": "first-aligned"},
    ),
    Convention("design", "queries and keys are normalized to length 1 (cosine)", {"rounds": "l2"}),
    Convention("design", "q/k norm: an RMS norm of queries and keys, by head", {"rounds": "rms"}),
    Convention("design", "q/k norm: a layer norm of queries and keys, by head", {"rounds": "layer"}),
    Convention("design", "rotary positions, halves in pairs (Llama)", {"rounds": "rotary-halves"}),
    Convention("design", "rotary positions, neighbours in pairs (GPT-J)", {"rounds": "rotary-pairs"}),
    Convention("design", "rotary positions, as given", {"rounds": "given-halves"}),
    Convention("design", "q/k norm, then rotary positions", {"rounds": "rms+rotary-halves"}),
    Convention("design", "q/k norm, then rotary positions, as given", {"rounds": "rms+given-halves"}),
    Convention("design", "ALiBi: a bias by distance, one slope for each head", {"bias": "alibi"}),
    Convention("design", "a learned bias of queries and keys", {"bias": "learned"}),
    Convention("design", "a sink of score 0: softmax with + 1 in its denominator", {"softmax": "plus-one"}),
    Convention(
        "design", "learned sinks: one score per head in the softmax that carries no value", {"softmax": "sinks"}
    ),
    Convention("design", "sigmoid instead of softmax", {"softmax": "sigmoid"}),
    Convention("design", "the input is added to the output (a residual inside)", {"out": "and-input"}),
)
"""Layouts and conventions, differences by design, and what is right to less than float64's precision."""
