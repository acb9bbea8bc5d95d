"""`regard see`: the page of a text, a file or a recording, and one clear line for what cannot be shown."""

import json
import os
import re
from pathlib import Path

import pytest
import torch

import regard
from captioners import image as noise
from regard.lens.text import run
from terminals import printed, refusal
from views.recordings import random_map, recorded
from weights import LOAN, RIVER, minilm


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    path = tmp_path_factory.mktemp("kept") / "river.safetensors"
    run.run(RIVER, minilm(), [0]).recording.save(path)
    return path


def test_a_page_is_written(command, tmp_path):
    page = tmp_path / "page.html"
    out = printed(command, "see", RIVER, "--layer", "0,5", "--out", page)
    assert out.startswith(f"{page}: ")
    assert float(re.search(r"([\d.]+) MB$", out.strip())[1]) == round(page.stat().st_size / 1e6, 2)
    assert f"<title>{RIVER}</title>" in page.read_text(encoding="utf-8")
    assert list(tmp_path.iterdir()) == [page]


def test_an_image_lies_under_the_weights_of_a_recording(command, tmp_path):
    image, recording = tmp_path / "noise.png", tmp_path / "seen.safetensors"
    noise(size=(96, 96)).save(image)
    recorded(random_map(3, 3)).save(recording)
    sizes = []
    for options in ([], ["--image", image]):
        assert command("see", "--recording", recording, "--out", tmp_path / "page.html", *options)[::2] == (0, "")
        sizes.append((tmp_path / "page.html").stat().st_size)
    assert sizes[1] - sizes[0] > image.stat().st_size


@pytest.mark.parametrize(
    ("family", "arguments", "megabytes"),
    [("gpt2", ["--file", "story.txt"], 0.6), ("bart", ["the river", "--target", "a bank"], 5)],
)
def test_other_models_are_shown(command, models, here, family, arguments, megabytes):
    """A file to a decoder, in a page of a size; a text and a target to an encoder-decoder."""
    Path("story.txt").write_text("the river bank")
    printed(command, "see", *arguments, "--model", models[family], "--out", "x.html", "--max-size", megabytes)
    assert 0 < Path("x.html").stat().st_size <= megabytes * 1e6


@pytest.mark.parametrize(
    "where",
    [
        [],
        pytest.param(["--token", "Rome"], marks=pytest.mark.more),
        pytest.param(["--terminal", "--head", "17.5"], marks=pytest.mark.more),
    ],
)
def test_a_decoder_is_shown_while_it_writes(command, tmp_path, where):
    """By default the real decoder; the last token that it writes is read by nobody."""
    prompt, facts = "The capital of France is Paris. The capital of Italy is", tmp_path / "facts.json"
    out = [] if "--terminal" in where else ["--out", tmp_path / "page.html"]
    options = ["--max-new-tokens", "4", "--layer", "17", "--json", facts, *where, *out]
    printed(command, "see", prompt, *options)
    shown = json.loads(facts.read_text())
    assert (shown["title"], shown["model"]) == (f"{prompt} Rome. The capital", "smollm2")
    if out:
        assert "Rome" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("query", "says"), [((), "bank"), (("--token", "bank"), "What query 11 'bank' looks at")])
def test_a_head_is_drawn_in_the_terminal(command, here, query, says):
    out = printed(command, "see", RIVER, "--terminal", "--head", "0.4", *query)
    assert says in out
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([RIVER, "--out", "-"], "--out -: a page is a file; give it a name"),
        ([RIVER, "--terminal", "--open"], "--terminal draws here and writes no page"),
        (["--recording", "kept.safetensors", "--model", "other"], "--recording shows a file: --model"),
        (["--recording", "kept.safetensors", "--max-new-tokens", "4"], "and --max-new-tokens belong to a TEXT"),
        ([RIVER, "--max-new-tokens", "4", "--compare", LOAN], "belongs to one that is only read"),
        ([RIVER, "--image", "cat.png"], "--image belongs to the page of a --recording"),
        (["--recording", "empty", "--image", "missing.png"], "missing.png cannot be read"),
        ([], "give a TEXT, --file PATH or --recording PATH, one of them"),
        (["a", "--file", "b"], "one of them"),
        (["the river", "--token", "4"], "--token 4: there is no token 4: the text has tokens 0 to 3"),
        (["the river", "--terminal", "--token", "sea"], "--token sea: the word 'sea' is not in the text"),
        (["the river", "--compare", "a bank", "--token", "river"], "--token river: the word 'river' is not in the"),
        (["the river", "--compare", "loans"], "--compare: no two of the texts share a word"),
        (["the river", "--layer", "6"], "--layer 6: there is no layer 6"),
        (["the river", "--head", "9.0"], "--head 9.0: there is no layer 9 here"),
        (["the river", "--head", "0.99"], "has no head 99"),
        (["the river", "--head", "0.99", "--terminal"], "has no head 99"),
        (["the river", "--target", "x"], "--target x: "),
        (["the river", "--max-size", "inf"], "--max-size inf: a number of megabytes"),
        (["--file", "missing.txt"], "missing.txt cannot be read"),
        (["--file", "latin.txt"], "latin.txt is no UTF-8 text"),
        (["--recording", "latin.txt"], "latin.txt"),
        (["--recording", "missing.safetensors"], "missing.safetensors"),
        (["--recording", "latin.txt", "--compare", "x"], "belong to a TEXT"),
        (["--recording", "empty"], "no attention"),
        (["--recording", "empty", "--terminal"], "no head to choose"),
    ],
)
def test_what_cannot_be_shown_is_one_line(command, here, arguments, said):
    Path("latin.txt").write_bytes(b"caf\xe9 river")
    regard.Recording().save("empty")
    assert said in refusal(command, "see", *arguments)
    assert sorted(os.listdir()) == ["empty", "latin.txt"]


def facts_of(command, *arguments):
    out = printed(command, "see", *arguments, "--json", "-")
    return json.loads(out)


@pytest.mark.parametrize(
    ("arguments", "query", "words"),
    [
        ([], 11, []),
        (["--compare", LOAN, "--token", "man"], 6, ["man"]),
        pytest.param(["--token", "fishing"], 7, [], marks=pytest.mark.more),
        pytest.param(["--token", "3"], 3, [], marks=pytest.mark.more),
        pytest.param(["--compare", LOAN], 11, ["bank"], marks=pytest.mark.more),
        pytest.param(["--compare", "nothing shared except a"], 2, ["a"], marks=pytest.mark.more),
    ],
)
def test_the_page_opens_on_the_word_that_is_compared(command, tmp_path, arguments, query, words):
    """As `regard explain` finds it: by default the last word that all sentences share, in the same head."""
    facts = facts_of(command, RIVER, *arguments, "--layer", 0, "--out", tmp_path / "page.html")
    explained = regard.explain(RIVER, query, minilm(), layer=0)
    assert (facts["initial"]["query"], facts["initial"]["token"]) == (query, explained.queries.tokens[query])
    assert (facts["initial"]["layer"], facts["initial"]["head"]) == (explained.layer, explained.head)
    assert facts["compared_words"][:1] == words


@pytest.mark.more
def test_of_the_named_heads_the_page_opens_on_that_of_the_word(command, tmp_path):
    options = [RIVER, "--layer", "0,3", "--out", tmp_path / "page.html"]
    facts = facts_of(command, *options, "--head", "3.0,0.2,0.4")
    assert (facts["initial"]["layer"], facts["initial"]["head"]) == (0, 4)
    assert [(each["layer"], each["heads"]) for each in facts["attentions"]] == [(0, [2, 4]), (3, [0])]
    facts = facts_of(command, *options, "--head", "0-2")
    assert [(each["layer"], each["heads"]) for each in facts["attentions"]] == [(0, [0, 1, 2]), (3, [0, 1, 2])]


def test_the_json_of_a_drawing_has_its_weights(command):
    facts = facts_of(command, RIVER, "--terminal", "--layer", "0,2", "--head", "0.4,2.1", "--token", "bank")
    assert [(head["layer"], head["head"]) for head in facts["heads"]] == [(0, 4), (2, 1)]
    recording = run.run(RIVER, minilm(), [0, 2]).recording
    for head in facts["heads"]:
        (row,) = head["queries"]
        m = recording[head["path"]]
        exact, keys = m[0, head["head"], 11].topk(12)
        assert (row["query"], row["token"]) == (11, "bank")
        assert [key["weight"] for key in row["keys"]] == pytest.approx(exact.tolist())
        assert [key["token"] for key in row["keys"]] == [m.tokens[1][key] for key in keys]
    assert len(facts_of(command, RIVER, "--layer", 0, "--terminal")["heads"][0]["queries"]) == 14


def test_a_recording_opens_on_a_token_and_in_some_layers(command, tmp_path):
    path = tmp_path / "river.safetensors"
    run.run(RIVER, minilm(), [0, 1]).recording.save(path)
    options = ["--recording", path, "--token", "FISHING", "--layer", "1", "--out", tmp_path / "page.html"]
    facts = facts_of(command, *options)
    assert (facts["initial"]["token"], [each["layer"] for each in facts["attentions"]]) == ("fishing", [1])
    assert "<title>river.safetensors</title>" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "--token sea: there is no query 'sea'" in refusal(command, "see", "--recording", path, "--token", "sea")
    assert "--layer 5: there is no layer 5 here" in refusal(command, "see", "--recording", path, "--layer", "5")


@pytest.mark.parametrize(("token", "stack", "kind"), [("river", "decoder", "cross"), ("bank", "encoder", "self")])
def test_a_word_of_the_target_comes_before_one_of_the_source(command, models, tmp_path, token, stack, kind):
    options = ["--model", models["bart"], "--target", "the river", "--token", token, "--out", tmp_path / "page.html"]
    facts = facts_of(command, "the bank", *options)
    assert facts["initial"]["token"].strip() == token
    kinds = {each["path"]: each["kind"] for each in facts["attentions"]}
    path = facts["initial"]["path"]
    assert (path.partition(".")[0], kinds[path]) == (stack, kind)


def test_the_function_writes_the_page_of_the_command(command, tmp_path):
    ours, theirs = tmp_path / "ours.html", tmp_path / "theirs.html"
    page = regard.see(RIVER, ours, model=minilm(), compare=LOAN, layer=0, head=[(0, 3)], token="man")
    options = ("--compare", LOAN, "--layer", 0, "--head", "0.3", "--token", "man", "--out", theirs)
    facts = facts_of(command, RIVER, *options)
    assert ours.read_bytes() == theirs.read_bytes()
    assert page.to_dict() | {"path": str(theirs)} == facts
    assert Path(page) == ours
    assert page.size == ours.stat().st_size


@pytest.mark.more
def test_the_function_takes_a_recording_or_its_path(kept, tmp_path):
    pages = [regard.see(text, tmp_path / "page.html") for text in (kept, str(kept), regard.Recording.load(kept))]
    assert len({page.size for page in pages[:2]}) == 1
    assert [page.facts["title"] for page in pages[:2]] == ["river.safetensors"] * 2
    with pytest.raises(regard.InputError, match="a recording is shown, and target belongs to a text"):
        regard.see(kept, tmp_path / "page.html", target="x")
    with pytest.raises(regard.InputError, match="a text is shown, and image belongs to a recording"):
        regard.see("a bank", tmp_path / "page.html", image=noise())


@pytest.mark.usefixtures("as_a_user_runs_it")
def test_the_function_takes_nothing_else(tmp_path):
    with pytest.raises(TypeError, match="see wants a text, a Recording or the path of one; got int"):
        regard.see(3, tmp_path / "page.html")


def test_without_a_browser_the_page_is_there_all_the_same(command, tmp_path, monkeypatch, kept):
    monkeypatch.setenv("BROWSER", "/bin/false")
    monkeypatch.setattr("webbrowser._tryorder", [])
    code, _, err = command("see", "--recording", kept, "--out", tmp_path / "page.html", "--open")
    assert (code, err) == (0, "no browser could be opened: open the file yourself\n")
    assert (tmp_path / "page.html").is_file()


def test_what_nobody_can_compute_is_said_and_the_rest_is_shown(command, tmp_path):
    path, maps = tmp_path / "nan.safetensors", (random_map(3, 3), random_map(3, 3))
    maps[0].q.fill_(torch.nan)
    recorded(*maps).save(path)
    assert command("see", "--recording", path, "--out", tmp_path / "page.html")[::2] == (0, "")
    assert command("see", "--recording", path, "--terminal")[0] == 0
    out = printed(command, "see", "--recording", path, "--terminal", "--head", "0.0")
    assert "DO NOT TRUST this map" in out


def test_what_could_steer_the_terminal_is_made_visible(command, tmp_path):
    hostile = "\x1b[31m\x07\u202e\r"
    path = tmp_path / f"kept{hostile}"
    recording = recorded(random_map(3, 3), path=f"layers.0{hostile}", mask=hostile)
    recording.label([hostile, "river", f"bank{hostile}"])
    recording.save(path)
    for code, arguments in (
        (0, ["--recording", path, "--terminal"]),
        (0, ["--recording", path, "--out", tmp_path / f"{hostile}.html"]),
        (2, ["--recording", path, "--head", "7.0"]),
        (2, ["--recording", tmp_path / f"no{hostile}"]),
        (2, ["the river", "--model", f"no{hostile}/model"]),
    ):
        ended, out, err = command("see", *arguments)
        assert (ended, set("\x1b\x07\u202e\r") & set(out + err)) == (code, set())
        assert "7.0" in arguments or "\\x1b[31m\\x07\\u202e\\r" in out + err


def test_a_fault_of_ours_is_not_said_to_be_the_users(command, tmp_path, monkeypatch, kept):
    def fault(*_, **__):
        raise KeyError("ours")

    monkeypatch.setattr("json.dumps", fault)
    with pytest.raises(KeyError, match="ours"):
        command("see", "--recording", kept, "--out", tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []
