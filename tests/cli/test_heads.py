"""`--layer` and `--head`: one spelling in every command."""

import pytest

from regard.cli.heads import parse_layers_and_heads, parse_one_head
from regard.errors import InputError

LAYERS = "numbers from 0 and ranges of them, such as 0,3-5"
HEADS = "LAYER.HEAD, such as 3.1,4.0, or numbers and ranges of them for each layer"


@pytest.mark.parametrize(("layer", "layers"), [("0", [0]), ("0,3-5", [0, 3, 4, 5]), (" 2 , 1-2", [1, 2]), ("007", [7])])
def test_lists_of_layers(layer, layers):
    assert parse_layers_and_heads(layer, None) == (layers, None)


@pytest.mark.parametrize(
    ("head", "heads"), [("3.1,4.0", [(3, 1), (4, 0)]), ("0-2", [0, 1, 2]), ("1", [1]), (" 3.1 ", [(3, 1)])]
)
def test_lists_of_heads(head, heads):
    assert parse_layers_and_heads(None, head) == (None, heads)


@pytest.mark.parametrize("layer", ["", ",", "1-", "-1", "3-1", "a", "1.5", "0,,2", "1-2-3", "²", "0-99999"])
def test_what_is_no_list_of_layers(layer):
    with pytest.raises(InputError, match=f"^--layer {layer}: {LAYERS}$"):
        parse_layers_and_heads(layer, None)


@pytest.mark.parametrize("head", ["", "3.x", "3.1,4", "3.1-2", ".1", "3.", "a", "2-1"])
def test_what_is_no_list_of_heads(head):
    with pytest.raises(InputError, match=f"^--head {head}: {HEADS}"):
        parse_layers_and_heads(None, head)


@pytest.mark.parametrize(
    ("layer", "head", "one"),
    [("3", "1", (3, 1)), (None, "3.1", (3, 1)), ("3", "3.1", (3, 1)), ("3", None, (3, None)), (None, "1", (None, 1))],
)
def test_one_head(layer, head, one):
    assert parse_one_head(layer, head) == one


@pytest.mark.parametrize(
    ("layer", "head", "message"),
    [
        ("0,3", None, "--layer 0,3: one head is shown, so give one layer"),
        ("3", "0-1", "--head 0-1: one head is shown"),
        (None, "3.1,4.0", "--head 3.1,4.0: one head is shown"),
        ("2", "3.1", "--head 3.1: layer 3 is not among those of --layer 2"),
    ],
)
def test_several_heads_are_refused_where_one_is_shown(layer, head, message):
    with pytest.raises(InputError, match=message):
        parse_one_head(layer, head)
