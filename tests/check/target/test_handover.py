"""What nothing tells is asked for, with an example; and the shapes that documentation writes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from target_calls import Packed, attention, axes, first
from torch import Tensor, nn

from regard.check import check
from regard.check.target import NotCallable, invocations
from regard.check.target.documented_shapes import documented_letters, documented_shape
from regard.check.target.parse import parse_inputs

pytestmark = pytest.mark.more  # seconds a test: it is run by make test-more


class NeedsMore(Packed):
    """Three vectors for each token, as its documentation says and no name."""

    def forward(self, x: Tensor, more: Tensor) -> Tensor:
        """
        Args:
            more: (batch, seq_len, three, dim)
        """
        _, _, three, _ = more.shape
        if three * three != 9:
            raise ValueError("another number of them")
        return super().forward(x + more.sum(2))


def refused(target: Any, **args: Any) -> str:
    with pytest.raises(NotCallable) as error:
        list(itertools.islice(invocations(target, args=args), 1))
    return str(error.value)


def test_the_error_has_an_example_with_the_arguments_and_the_shapes_that_are_documented() -> None:
    said = refused(NeedsMore)
    example = said.partition('--args "')[2].partition('"')[0]
    assert example == "x=(B,T,D), more=(B,T,2,D)"
    assert set(parse_inputs(example).values) == {"x", "more"}
    assert "(B batch, T tokens, D width of the tokens)" in said


def test_what_the_example_asks_for_can_be_handed_over() -> None:
    assert check(NeedsMore, inputs="x=(B,T,D), more=(B,T,3,D)").verdict == "right"


class AsksPictures(nn.Module):
    """Tokens attend to all parts of several pictures."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))

    def forward(self, x: Tensor, media: Tensor) -> Tensor:
        batch, pictures, parts, _ = media.shape
        media = media.reshape(batch, pictures * parts, -1)
        return attention(self.q(x), self.k(media), self.v(media))


@pytest.mark.parametrize("inputs", ["media=(B,2,S,D)", "x=(B,T,D), media=(B,2,S,D)"])
def test_what_is_handed_over_beside_x_is_what_it_attends_to(inputs: str) -> None:
    call = first(AsksPictures, parse_inputs(inputs))
    assert {each[0] for each in axes(call)} == {"x", "context"}
    assert check(AsksPictures, inputs=inputs).verdict == "right"


class NeedsWhatMayBeLeftOut(Packed):
    def forward(self, x: Tensor, table: Tensor | None = None) -> Tensor:
        table = nn.functional.dropout(table, 0.0)  # type: ignore[arg-type]
        if not table.isfinite().all() or float(table.sum()) != 0:
            raise ValueError("the numbers of a table add up to 0")
        return super().forward(x) + table


def test_the_example_has_what_may_be_left_out_where_the_code_stumbles_over_none() -> None:
    assert '--args "x=(B,T,D), table=(B,T,D)"' in refused(NeedsWhatMayBeLeftOut)


DOCUMENTED = '''
class Some:
    """Of a decoder.

    Inputs: query, value
        - **query** (batch, q_len, hidden_dim): the output of the decoder
    """

    def forward(self, query, h, e, mask, x, other):
        """`h` are embeddings of shape `[n_nodes, in_features]`; `mask` has shape `[seq_len, seq_len, batch_size]`."""
        # |e| = (batch_size, 1, hidden_size)
        # `mask` has shape [seq_len, seq_len, 1, 1]
        x = query.view(a, b)
        # x: (B, T, D), then x: (B, T)
        return x.other(a, b, c)
'''


def test_shapes_are_read_where_they_stand_beside_a_name() -> None:
    letters = {name: documented_letters(DOCUMENTED, name) for name in ("query", "h", "e", "mask", "x", "other")}
    assert letters == {"query": "btd", "h": "td", "e": "b1d", "mask": "ttb", "x": "", "other": ""}
    assert documented_shape(DOCUMENTED, "query") == ("batch", "q_len", "hidden_dim")
    assert documented_shape("no code (", "query") == ()


def test_axes_may_be_written_at_the_end_of_a_line_with_an_x_between_them() -> None:
    told = '''def f(query, pos_emb):
    """Args:
        query: Query tensor T X B X C
        pos_emb: Positional embedding tensor B X 2T-1 X C
        length: T x B of the first call
    """
'''
    assert documented_letters(told, "query") == "tbd"
    assert documented_shape(told, "pos_emb") == ("B", "2T-1", "C")
    assert documented_shape(told, "length") == ()
