"""`regard watch`: the real command on the default model and on small random checkpoints."""

import json
from pathlib import Path

import pytest
import torch

import regard
from regard.lens.text import run
from terminals import on_a_terminal, printed, refusal
from weights import RIVER, minilm

pytestmark = pytest.mark.usefixtures("as_a_user_runs_it")


@pytest.fixture
def watch(command, tmp_path):
    """The facts that the command writes, and what it shows."""

    def call(*arguments):
        out = printed(command, "watch", *arguments, "--json", tmp_path / "facts.json")
        return json.loads((tmp_path / "facts.json").read_text(encoding="utf-8")), out

    return call


def test_every_number_is_the_definition_s(watch):
    """All heads of two layers of the default model, every matrix written out in float64."""
    overview, out = watch(RIVER, "--layer", "0,1")
    tokens, recording = overview["tokens"], run.run(RIVER, minilm(), [0, 1]).recording
    assert [layer["path"] for layer in overview["layers"]] == list(recording)
    position = torch.arange(14.0, dtype=torch.float64)
    received = torch.zeros(14, dtype=torch.float64)
    for layer, m in zip(overview["layers"], recording.values(), strict=True):
        weights = regard.steps(m.q.double(), m.k.double(), m.v.double()).weights[0]
        received += weights.sum((0, 1)) / 14 / 12 / 2
        assert (layer["error"] < 1e-5, layer["verified"]) == (True, True)
        for head, w in zip(layer["heads"], weights, strict=True):
            mean, words, pair = w @ position, w[1:13, 1:13].clone().fill_diagonal_(-1.0), head["pair"]
            for found, exact in (
                (head["entropy"], -(w * w.log()).sum(-1).mean()),
                (head["distance"], (position - mean).mean()),
                (head["spread"], (w @ position**2 - mean**2).sqrt().mean()),
                (head["scores"]["attention sink"], w[1:, 0].mean()),
                (pair["weight"], words.max()),
                (pair["weight"], words[pair["query_index"] - 1, pair["key_index"] - 1]),
            ):
                assert found == pytest.approx(float(exact), abs=1e-4)
            assert (pair["query"], pair["key"]) == (tokens[pair["query_index"]], tokens[pair["key_index"]])
    assert overview["layers"][0]["heads"][2]["head_type"] == "previous token"
    words = overview["most_attended"][0]["words"]
    exact = [float(received[word["token_index"]].sum()) for word in words]
    assert [word["received_share"] for word in words] == pytest.approx(exact, abs=1e-5)
    assert [word["word"] for word in words if not word["is_text"]] == ["[CLS]", "[SEP]"]
    rows = [line.split() for line in out.splitlines()]
    assert ["4", "mixed", "2.03", "0.16", "+0.4", "±", "4.0", "0.85", "bank", "->", "river"] in rows
    assert "What it looked at most" not in out


def test_a_long_file_gets_a_report(watch, tmp_path):
    path = tmp_path / "story.txt"
    path.write_text(f"{RIVER} " * 8, encoding="utf-8")
    overview, out = watch("--file", path, "--layer", "0")
    first = next(w for w in overview["most_attended"][0]["words"] if w["is_text"] and w["word"] != ".")
    assert f"{first['word']} " in out.split("What it looked at most")[1]
    assert f"{100 * first['received_share']:.1f} %" in out
    assert "blocks.1.attention" not in out


def test_a_byte_order_mark_is_no_part_of_the_text(models, tmp_path, watch):
    path = tmp_path / "marked.txt"
    path.write_bytes(b"\xef\xbb\xbfthe river")
    overview, _ = watch("--file", path, "--model", models["gpt2"])
    assert overview["text"] == "the river"
    assert overview == watch("the river", "--model", models["gpt2"])[0]


@pytest.mark.parametrize("family", ["bert", "gpt2", "mistral"])
def test_every_family_of_one_stack(models, watch, family):
    overview, out = watch("the river bank, a bank", "--model", models[family])
    assert len(overview["layers"]) == 3
    assert all(layer["error"] < 1e-5 and layer["kind"] == "self" for layer in overview["layers"])
    assert overview["target"] is None
    assert ("causal()" in out, "window(4)" in out) == (family == "gpt2", family == "mistral")


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_an_encoder_decoder_has_three_attentions(models, watch, family):
    overview, out = watch("the river bank", "--model", models[family])
    stacks = [("encoder.blocks", "self"), ("decoder.blocks", "self"), ("decoder.blocks", "cross")]
    assert [(most["stack"], most["kind"]) for most in overview["most_attended"]] == stacks
    assert len(overview["layers"]) == 3 + 2 + 2
    assert all(layer["error"] < 1e-5 for layer in overview["layers"])
    for layer in (layer for layer in overview["layers"] if layer["kind"] == "cross"):
        assert (layer["num_queries"], layer["num_keys"]) == (len(overview["target_tokens"]), len(overview["tokens"]))
        for head in layer["heads"]:
            assert head["distance"] is head["scores"]["previous token"] is None
            assert head["pair"]["key"] == overview["tokens"][head["pair"]["key_index"]]
    for most in overview["most_attended"]:
        assert sum(word["received_share"] for word in most["words"]) == pytest.approx(1.0)
    assert all(f" {stack} " in out for stack in ("encoder", "decoder", "cross"))


@pytest.mark.parametrize(
    ("family", "layers", "paths"), [("gpt2", "2,0-0", ["blocks.0", "blocks.2"]), ("bart", "2", ["encoder.blocks.2"])]
)
def test_layers_choose(models, watch, family, layers, paths):
    overview, _ = watch("the river", "--model", models[family], "--layer", layers)
    assert [layer["path"] for layer in overview["layers"]] == [f"{path}.attention" for path in paths]


def leaves(value: object) -> list[object]:
    """The names, numbers and words of a value of JSON, in its order."""
    if isinstance(value, dict):
        return [leaf for key, each in value.items() for leaf in (key, *leaves(each))]
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, list) else [value]


def test_heads_choose(watch, command, tmp_path):
    every, _ = watch(RIVER, "--layer", "0,3")
    some, _ = watch(RIVER, "--head", "3.1,0.4,0.2")
    heads = {layer["layer"]: layer["heads"] for layer in every["layers"]}
    chosen = {layer["layer"]: layer["heads"] for layer in some["layers"]}
    # Two runs of one model: some processors multiply fewer heads in another order.
    wanted = {0: [heads[0][2], heads[0][4]], 3: [heads[3][1]]}
    assert leaves(chosen) == pytest.approx(leaves(wanted), abs=1e-5)
    assert {(word["layer"], word["head"]) for word in some["most_attended"][0]["words"]} <= {(0, 2), (0, 4), (3, 1)}
    path = tmp_path / "river.safetensors"
    assert command("watch", RIVER, "--layer", "0,3", "--head", "0-1", "--save", path)[0] == 0
    loaded = regard.Recording.load(path)
    assert [loaded.entry(path).heads for path in loaded] == [(0, 1), (0, 1)]


@pytest.mark.parametrize("heads", [[], pytest.param(["--head", "2-11"], marks=pytest.mark.more)])
def test_a_word_has_its_strongest_keys_in_the_head_that_explain_chooses(watch, heads):
    overview, out = watch(RIVER, "--layer", "0", *heads, "--token", "bank")
    explained = regard.explain(RIVER, "bank", minilm(), layer=0)
    word, weights = overview["word"], explained.row.weights[0]
    assert (word["layer"], word["head"], word["token_index"]) == (0, explained.head, [11])
    assert [key["weight"] for key in word["keys"]] == pytest.approx(weights.topk(12).values.tolist(), abs=1e-6)
    assert sum(key["weight"] for key in word["keys"]) + word["rest"] == pytest.approx(1.0)
    assert f"What 'bank' looks at: layer 0, head {explained.head}" in out
    assert f"{weights.max().item():.4f}" in out


def test_without_a_word_there_is_none(watch):
    overview, out = watch(RIVER, "--layer", "0")
    assert overview["word"] is None
    assert "What 'bank'" not in out


def test_a_recording_is_kept(command, tmp_path):
    path = tmp_path / "river.safetensors"
    assert command("watch", RIVER, "--save", path, "--layer", "1,3")[0] == 0
    loaded, recorded = regard.Recording.load(path), run.run(RIVER, minilm(), [1, 3]).recording
    assert list(loaded) == ["blocks.1.attention", "blocks.3.attention"]
    for name, attention_map in loaded.items():
        assert torch.equal(attention_map.entropy(), recorded[name].entropy())
        assert attention_map.tokens[0][6:8] == ["man", "fishing"]
        assert attention_map.verified


def test_without_a_file_the_json_is_all_that_is_printed(command, watch):
    assert json.loads(command("watch", RIVER, "--layer", "3", "--json", "-")[1]) == watch(RIVER, "--layer", "3")[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a TEXT or --file PATH, one of them"),
        ([RIVER, "--file", "x"], "give a TEXT or --file PATH, one of them"),
        (["--file", "/no/such/file"], "/no/such/file cannot be read: No such file or directory"),
        (["--file", "bytes"], "is no UTF-8 text: byte 2 is 0xff"),
        (["--file", "empty"], "the text is empty; write a sentence"),
        (["word " * 600], "the text has 602 tokens, and sentence-transformers/all-MiniLM-L6-v2 has positions for 512"),
        ([RIVER, "--layer", "6"], "--layer 6: there is no layer 6: this model has layers 0 to 5"),
        ([RIVER, "--head", "0.12"], "--head 0.12: blocks.0.attention has no head 12"),
        ([RIVER, "--token", "loan"], "--token loan: the word 'loan' is not in the text"),
        ([RIVER, "--save", "/dev/null"], "cannot write '/dev/null': it is no file"),
        ([RIVER, "--save", "x", "--json", "x"], "--save and --json both name x: give two different files"),
        ([RIVER, "--layer", "0", "--json", "/no/folder/x"], "cannot write '/no/folder/x': there is no folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(command, here, arguments, message):
    Path("bytes").write_bytes(b"ab\xff")
    Path("empty").write_text("")
    assert message in refusal(command, "watch", *arguments)


def test_on_a_terminal_a_long_file_shows_progress(tmp_path):
    path = tmp_path / "story.txt"
    path.write_text(f"{RIVER} " * 8, encoding="utf-8")
    code, shown = on_a_terminal("watch", "--file", path, "--layer", "0")
    assert code == 0
    assert b"running the model" in shown
    assert b"summarizing layers" in shown
    assert b"\x1b[1;36mThe heads" in shown
