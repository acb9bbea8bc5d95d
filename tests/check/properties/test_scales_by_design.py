"""A scale that is learned, handed over or made up for is a design; a wrong root is a mistake."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attention_styles import tokens_call
from property_cases import WIDTH, drawn, joined, of_module, split
from regard.check.properties.analyze import analyze
from regard.check.properties.finding import Finding
from regard.check.properties.modules.unused_parameters import unread_scale_findings
from regard.check.target import Invocation, Stream, invocations

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more

X = drawn(2, 4, 8, seed=0)


class Scaled(nn.Module):
    """Attention whose scores are multiplied by what a subclass says."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined((q @ k.mT * self.factor()).softmax(-1) @ v)

    def factor(self) -> Any:
        return 1.0


class Learned(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.2).log())

    def factor(self) -> Tensor:
        return self.temperature.exp()


class NeverLearned(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(4**-0.5), requires_grad=False)

    def factor(self) -> Tensor:
        return self.scale


class WithGatedWeights(Scaled):
    """What is learned is multiplied by the weights, not by the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.tensor([0.3, 0.6])[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        weights = (1 - self.gate) * (q @ k.mT).softmax(-1) + self.gate * torch.eye(x.shape[1]).softmax(-1)
        return joined(weights @ v)


class OfAnArgument(Scaled):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def factor(self) -> float:
        return self.scale


class OfAPart(nn.Module):
    """The scale is chosen by the code that constructs what is scaled, and not by who calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = OfAnArgument(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class ToldToAPart(OfAPart):
    def __init__(self, scale: float = 0.1) -> None:
        super().__init__()
        self.inner = OfAnArgument(scale)


class OfAConfig(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(attention_multiplier=0.1, embedding_multiplier=1.0)

    def factor(self) -> float:
        return self.config.attention_multiplier


class OfTheModel(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.config, self.scale = SimpleNamespace(embedding_multiplier=8**-0.5), 8**-0.5

    def factor(self) -> float:
        return self.scale


class OfLongTexts(Scaled):
    """YaRN's, for texts four times as long."""

    def factor(self) -> float:
        return (0.1 * math.log(4.0) + 1) ** 2 / 2


class OfVeryLongTexts(Scaled):
    """The same for texts 128 times as long, as of Mistral 4."""

    def factor(self) -> float:
        return (0.1 * math.log(128.0) + 1) ** 2 / 2


class NearlyOfLongTexts(Scaled):
    def factor(self) -> float:
        return (0.1 * math.log(4.1) + 1) ** 2 / 2


class OfLaterLayers(Scaled):
    """T5's, without the relative bias that its first layer has."""

    def __init__(self) -> None:
        super().__init__()
        self.has_relative_attention_bias = False


class SaysSo(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        # Scores are not scaled, as in the published weights.
        scores = q @ k.mT
        return joined(scores.softmax(-1) @ v)


class SaysNothingOfScores(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        # Images are scaled before.
        scores = q @ k.mT
        return joined(scores.softmax(-1) @ v)


class SwitchedOff(Scaled):
    """The first GPT's, whose constructor takes `scale=False`."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = False


class TimesOne(Scaled):
    """Pix2Struct's of pictures: it is handed on to the function that multiplies."""

    def __init__(self) -> None:
        super().__init__()
        self.scaling = 1.0


class BecameOne(Scaled):
    """The width of the heads was to be the divisor."""

    def __init__(self) -> None:
        super().__init__()
        heads = 2
        self.scaling = (heads // heads) ** -0.5


class GrowingWithThePlace(Scaled):
    """Log n: later queries have more keys, and are sharpened."""

    def __init__(self, scale: float = 0.5) -> None:
        super().__init__()
        self.sharpness = scale

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        growth = (torch.arange(1.0, x.shape[1] + 1).log() / math.log(2)).clamp(min=1)
        return joined((q * growth[:, None] @ k.mT * self.sharpness).softmax(-1) @ v)


class LearnedByTheLogarithm(Scaled):
    """Each head multiplies by a * log n + b, of its own numbers; or by a * n + b, which nobody knows."""

    def __init__(self, is_log: bool) -> None:
        super().__init__()
        self.is_log = is_log
        self.factors, self.offsets = nn.Parameter(torch.tensor([0.7, -0.4])), nn.Parameter(torch.tensor([0.9, 1.3]))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        n = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
        growth = self.factors[:, None] * (n.log() if self.is_log else n) + self.offsets[:, None]
        return joined((q * growth[..., None] @ k.mT * 0.5).softmax(-1) @ v)


class DotProduct(Scaled):
    """Beside the scaled one, as in a lesson."""


class ScaledDotProduct(Scaled):
    def factor(self) -> float:
        return 0.5


class OneMatrix(nn.Module):
    """The projections of queries and keys, multiplied with each other before they meet a token."""

    def __init__(self, scale: float = 0.5) -> None:
        super().__init__()
        self.q, self.k = (nn.Parameter(drawn(2, 8, 4, seed=seed)) for seed in (5, 6))
        self.v, self.sharpness = nn.Linear(8, 8), scale

    def forward(self, x: Tensor) -> Tensor:
        both = self.q @ self.k.mT * self.sharpness
        scores = torch.einsum("bic,hce,bje->bhij", x, both, x)
        return joined(scores.softmax(-1) @ split(self.v(x)))


class NonLocal(nn.Module):
    """SAGAN's, of pictures; its output is times gamma."""

    def __init__(self, gamma: Any) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Conv2d(8, width, 1) for width in (4, 4, 8))
        self.gamma = gamma

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.query(x).flatten(2).mT @ self.key(x).flatten(2)).softmax(-1)
        return x + self.gamma * (self.value(x).flatten(2) @ weights.mT).view_as(x)


class EmbeddedGaussian(nn.Module):
    """A non-local block, whose projections have the names of the paper or others."""

    def __init__(self, names: tuple[str, str]) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({name: nn.Conv2d(8, 4, 1) for name in names})
        self.g, self.w = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        left, right = (each(x).flatten(2) for each in self.parts.values())
        read = (left.mT @ right).softmax(-1) @ self.g(x).flatten(2).mT
        return x + self.w(read.mT.unflatten(-1, x.shape[-2:]))


class OfNeighbours(nn.Module):
    """Each pixel reads the 3 x 3 pixels around it, whose keys may have a learned vector for each place."""

    def __init__(self, places: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Conv2d(8, 8, 1) for _ in range(3))
        self.places = nn.Parameter(drawn(8, 9, 1, seed=3)) if places else None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        k, v = (nn.functional.unfold(each, 3, padding=1).unflatten(1, (8, 9)) for each in (k, v))
        k = k if self.places is None else k + self.places
        weights = (q.flatten(2)[:, :, None] * k).sum(1, keepdim=True).softmax(2)
        return (weights * v).sum(2).view_as(x)


class OfRows(nn.Module):
    """BoTNet's: each pixel asks all others, and their learned rows where it has some."""

    def __init__(self, rows: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Conv2d(8, 8, 1) for _ in range(3))
        self.rows = nn.Parameter(drawn(1, 8, 3, 1, seed=3)) if rows else None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).flatten(2) for each in (self.query, self.key, self.value))
        scores = q.mT @ k
        if self.rows is not None:
            scores = scores + q.mT @ self.rows.expand(-1, -1, -1, x.shape[3]).flatten(2)
        return (v @ scores.softmax(-1).mT).view_as(x)


def scale_of(call: Invocation) -> Finding:
    torch.manual_seed(0)
    (found,) = [each for each in analyze(call).findings if each.step == "scale"]
    return found


@pytest.mark.parametrize(
    ("module", "kind", "property"),
    [
        (Learned(), "design", "learned-scale"),
        (OfAnArgument(0.1), "design", "scale-handed-over"),
        (OfAConfig(), "design", "scale-handed-over"),
        (ToldToAPart(), "design", "scale-handed-over"),
        (OfAPart(), "violation", "scale"),
        (WithGatedWeights(), "violation", "scale"),
        (OfAnArgument(), "violation", "scale"),
        (OfTheModel(), "violation", "scale"),
        (OfLongTexts(), "design", "scale-of-length"),
        (OfVeryLongTexts(), "design", "scale-of-length"),
        (NearlyOfLongTexts(), "violation", "scale"),
        (Scaled(), "violation", "scale"),
        (DotProduct(), "design", "no-scale"),
        (OfLaterLayers(), "design", "no-scale"),
        (SwitchedOff(), "design", "no-scale"),
        (SaysSo(), "design", "no-scale"),
        (SaysNothingOfScores(), "violation", "scale"),
        (TimesOne(), "design", "no-scale"),
        (BecameOne(), "violation", "scale"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, nn.Module) else "",
)
def test_a_scale_is_a_design_where_somebody_chose_it(module: nn.Module, kind: str, property: str) -> None:
    found = scale_of(tokens_call(module.double(), X))
    assert (found.kind, found.property) == (kind, property)


@pytest.mark.parametrize(("places", "kind"), [(True, "design"), (False, "violation")])
def test_scores_of_neighbours_with_places_of_their_own_are_not_scaled(places: bool, kind: str) -> None:
    call = tokens_call(OfNeighbours(places).double(), drawn(2, 8, 3, 4, seed=1))
    call.streams = [Stream("x", "x", 0, (2, 3))]
    assert scale_of(call).kind == kind


@pytest.mark.parametrize(
    ("names", "kind"),
    [(("theta", "phi"), "design"), (("conv_theta", "conv_phi"), "design"), (("query", "key"), "violation")],
)
def test_scores_of_theta_and_phi_are_not_scaled(names: tuple[str, str], kind: str) -> None:
    call = tokens_call(EmbeddedGaussian(names).double(), drawn(2, 8, 3, 4, seed=1))
    call.streams = [Stream("x", "x", 0, (2, 3))]
    assert scale_of(call).kind == kind


@pytest.mark.parametrize(("rows", "kind"), [(True, "design"), (False, "violation")])
def test_scores_of_pixels_and_of_learned_rows_are_not_scaled(rows: bool, kind: str) -> None:
    call = tokens_call(OfRows(rows).double(), drawn(2, 8, 3, 4, seed=1))
    call.streams = [Stream("x", "x", 0, (2, 3))]
    assert scale_of(call).kind == kind


@pytest.mark.parametrize(("scale", "kind"), [(0.5, "holds"), (0.8, "open")])
def test_scores_may_grow_with_the_place_of_the_query(scale: float, kind: str) -> None:
    found = analyze(tokens_call(GrowingWithThePlace(scale).double(), X)).findings
    assert [(each.kind, each.property) for each in found if each.step in ("scale", "positions")] == [
        (kind, "scale" if kind == "holds" else "scale-open"),
        ("design", "scale-by-position"),
        ("absent", "positions"),
    ]


@pytest.mark.parametrize("is_log", [True, False])
def test_each_head_may_learn_how_scores_grow_with_the_logarithm_of_the_place(is_log: bool) -> None:
    found = analyze(tokens_call(LearnedByTheLogarithm(is_log).double(), X)).findings
    assert [each.kind for each in found if each.property == "scale-by-position"] == ["design"] * is_log
    assert any(each.kind == "violation" for each in found if each.step == "positions") != is_log


@pytest.mark.parametrize(("scale", "kind"), [(0.5, "holds"), (8**-0.5, "violation")])
def test_the_scale_of_one_matrix_for_queries_and_keys_is_that_of_the_head(scale: float, kind: str) -> None:
    found = scale_of(tokens_call(OneMatrix(scale).double(), X))
    assert (found.kind, "1/sqrt(4)" in found.message) == (kind, True)


def test_a_number_that_never_learns_stays_the_scale_that_it_is() -> None:
    assert scale_of(of_module(NeverLearned)).kind == "holds"


def test_the_message_names_the_argument() -> None:
    assert scale_of(tokens_call(OfAnArgument(0.1).double(), X)).message == "scores are times 0.1, as scale = 0.1 says"


class OfAnOption(nn.Module):
    """Scaled where who calls it says by what."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor, scale: float | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT
        if scale is not None:
            scores = scores * scale
        return scores.softmax(-1) @ v


class OfAnUnreadOption(OfAnOption):
    """The option is there, and nothing is multiplied by it."""

    def forward(self, x: Tensor, scale: float | None = None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT).softmax(-1) @ v


@pytest.mark.parametrize(("kind", "expected"), [(OfAnOption, "design"), (OfAnUnreadOption, "violation")])
def test_a_scale_that_a_call_may_be_given_is_left_out_on_purpose(kind: type[nn.Module], expected: str) -> None:
    assert scale_of(tokens_call(kind().double(), X)).kind == expected


@pytest.mark.parametrize(
    ("gamma", "kind"),
    [
        (nn.Parameter(torch.tensor(0.5)), "design"),
        (nn.Parameter(torch.tensor([[0.5], [0.25]])), "violation"),
        (0.5, "violation"),
    ],
    ids=["learned", "learned for each row", "fixed"],
)
def test_one_learned_gate_makes_up_for_the_scale_of_pictures(gamma: Any, kind: str) -> None:
    call = tokens_call(NonLocal(gamma).double(), drawn(2, 8, 2, 3, seed=1))
    call.streams = [Stream("x", "x", 0, (2, 3))]
    assert scale_of(call).kind == kind


class MadeFor(nn.Module):
    """Scaled by the root of a number that it was made with, whatever it is called with."""

    def __init__(self, **numbers: int) -> None:
        super().__init__()
        vars(self).update(numbers)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        (of_scale, *_) = (each for each in vars(self).values() if isinstance(each, int) and each > 1)
        return (query @ key.mT / of_scale**0.5).softmax(-1) @ value


@pytest.mark.parametrize(
    ("numbers", "axes", "kind"),
    [
        ({"dim_k": 24}, (2, 5), "holds"),
        ({"dim_k": 24}, (2, 3, 5), "holds"),
        ({"d_model": 24}, (2, 5), "holds"),
        ({"d_model": 24}, (2, 3, 5), "violation"),
        ({"dim_k": 24, "n_heads": 3}, (2, 3, 5), "violation"),
    ],
)
def test_a_number_that_may_be_the_width_it_was_made_for_is_the_scale(
    numbers: dict[str, int], axes: tuple[int, ...], kind: str
) -> None:
    inputs = {name: drawn(*axes, 8, seed=seed) for seed, name in enumerate(("query", "key", "value"))}
    assert scale_of(next(invocations(MadeFor(**numbers), args={}, inputs=inputs))).kind == kind


MATRIX = drawn(8, 8, seed=2) * 8**-0.5


def general(dec: Tensor, enc: Tensor) -> Tensor:
    """Luong's: states attend to states."""
    return (dec @ MATRIX @ enc.mT).softmax(-1) @ enc


def with_projected_values(dec: Tensor, enc: Tensor) -> Tensor:
    return (dec @ MATRIX @ enc.mT).softmax(-1) @ (enc @ MATRIX)


def with_projected_keys_as_well(dec: Tensor, enc: Tensor) -> Tensor:
    return (dec @ MATRIX @ (enc @ MATRIX).mT).softmax(-1) @ enc


def of_luong(dec: Tensor, enc: Tensor) -> Tensor:
    """Luong attention, its general score; what is read is projected."""
    return with_projected_values(dec, enc)


def of_a_bilinear_form(dec: Tensor, enc: Tensor) -> Tensor:
    """Bilinear attention; what is read is projected."""
    return with_projected_values(dec, enc)


def between_pixels(dec: Tensor, enc: Tensor) -> Tensor:
    """Attention between pictures whose sides were made equal by bilinear interpolation."""
    return with_projected_values(dec, enc)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (general, "design"),
        (of_luong, "design"),
        (of_a_bilinear_form, "design"),
        (between_pixels, "violation"),
        (with_projected_values, "violation"),
        (with_projected_keys_as_well, "violation"),
    ],
)
def test_states_of_a_decoder_attend_to_those_of_an_encoder_without_a_scale(function: Any, kind: str) -> None:
    inputs = {"dec": X, "enc": drawn(2, 5, 8, seed=3)}
    assert scale_of(next(invocations(function, args={}, inputs=inputs))).kind == kind


def of_tokens_alone(x: Tensor) -> Tensor:
    return (x @ x.mT).softmax(-1) @ x


@pytest.mark.parametrize(
    ("name", "text", "is_design"),
    [
        ("basic_self_attention", "", True),
        ("attention", "The dot product of each two tokens, then a softmax over each row.", True),
        ("attention", "Scaled dot-product attention: a softmax of dot products.", False),
        ("attention", "", False),
        ("self_attention", "Of the items of a list.", True),
        ("self_attention", "As in Vaswani et al. (2017).", False),
        ("self_attention", "Divided by the root of the width.", False),
    ],
)
def test_introductory_attention_has_no_scale(name: str, text: str, is_design: bool) -> None:
    def attends(x: Tensor) -> Tensor:
        return of_tokens_alone(x)

    attends.__name__, attends.__doc__ = name, text
    found = analyze(tokens_call(attends, X), masks=True).findings
    assert [each.kind for each in found if each.step == "scale"] == ["design" if is_design else "violation"]


class ResidualScores(nn.Module):
    """Each layer adds the scores of the one before to its own (He et al. 2021, RealFormer)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers, self.width = nn.ModuleList([nn.Linear(8, 24) for _ in range(3)]), width

    def forward(self, x: Tensor) -> Tensor:
        before: Tensor | float = 0.0
        for layer in self.layers:
            q, k, v = map(split, layer(x).chunk(3, -1))
            before = q @ k.mT / math.sqrt(self.width) + before
            x = x + joined(before.softmax(-1) @ v)
        return x


@pytest.mark.parametrize(
    ("width", "wanted"), [(4, set()), (8, {"q . k is multiplied by 0.3536 = 1/sqrt(8), not by 1/sqrt(4) = 0.5"})]
)
def test_scores_of_an_earlier_attention_that_are_added_are_no_part_of_the_width(width: int, wanted: set[str]) -> None:
    analysis = analyze(tokens_call(ResidualScores(width).double().eval(), X))
    assert {each.property for each in analysis.designs} == {"residual-scores"}
    assert {each.message for each in analysis.violations} == wanted
    assert analysis.missing == []


class KeepsAScale(nn.Module):
    """The scale is left of a time when scores were computed step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.inv_norm_factor = nn.Linear(WIDTH, 3 * WIDTH), 0.5

    def forward(self, x: Tensor) -> Tensor:
        return joined(nn.functional.scaled_dot_product_attention(*map(split, self.qkv(x).chunk(3, -1))))


class ForgetsItsScale(nn.Module):
    """The scale is made for what computes the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.inv_norm_factor = nn.Linear(WIDTH, 3 * WIDTH), 0.5

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        return joined((q @ k.mT).softmax(-1) @ v)


def test_a_scale_that_no_line_reads_says_nothing_beside_a_function_that_scales() -> None:
    is_open = [Finding("open", "scale-open", "scale", "queries have factors of their own: not judged")]
    assert not list(unread_scale_findings(of_module(KeepsAScale), is_open))
    (found,) = unread_scale_findings(of_module(ForgetsItsScale), is_open)
    assert found.message == "inv_norm_factor = 0.5 is made, and no line reads it: scores are not times it"


class OfAKind(Scaled):
    """By an option, of which the code knows the same scores with a scale."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def factor(self) -> float:
        return 0.5 if self.kind == "scaled_dot" else 1.0


@pytest.mark.parametrize(("kind", "found"), [("dot", "design"), ("product", "violation"), ("scaled_dot", "holds")])
def test_an_option_beside_the_same_with_a_scale_says_that_there_is_none(kind: str, found: str) -> None:
    analysis = analyze(of_module(lambda: OfAKind(kind)))
    assert [each.kind for each in analysis.findings if each.step == "scale"] == [found]


class CausalOf(nn.Module):
    """Of tokens up to each, whose scores are times a number."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(64, 64) for _ in range(3))
        self.times = scale

    def forward(self, x: Tensor) -> Tensor:
        scores = self.q(x) @ self.k(x).mT * self.times
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return scores.masked_fill(later, -torch.inf).softmax(-1) @ self.v(x)


@pytest.mark.parametrize(("scale", "found"), [(0.125, set()), (40.0, {"scale"})])
def test_weights_that_are_nearly_zero_beside_a_causal_mask_are_hidden_by_no_choice(
    scale: float, found: set[str]
) -> None:
    analysis = analyze(tokens_call(CausalOf(scale).double(), drawn(2, 12, 64, seed=1)))
    assert {each.property for each in analysis.violations} == found
    assert not any(each.property == "sparse-by-content" for each in analysis.findings)
