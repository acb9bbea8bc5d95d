"""Three results of the literature on SmolLM2, as tables: indirect objects, knockout by windows of layers, induction.

``python -m bench ioi capitals induction`` writes them to BENCHMARKS.md. ``tests/lens/effects/test_reproductions.py``
asserts them, with fewer prompts.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

import regard
from bench.table import Row
from regard import metrics
from regard.lens import Recording
from regard.lens.effects.statistics import correlation
from regard.pretrained import Pretrained

NAMES = ("Mary", "John", "Tom", "James", "David", "Mark", "Paul", "Anna", "Sarah", "Kate", "Peter", "Laura")
PLACES = ("store", "garden", "school", "station", "office")
OBJECTS = ("drink", "book", "ring", "letter", "ball")
TEMPLATES = (
    "When {A} and {B} went to the {place}, {B} gave a {thing} to",
    "When {B} and {A} went to the {place}, {B} gave a {thing} to",
)
"""Wang et al. 2022, section 2: the indirect object A stands first (ABBA) or second (BABA), the subject B twice."""

CAPITALS = {
    "France": "Paris",
    "Japan": "Tokyo",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Brazil": "Rio",
    "Norway": "Oslo",
}
"""The last word of each prompt is compared with this one; Rio is not the capital of Brazil: a weak case."""
WINDOW, CENTRES = 9, range(0, 30, 3)


def indirect_objects(count: int, seed: int = 0) -> list[tuple[str, str, str, str]]:
    """Prompts: (prompt, indirect object, subject, the same prompt with three other names)."""
    generator = random.Random(seed)
    prompts = []
    for n in range(count):
        a, b, *others = generator.sample(NAMES, 5)
        words = {"place": generator.choice(PLACES), "thing": generator.choice(OBJECTS)}
        template = TEMPLATES[n % 2]
        names = iter(others)
        third = template.replace("{B} gave", "{C} gave")
        corrupted = third.format(A=next(names), B=next(names), C=next(names), **words)
        prompts.append((template.format(A=a, B=b, **words), a, b, corrupted))
    return prompts


def induction_text(length: int = 40, seed: int = 0) -> Tensor:
    """Random tokens, twice (Olsson et al. 2022)."""
    ids = torch.randint(1000, 40_000, (length,), generator=torch.Generator().manual_seed(seed))
    return ids.repeat(2)


def induction_heads(model: Pretrained, ids: Tensor) -> list[tuple[str, int]]:
    """The heads that are named *induction* on a text."""
    with torch.inference_mode(), regard.watch(model.model) as seen:
        model.model(ids[None])
    seen.label([str(i) for i in ids.tolist()])
    return [
        (path, h) for path, types in seen.head_types().items() for h, t in enumerate(types.names) if t == "induction"
    ]


def gain(model: Pretrained, ids: Tensor, ablated: Sequence[tuple[str, int]]) -> float:
    """By how much the loss is lower where the tokens come again, without some heads."""
    with torch.inference_mode(), regard.intervene(model.model, verify=False) as edit:
        for path, head in ablated:
            edit[path].heads[head].ablate()
        loss = F.cross_entropy(model.model(ids[None])[0, :-1], ids[1:], reduction="none")
    half = len(ids) // 2
    return float(loss[: half - 1].mean() - loss[half:].mean())


def random_heads(
    paths: Sequence[str], heads: int, found: Sequence[tuple[str, int]], seed: int
) -> list[tuple[str, int]]:
    """As many other heads as were found."""
    others = [head for head in itertools.product(paths, range(heads)) if head not in found]
    return random.Random(seed).sample(others, len(found))


def ioi(count: int = 100, top: int = 10) -> Iterator[Row]:
    """The heads that matter most for indirect objects: zero, mean and resample ablation, and two rankings beside."""
    model = regard.load("smollm2")
    prompts = indirect_objects(count)
    source = _record(model, [corrupted for *_, corrupted in prompts])
    baseline, estimates, attention = [], [], []
    for text, a, b, _ in prompts:
        rough = regard.effect(model, text, metrics.logit_difference(a, b), method="gradient", progress=False)
        assert rough.estimates is not None
        assert rough.looked_at is not None
        baseline.append(float(rough.baseline))
        estimates.append(rough.estimates[0])
        attention.append(rough.looked_at[0])
    estimate, looked_at = torch.stack(estimates).mean(0), torch.stack(attention).mean(0)
    heads = estimate.shape[1]
    chosen = [divmod(n, heads) for n in estimate.flatten().abs().topk(3 * top).indices.tolist()]
    exact = {
        method: torch.stack(
            [
                value - logit_differences(model, text, (a, b), chosen, method, source, number)
                for number, ((text, a, b, _), value) in enumerate(zip(prompts, baseline, strict=True))
            ]
        ).mean(0)
        for method in ("zero", "mean", "resample")
    }
    correct = sum(value > 0 for value in baseline)
    yield Row("no head removed", f"{statistics.mean(baseline):.2f}", f"above 0 on {correct} of {count} prompts")
    for n in exact["zero"].abs().argsort(descending=True).tolist()[:top]:
        layer, head = chosen[n]
        zero, mean, resample = (f"{float(t[n]):+.2f}" for t in exact.values())
        yield Row(
            f"head {layer}.{head}",
            zero,
            f"{mean}, {resample}",
            f"{estimate[layer, head]:+.2f}",
            f"{looked_at[layer, head]:.2f}",
        )
    ranks = {name: _correlation(t, exact["zero"], chosen) for name, t in (("", estimate), ("attention", looked_at))}
    case = f"rank correlation with zero ablation, {len(chosen)} heads with the largest estimates"
    yield Row(
        case,
        "1.00",
        ", ".join(f"{correlation(exact['zero'], exact[m], rank=True):.2f}" for m in ("mean", "resample")),
        *(f"{r:.2f}" for r in ranks.values()),
    )


def logit_differences(
    model: Pretrained,
    text: str,
    names: tuple[str, str],
    heads: Sequence[tuple[int, int]],
    method: str,
    source: Recording,
    seed: int = 0,
) -> Tensor:
    """The logit difference of two names without each head, one in each batch row."""
    ids = torch.tensor([model.encode(text).ids])
    a, b = (model.encode(f" {name}").ids[0] for name in names)
    with torch.inference_mode(), regard.intervene(model.model, verify=False) as edit:
        for row, (layer, head) in enumerate(heads):
            place = edit[f"blocks.{layer}.attention"].batch[row].heads[head]
            place.ablate(method, *([] if method == "zero" else [source]), seed=seed * len(heads) + row)
        logits = model.model(ids.expand(len(heads), -1))[:, -1]
    return logits[:, a] - logits[:, b]  # type: ignore[no-any-return]


def knockout() -> Iterator[Row]:
    """The probability of the capital where the last word may not see the country in 9 layers (Geva et al. 2023)."""
    model = regard.load("smollm2")
    for country, capital in CAPITALS.items():
        before, after = knocked_out(model, country, capital, CENTRES)
        changes = [f"{value / before - 1:+.0%}" for value in after]
        parts = [" ".join(changes[start:stop]) for start, stop in ((0, 3), (3, 6), (6, None))]
        yield Row(f"The capital of {country} is: {capital}", f"{before:.2f}", *parts)


def knocked_out(model: Pretrained, country: str, capital: str, centres: Sequence[int]) -> tuple[float, list[float]]:
    """The probability of the capital, and the one without the edge in the layers around each centre."""
    encoding = model.encode(f"The capital of {country} is")
    ids, answer = torch.tensor([encoding.ids]), model.encode(f" {capital}").ids[0]
    subject = list(range(3, len(encoding.ids) - 1))
    num_layers = len(model.model.blocks)  # type: ignore[arg-type]
    with torch.inference_mode():
        before = float(model.model(ids)[0, -1].softmax(-1)[answer])
        with regard.intervene(model.model, verify=False) as edit:
            for row, centre in enumerate(centres):
                for layer in range(max(0, centre - WINDOW // 2), min(num_layers, centre + WINDOW // 2 + 1)):
                    edit[f"blocks.{layer}.attention"].batch[row].block(queries=[-1], keys=subject)
            after = model.model(ids.expand(len(centres), -1))[:, -1].softmax(-1)[:, answer]
    return before, after.tolist()


def induction(draws: int = 20) -> Iterator[Row]:
    """What the induction heads are worth on 40 random tokens that come twice (Olsson et al. 2022)."""
    model = regard.load("smollm2")
    ids = induction_text()
    found = induction_heads(model, ids)
    paths = [f"blocks.{layer}.attention" for layer in range(len(model.model.blocks))]  # type: ignore[arg-type]
    whole = gain(model, ids, [])
    without = gain(model, ids, found)
    others = sorted(gain(model, ids, random_heads(paths, 9, found, seed)) for seed in range(draws))
    names = ", ".join(f"{path.split('.')[1]}.{head}" for path, head in found)
    yield Row("gain where tokens come again", f"{whole:.2f} nats", "")
    yield Row(f"without {names}, named induction", f"{without:.2f} nats", f"{without / whole - 1:+.0%}")
    middle, least = statistics.median(others), others[0]
    case = f"without {len(found)} other heads, median of {draws} draws"
    yield Row(case, f"{middle:.2f} nats", f"{middle / whole - 1:+.0%}, at most {least / whole - 1:+.0%}")


def _record(model: Pretrained, texts: Sequence[str]) -> Recording:
    """Texts of equal length in one batch."""
    ids = torch.tensor([model.encode(text).ids for text in texts])
    with torch.inference_mode(), regard.watch(model.model) as recording:
        model.model(ids)
    return recording


def _correlation(scores: Tensor, exact: Tensor, heads: Sequence[tuple[int, int]]) -> float:
    return correlation(torch.stack([scores[head] for head in heads]), exact, rank=True)
