"""`regard.explain` on the default model, what it writes, and what it refuses."""

import io
import json
import math
from contextlib import suppress

import pytest
import torch
import transformers
from rich.console import Console

import regard
from json_places import altered, json_places
from regard import InputError
from regard.lens.text.activations import run_with_cache
from regard.views.terminal.explanation import draw
from weights import LOAN, PIZZA, RIVER, minilm, minilm_folder, random_bert


def explain(text=RIVER, token=None, **options):
    return regard.explain(text, token, minilm(), **options)


@pytest.fixture
def small(tmp_path):
    random_bert(tmp_path)
    return regard.load(tmp_path)


@pytest.fixture(scope="module")
def river():
    return explain(RIVER, "bank", compare=LOAN)


def test_bank_gives_river_its_largest_share(river):
    assert (river.word.text, river.word.token_index, river.layer, river.head) == ("bank", [11], 0, 4)
    assert river.queries.tokens[10] == "river"
    assert river.row.weights[0, 10].item() == pytest.approx(0.8468, abs=5e-5)
    best = river.top_keys[0]
    assert (best.token, best.index, best.layer, best.head) == ("river", 10, 0, 2)


def test_it_gives_pizza_its_largest_share_in_layer_3_head_1():
    pizza = explain(PIZZA, "it", layer=3, head=1)
    assert pizza.row.weights[0, pizza.queries.tokens.index("pizza")].item() == pytest.approx(0.701, abs=5e-4)
    assert pizza.positional_pattern is None


def test_a_head_that_looks_at_the_token_before_is_said_to(river):
    assert river.positional_pattern is None
    before = explain(RIVER, "bank", layer=0, head=2)
    assert before.row.weights[0, 10].item() == pytest.approx(0.9988, abs=5e-5)
    assert before.positional_pattern == "11 of the text's 12 tokens give most to the token just before them"


def has_habit(weights):
    """Whether four fifths of a text's tokens give most to the same place: a neighbour, themselves, [CLS] or [SEP]."""
    last = len(weights) - 1
    best = [(query, int(weights[query].argmax())) for query in range(1, last)]
    places = [key if key in (0, last) else f"{key - query:+}" for query, key in best]
    return max(places.count(place) for place in (0, last, "-1", "+0", "+1")) >= 0.8 * len(best)


@pytest.mark.parametrize(("text", "word"), [(RIVER, "fishing"), (PIZZA, "it"), (PIZZA, "oven"), (LOAN, "loan")])
def test_the_default_head_is_the_one_that_transformers_maps_give(text, word):
    model = transformers.AutoModel.from_pretrained(minilm_folder(), attn_implementation="eager").eval()
    e = explain(text, word)
    with torch.no_grad():
        maps = model(torch.tensor([e.queries.ids]), output_attentions=True).attentions
    shares = torch.stack(maps)[:, 0, :, e.word.token_index[0]]
    others = [i for i in range(1, len(e.queries.ids) - 1) if i not in e.word.token_index]
    content = shares[:, :, others].clone()
    content[torch.tensor([[has_habit(head) for head in layer[0]] for layer in maps])] = -1
    assert [e.layer, e.head] == (content == content.max()).nonzero()[0, :2].tolist()
    for top in e.top_keys:
        assert top.weight == pytest.approx(shares[:, :, top.index].max().item(), abs=1e-5)


def test_the_pass_changes_nothing_and_leaves_nothing():
    model, ids = minilm().model, torch.tensor(minilm().encode(RIVER).ids)
    states = run_with_cache(model, ids, torch.zeros_like(ids)).hidden_states
    assert len(states) == 7
    assert torch.equal(states[-1], model(ids))
    with pytest.raises(IndexError):
        run_with_cache(model, torch.tensor([10**6]), torch.tensor([0]))
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_model_that_is_watched_can_be_explained(river):
    with regard.watch(minilm().model) as recording:
        inside = explain(RIVER, "bank", compare=LOAN)
    assert inside.to_dict() == river.to_dict()
    assert list(recording) == [f"blocks.{layer}.attention{again}" for again in ("", "#1") for layer in range(6)]


def test_a_word_of_several_pieces_is_explained_with_all_of_them():
    e = explain("The embeddings of a word", "embeddings")
    assert [e.queries.tokens[i] for i in e.word.token_index] == ["em", "##bed", "##ding", "##s"]
    assert (e.row.weights.shape, e.row.output.shape) == ((4, len(e.queries.tokens)), (4, 32))
    assert e.proof.num_values == 4 * 32
    assert e.to_dict()["word"]["token_index"] == e.word.token_index
    assert e.to_dict()["row"]["weights"] == e.row.weights.tolist()
    assert not {p.index for p in e.top_keys} & set(e.word.token_index)


@pytest.mark.parametrize(
    ("text", "compare", "word"),
    [
        (RIVER, None, "bank"),
        (PIZZA, None, "good"),
        (RIVER, "Man has loan.", "man"),
        ("...", None, "."),
        ("the cat saw the dog and the cat", None, "cat"),
    ],
)
def test_the_word_is_the_last_one_shared_when_none_is_named(text, compare, word):
    assert explain(text, compare=compare).word.text == word


def test_a_repeated_word_says_where_it_stands():
    e = explain("the bank by the river bank", "bank")
    assert (e.word.occurrences, e.word.token_index) == ([[2], [6]], [2])
    assert explain("the bank by the river bank", 6).word.token_index == [6]


def test_the_facts_of_a_word_of_one_token_are_rows_and_not_lists_of_rows(river, tmp_path):
    river.save(tmp_path / "facts.json")
    facts = json.loads((tmp_path / "facts.json").read_text(encoding="utf-8"))
    assert facts["word"]["token_index"] == 11
    assert facts["row"]["weights"] == river.row.weights[0].tolist()
    assert {"scores", "scaled", "weights", "output"} <= facts["row"].keys()
    assert [path.name for path in tmp_path.iterdir()] == ["facts.json"]


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"word": {"token_index": 1}}', '{"word": {"token_index": 1}, "row": {"q": "x"}}']
)
def test_what_is_no_saved_explanation_is_refused(tmp_path, content):
    (tmp_path / "facts.json").write_text(content)
    with pytest.raises(InputError, match=r"facts\.json (does not hold|must hold|cannot be read)"):
        regard.Explanation.load(tmp_path / "facts.json")
    with pytest.raises(InputError, match="is missing"):
        regard.Explanation.load(tmp_path / "nothing.json")


MORE_VALUES = [-1, [], "x", 1.5, {}, math.nan, True, [1, 2], 10**9]


@pytest.mark.parametrize(
    "value", [None, *(pytest.param(value, marks=pytest.mark.more) for value in MORE_VALUES)], ids=repr
)
def test_an_altered_field_is_refused_or_does_no_harm(tmp_path, value):
    """Each field in turn. What is loaded can be printed, drawn and saved."""
    path = tmp_path / "facts.json"
    explain("a bank", "bank").save(path)
    facts = json.loads(path.read_text(encoding="utf-8"))
    for place in json_places(facts, max_items=2):
        path.write_text(json.dumps(altered(facts, place, value)))
        with suppress(InputError):
            back = regard.Explanation.load(path)
            str(back)
            draw(back, Console(file=io.StringIO(), width=100))
            back.save(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"text": RIVER, "token": "bank", "compare": "No such."}, "the word 'bank' is not in the text 'No such.'"),
        ({"text": "river", "compare": "loan"}, "the texts share no word; the first one's are: river"),
        ({"text": "I have 3 dogs.", "token": "3", "compare": "Four dogs and cats."}, "the word '3' is not in the text"),
        ({"text": RIVER, "layer": -1}, "there is no layer -1"),
        ({"text": RIVER, "head": 12}, "there is no head 12: this model has heads 0 to 11"),
        ({"text": RIVER, "compare": ["word " * 600]}, "the text has 602 tokens, and .* has positions for 512"),
    ],
)
def test_what_cannot_be_explained_is_named(arguments, message):
    with pytest.raises(InputError, match=message):
        explain(**arguments)


def test_the_longest_text_is_explained(small):
    assert regard.explain("bank " + "river " * 17, "bank", small).proof.max_error < 1e-5
    with pytest.raises(InputError, match=r"the text has 21 tokens, and .* has positions for 20"):
        regard.explain("bank " + "river " * 18, "bank", small)


def test_a_model_in_training_mode_is_refused(small):
    small.model.train()
    for use in (small.embed, lambda text: regard.explain(text, model=small)):
        with pytest.raises(InputError, match=r"is in training mode.*\.model\.eval\(\)"):
            use("the river")


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        *(("layer", wrong, "must be a w") for wrong in (True, 1.0)),
        ("head", "2", "must be a w"),
        *(("token", wrong, "must be a w") for wrong in (True, 1.5, b"a")),
        ("text", None, "a text must be a string; got NoneType"),
        ("model", torch.nn.Identity(), r"what regard.load returned; got Identity"),
    ],
)
def test_arguments_of_another_type_are_named(as_a_user_runs_it, name, wrong, message):
    with pytest.raises(TypeError, match=message):
        regard.explain(**{"text": RIVER, "model": minilm(), name: wrong})


@pytest.mark.parametrize("layer", ["attention.qkv", "feed_forward.up"])
def test_a_model_whose_numbers_leave_their_range_is_named(small, layer):
    for part in (layer, "feed_forward.down"):
        small.model.blocks[1].get_submodule(part).weight.data.mul_(1e30)
    with pytest.raises(InputError, match="computes numbers that are not finite"):
        regard.explain("the river", model=small, compare="a river")


def test_a_long_text_in_a_message_is_shortened():
    with pytest.raises(InputError, match=r"^.{,400}$"):
        explain("river " * 300 + "x" * 500, "bank")


def test_a_tokenizer_that_puts_nothing_around_the_text(tmp_path):
    random_bert(tmp_path)
    path, model = tmp_path / "tokenizer.json", str(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "post_processor": None}))
    for word, places in [("Rivers", [[1, 2]]), ("the rivers", [[0, 1, 2]])]:
        e = regard.explain("the Rivers", word, model)
        assert (e.queries.tokens, e.word.occurrences, e.model.name) == (["the", "river", "##s"], places, model)
        assert e.proof.verified
    assert regard.explain("river", model=model).row.weights.tolist() == [[1.0]]
