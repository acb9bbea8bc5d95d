"""The problem of each exercise, by its slug."""

from __future__ import annotations

from collections.abc import Mapping

from regard.exercises.problems import attention, beams, decoder, heads, masks, modules, positions, softmax, vectors
from regard.exercises.problems.problem import Problem

__all__ = ["PROBLEMS"]

PROBLEMS: Mapping[str, Problem] = {
    "dot-product": vectors.DOT_PRODUCT,
    "lookup": vectors.LOOKUP,
    "cosine-similarity": vectors.COSINE_SIMILARITY,
    "attention-without-weights": attention.SIMPLE_ATTENTION,
    "projections": attention.PROJECTIONS,
    "scores": attention.SCORES,
    "scale": attention.SCALE,
    "softmax": softmax.SOFTMAX,
    "attention": attention.ATTENTION,
    "sinusoidal-positions": positions.SINUSOIDAL_POSITIONS,
    "rotary": positions.ROTARY,
    "causal-mask": masks.CAUSAL_MASK,
    "padding-mask": masks.PADDING_MASK,
    "split-heads": heads.SPLIT_HEADS,
    "multi-head": heads.MULTI_HEAD,
    "self-attention": modules.SELF_ATTENTION,
    "cross-attention": heads.CROSS_ATTENTION,
    "transformer-block": modules.TRANSFORMER_BLOCK,
    "beam-step": beams.BEAM_STEP,
    "decoder-with-cache": decoder.DECODER,
}
