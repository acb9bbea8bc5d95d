"""`--args`: inputs of a call, as a user writes them."""

import pytest
import torch
from torch import Tensor

from regard.check.target.parse import parse_inputs
from regard.check.target.sizes import Sizes
from regard.errors import InputError

SIZES = Sizes(batch=2, tokens=5, context=7, heads=3, kv_heads=3, d_head=4)
SHAPES = {
    "(B,T,D)": (2, 5, 12),
    "(B, H, S, d)": (2, 3, 7, 4),
    "(T,)": (5,),
    "(B,T,3*D)": (2, 5, 36),
    "(1, T, D/2)": (1, 5, 6),
    "(B, T+1, D)": (2, 6, 12),
    "rope(T,d)": (5, 2),
    "cos(T,d)": (5, 4),
    "causal(T)": (5, 5),
    "ones(B,1,T,S)": (2, 1, 5, 7),
    "zeros(T,T)": (5, 5),
    "ids(B,T,V)": (2, 5),
    "arange(T)": (5,),
}


@pytest.mark.parametrize("written", SHAPES)
def test_a_value_has_the_shape_that_is_written(written: str) -> None:
    assert parse_inputs(f"x={written}")(SIZES)["x"].shape == SHAPES[written]


@pytest.mark.parametrize(("written", "value"), [("3", 3), ("-1", -1), ("0.5", 0.5), ("None", None), ("'a'", "a")])
def test_other_values_are_python_s(written: str, value: object) -> None:
    assert parse_inputs(f"n={written}")(SIZES)["n"] == value


def test_a_size_alone_is_a_number() -> None:
    assert parse_inputs("num_heads=H, n=T*D")(SIZES) == {"num_heads": 3, "n": 60}


def test_a_tuple_of_calls_is_a_tuple() -> None:
    cos, sin = parse_inputs("position_embeddings=(cos(T,d), sin(T,d))")(SIZES)["position_embeddings"]
    torch.testing.assert_close(cos**2 + sin**2, torch.ones(5, 4, dtype=torch.float64))


def test_rope_turns_by_the_position() -> None:
    freqs: Tensor = parse_inputs("freqs=rope(T,d)")(SIZES)["freqs"]
    torch.testing.assert_close(freqs[2] * freqs[1], freqs[3])


def test_tensors_of_one_call_differ_and_come_again() -> None:
    inputs, again = (parse_inputs("q=(T,D), k=(T,D)")(SIZES) for _ in range(2))
    assert not torch.equal(inputs["q"], inputs["k"])
    assert torch.equal(inputs["q"], again["q"])


REFUSED = {
    "x=(B,T,": "cannot be read",
    "(B,T,D)": "has no name: write NAME=(B, T, D)",
    "x=(B,Q)": "Q is no size: the letters are B batch",
    "x=turn(T,D)": "turn(...) is unknown: there are rope, cos",
    "x=rope(T)": "rope takes 2 sizes, such as rope(T, d)",
    "x=y[0]": "y[0] cannot be read",
}


@pytest.mark.usefixtures("as_a_user_runs_it")
@pytest.mark.parametrize("written", REFUSED)
def test_what_cannot_be_read_is_named(written: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_inputs(written)
    assert REFUSED[written] in str(refused.value)
    assert "\n" not in str(refused.value)
