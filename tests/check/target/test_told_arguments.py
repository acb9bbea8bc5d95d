"""Arguments that the code, the documentation or others beside them tell: dicts to fill, shares, sizes of pictures."""

from __future__ import annotations

from torch import Tensor

from regard.check.sandbox.torch_settings import UserSettings
from regard.check.target import invocations
from regard.check.target.names import is_of_a_picture


def kept(x: Tensor, state: dict[str, Tensor]) -> Tensor:
    if "keys" not in state:
        state["keys"] = x
    return (x @ state["keys"].mT).softmax(-1) @ x


def shared(q: Tensor, k: Tensor, v: Tensor, part: Tensor) -> Tensor:
    """q, k, v: (batch, heads, time, width), part: (batch, heads, time)."""
    return (q @ k.mT).softmax(-1) @ v * part[..., None]


def test_a_dict_that_a_call_asks_and_fills_is_handed_over_empty() -> None:
    call = next(iter(invocations(kept, args={}, inputs={}, settings=UserSettings())))
    assert call.arguments["state"] == {}
    assert not call.guessed


def test_a_number_of_each_token_and_head_has_the_documented_axes() -> None:
    call = next(iter(invocations(shared, args={}, inputs={}, settings=UserSettings())))
    assert call.arguments["part"].shape == call.arguments["q"].shape[:-1]
    assert not call.guessed


def test_a_size_beside_patches_and_a_width_is_that_of_the_picture() -> None:
    assert is_of_a_picture("size", ("size", "patch", "dim"))
    assert not is_of_a_picture("size", ("size", "patch"))
    assert not is_of_a_picture("size", ("size", "dim"))
