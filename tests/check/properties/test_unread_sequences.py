"""A second sequence that nothing is read from is wrong, unless it need not be read."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from property_cases import WIDTH, joined, of_x_and_context, split
from property_cases.output_cases import attention
from regard.check.properties.analyze import analyze
from regard.check.target.preparation import prepare

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class Layer(nn.Module):
    """Attention to itself, then to the context."""

    def __init__(self, reads_another: bool = True) -> None:
        super().__init__()
        self.reads_another = reads_another
        self.own, self.cross = nn.MultiheadAttention(WIDTH, 2, batch_first=True), nn.Linear(WIDTH, WIDTH)
        self.kv = nn.Linear(WIDTH, 2 * WIDTH)

    def another(self, x: Tensor, context: Tensor) -> Tensor:
        k, v = self.kv(context).chunk(2, -1)
        return x + joined((split(self.cross(x)) @ split(k).mT / 2).softmax(-1) @ split(v))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self.another(x + self.own(x, x, x)[0], context)


class ThrownAway(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.kv = Layer(), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        k, v = self.kv(context).chunk(2, -1)
        k, v = x, x
        return self.layer(k, v)


class NeverNamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self.layer(x, x)


class WhereItIsTold(Layer):
    """May be an encoder's: then there is nothing else to read."""

    def __init__(self) -> None:
        super().__init__(reads_another=False)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        x = x + self.own(x, x, x)[0]
        return self.another(x, context) if self.reads_another else x


class Optional(Layer):
    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return x + self.own(x, x, x)[0]


class LikeTheOthers(Layer):
    """The context is there for the layers that read one."""

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return x + self.own(x, x, x)[0]


class Deleted(nn.Module):
    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        del context
        return attention(x)


class Documented(nn.Module):
    """Attends to itself; the context is not used."""

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return attention(x)


def violations(kind: type[nn.Module]) -> list[str]:
    module = kind()
    prepare(module, 1)
    return [each.message for each in analyze(of_x_and_context(module), masks=True).violations]


@pytest.mark.parametrize(
    ("kind", "why"), [(ThrownAway, "what is computed from it is not used"), (NeverNamed, "no line reads it")]
)
def test_a_context_that_has_to_be_given_has_an_influence(kind: type[nn.Module], why: str) -> None:
    assert violations(kind) == [f"context has no influence on the output: {why}"]


@pytest.mark.parametrize("kind", [Layer, WhereItIsTold, Optional, LikeTheOthers, Deleted, Documented])
def test_a_context_that_is_read_or_need_not_be_is_right(kind: type[nn.Module]) -> None:
    assert violations(kind) == []


class WithoutItsMatrix(nn.Module):
    """Its only parameter is read nowhere: nothing that it returns was computed with one."""

    def __init__(self, dim: int = 12) -> None:
        super().__init__()
        self.matrix = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return (x @ context.mT).softmax(-1) @ context


class WithItsMatrix(WithoutItsMatrix):
    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return (self.matrix(x) @ context.mT).softmax(-1) @ context


def test_a_module_that_computes_with_none_of_its_parameters_is_wrong() -> None:
    assert "matrix is constructed, and no line reads it: it has no effect and does not learn" in violations(
        WithoutItsMatrix
    )
    assert violations(WithItsMatrix) == []


class LayerNoMemory(WithItsMatrix):
    """What its class says that it does without may be left of another one that it is a copy of."""

    def __init__(self, dim: int = 8) -> None:
        super().__init__(dim)
        self.memory_layer = nn.Linear(dim, 4 * dim)


class LayerWithMemory(LayerNoMemory):
    def __init__(self, dim: int = 8) -> None:
        super().__init__(dim)
        self.memory_layer = nn.Linear(dim, 4 * dim)


def test_a_part_that_the_name_of_a_class_excludes_may_be_left_in_it() -> None:
    assert violations(LayerNoMemory) == []
    assert violations(LayerWithMemory)[0].startswith("memory_layer is constructed, and no line reads it")


class KeysForgotten(nn.Module):
    """What its keys are its values are too, and no line speaks of values."""

    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.q, self.k, self.out = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k = split(self.q(query)), split(self.k(key))
        return self.out(joined((q @ k.mT / 2).softmax(-1) @ k))


class KeysAlone(KeysForgotten):
    """The same, and the line that made others is commented out."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k = split(self.q(query)), split(self.k(key))
        # v = self.v(value).unflatten(-1, (2, -1))
        return self.out(joined((q @ k.mT / 2).softmax(-1) @ k))


class Around(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.attention = kind()

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.attention(query, key, value) + query


class Outermost(Around):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__(kind)
        self.attention = Around(kind)  # type: ignore[assignment]

    def forward(self, x: Tensor, context: Tensor) -> Tensor:  # type: ignore[override]
        return self.attention(x, context, context)


@pytest.mark.parametrize(("kind", "found"), [(KeysAlone, []), (KeysForgotten, ["values-from-their-input"])])
def test_values_whose_line_is_commented_out_are_left_out_on_purpose(kind: type[nn.Module], found: list[str]) -> None:
    model = Outermost(kind)
    prepare(model, 1)
    assert [each.property for each in analyze(of_x_and_context(model)).violations] == found
