"""Causality: later tokens that move earlier outputs, in what says that it is causal."""

from __future__ import annotations

from dataclasses import replace

import torch

from regard.check.behaviour.calls import output_gap, with_other_token
from regard.check.behaviour.dropout import is_repeatable, without_dropout
from regard.check.behaviour.examination import Examination
from regard.check.search.cases import lengths
from regard.check.search.diagnose import is_switched_off

__all__ = ["future_leaks"]

CAUSAL_WORDS = ("causal", "masked", "decoder", "autoregress")


def future_leaks(examination: Examination) -> None:
    """Another token, and the outputs at the positions before it."""
    flags = [name for name, means in examination.roles.items() if means == "causal"]
    stages = {stage.mask: stage for stage in examination.diagnosis.stages}
    flag = next((name for name in flags if (stage := stages.get(f"flag {name}")) is None or stage.found is None), None)
    by = f"its flag {flag}" if flag is not None else _says_causal(examination)
    if not by or examination.diagnosis.is_random or (examination.is_explained and flag is None):
        return
    for call, case, _ in examination.pairs:
        queries, keys = lengths(case)
        if queries != keys or queries < 2 or case.context is not None:
            continue
        call = replace(call, flag=flag is not None)
        if not is_repeatable(call, case):
            return
        with without_dropout():
            before = call(case)
            for key in reversed(range(1, keys)):
                after = call(with_other_token(case, key))
                gaps = [output_gap(before[..., query, :], after[..., query, :]) for query in range(key)]
                query = next((query for query, gap in enumerate(gaps) if gap), None)
                if query is not None:
                    examination.add_mistake("future-leak", named=by, query=query, key=key, number=gaps[query])
                    return
        return


def _says_causal(examination: Examination) -> str:
    """What says that it is causal without an argument for it, in words; empty where nothing does."""
    name = examination.diagnosis.subject.name
    if set(examination.roles.values()) & {"mask", "causal", "padding"} or examination.diagnosis.subject.says_two_ways:
        return ""
    if any(word in name.lower() for word in CAUSAL_WORDS):
        return f"its name, {name}"
    module = examination.pairs[0][0].module
    if module is None:
        return ""
    for path, buffer in module.named_buffers():
        while buffer.ndim > 2 and len(buffer) == 1:
            buffer = buffer[0]
        if buffer.ndim == 2 and buffer.shape[0] == buffer.shape[1] > 2:
            marked = buffer != buffer[0, -1]
            lower = torch.ones_like(marked).tril()
            is_mask = torch.equal(marked, lower) or torch.equal(marked, lower.tril(-1))
            if is_mask and not is_switched_off(module, path):
                return f"its buffer {path}"
    return ""
