"""What a checkpoint may say, in what spelling, and what is refused by name."""

from dataclasses import replace

import pytest
import torch
import transformers
from damage import change_json, change_weights, read_json, refused

import regard
from regard import InputError
from regard.attention.positions import DynamicNTK, Linear, Llama3, YaRN
from regard.pretrained import families
from regard.pretrained.family import build_config, special_token_values
from regard.pretrained.special_tokens import read_special_tokens
from regard.transformer import SpecialTokens
from weights import FAMILIES, random_checkpoint, same_weights, weights_of

WITH_SIZES = ("num_key_value_heads", "head_dim", "sliding_window", "use_sliding_window", "rope_theta")
"""Settings whose values in transformers go with its default sizes, which are not those of the checkpoints here."""


class TestEveryFamily:
    @pytest.fixture(params=FAMILIES)
    def folder(self, request, tmp_path):
        random_checkpoint(tmp_path, request.param)
        return tmp_path

    @pytest.mark.parametrize("folder", ["bert", "gpt2", "llama", "t5"], indirect=True)  # of each kind, tied and not
    def test_shards_are_read_and_written_back(self, folder, tmp_path):
        whole, shards, back = regard.load(folder), tmp_path / "shards", tmp_path / "back"
        model = getattr(transformers, FAMILIES[read_json(folder)["model_type"]][0]).from_pretrained(folder)
        model.save_pretrained(shards, max_shard_size="40KB")
        files = [path.name for path in shards.glob("model-*.safetensors")]
        assert len(files) > 1
        regard.load(shards).save(back)
        assert {path.name for path in back.iterdir()} == {path.name for path in shards.iterdir()}
        assert all(same_weights(weights_of(shards, file), weights_of(back, file)) for file in files)
        assert same_weights(regard.load(back), whole)
        assert same_weights(type(model).from_pretrained(back).state_dict(), model.state_dict())

    def test_texts_go_in_and_come_out_and_only_encoders_embed(self, folder):
        pretrained = regard.load(folder)
        ids = pretrained.encode("the river bank, é!").ids
        assert pretrained.decode(ids) == pretrained.decode(torch.tensor(ids)) == "the river bank, é!"
        with pytest.raises(InputError, match="a row of whole numbers"):
            pretrained.decode(torch.tensor([[1, 2]]))
        assert pretrained.kind.replace("-", "") == type(pretrained.model).__name__.lower()
        if pretrained.kind == "encoder":
            assert pretrained.embed(["the river", "a bank"]).shape == (2, 36)
        else:
            with pytest.raises(InputError, match=f"is of the kind {pretrained.kind}; one vector of a text is what an"):
                pretrained.embed("the river")

    def test_keys_that_a_file_lacks_have_the_values_of_transformers(self, folder):
        values = read_json(folder)
        family, path = families.FAMILIES[values["model_type"]], folder / "config.json"
        theirs = getattr(transformers, FAMILIES[values["model_type"]][0]).config_class().to_dict()
        missing = [key for key in family.defaults if key in theirs and key not in WITH_SIZES]
        assert missing

        def read(values):
            tokens = read_special_tokens(special_token_values(family, values, path), {}, None, 10**5)
            return build_config(family, values, path), tokens

        for key in missing:
            without = {name: value for name, value in values.items() if name != key}
            assert read(without) == read({**values, key: theirs[key]}), key


class TestShards:
    @pytest.fixture
    def folder(self, tmp_path):
        random_checkpoint(tmp_path / "whole", "gpt2").save_pretrained(tmp_path / "shards", max_shard_size="60KB")
        return tmp_path / "shards"

    def test_a_weight_in_two_shards(self, folder):
        first, second, *_ = sorted(folder.glob("model-*.safetensors"))
        name, tensor = next(iter(weights_of(folder, second.name).items()))
        change_weights(folder, lambda tensors: {name: tensor}, first.name)
        refused(folder, f"{first.name} holds {name}, which by .* is in {second.name}")

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"weight_map__other": "m" * 300 + ".safetensors"}, "File name too long"),
            ({"weight_map__other": "model-9.safetensors"}, "9.safetensors is missing or not a file; .* says that it"),
            ({"weight_map__other": "model-00001-of-00005.safetensors"}, "00001-of.* holds other, which it does not"),
            ({"weight_map__transformer.wpe.weight": ...}, r"holds transformer\.wpe\.weight, which by .* is nowhere"),
            *(
                ({"weight_map__other": file}, "a shard is a .safetensors file beside it")
                for file in ("../whole/model.safetensors", "/etc/passwd", "weights.bin")
            ),
            *(({"weight_map": wrong}, "must have a weight_map") for wrong in (..., {}, ["a"], {"a": 1})),
        ],
    )
    def test_an_index_that_is_wrong_is_refused(self, folder, changes, message):
        change_json(folder, "model.safetensors.index.json", **changes)
        refused(folder, message)


TIED = [
    ("bert", "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
    ("bert", "cls.predictions.bias", "cls.predictions.decoder.bias"),
    ("roberta", "roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
    ("gpt2", "transformer.wte.weight", "lm_head.weight"),
    ("qwen2", "model.embed_tokens.weight", "lm_head.weight"),
    ("gemma2", "model.embed_tokens.weight", "lm_head.weight"),
    ("marian", "model.shared.weight", "model.decoder.embed_tokens.weight"),
    ("bart", "model.shared.weight", "lm_head.weight"),
    ("t5", "shared.weight", "encoder.embed_tokens.weight"),
]


class TestTies:
    @pytest.mark.parametrize(("family", "name", "twin"), TIED)
    def test_a_tied_weight_with_two_values_is_refused(self, tmp_path, family, name, twin):
        random_checkpoint(tmp_path, family)
        expected, tensor = regard.load(tmp_path), weights_of(tmp_path)[name]
        change_weights(tmp_path, lambda tensors: {twin: tensor.clone()})
        pretrained = regard.load(tmp_path)
        assert same_weights(pretrained, expected)
        pretrained.save(tmp_path / "back")
        assert weights_of(tmp_path / "back").keys() == weights_of(tmp_path).keys()
        change_weights(tmp_path, lambda tensors: {name: ...})
        assert same_weights(regard.load(tmp_path), expected), "under its other name alone"
        change_weights(tmp_path, lambda tensors: {name: tensor, twin: tensor + 1})
        refused(tmp_path, f"{name} and {twin} differ, but by the config they are one")

    @pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2"])
    def test_families_without_dropout_have_none(self, tmp_path, family):
        random_checkpoint(tmp_path, family)
        assert regard.load(tmp_path).config.dropout == 0

    def test_t5s_first_files_hold_a_bias_that_nothing_reads(self, tmp_path):
        random_checkpoint(tmp_path, "t5")
        name = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
        change_weights(tmp_path, lambda tensors: {name: torch.ones(8, 3)})
        assert regard.load(tmp_path).ignored_weights == [name]

    def test_t5s_weights_tell_whether_the_output_is_tied(self, tmp_path):
        random_checkpoint(tmp_path, "t5")
        change_weights(tmp_path, lambda tensors: {"lm_head.weight": tensors["shared.weight"] + 1})
        assert not regard.load(tmp_path).config.decoder.tie_word_embeddings


class TestHeads:
    @pytest.mark.parametrize(("family", "model"), [("bert", "BertModel"), ("roberta", "RobertaModel")])
    def test_a_bare_encoder_has_no_head(self, tmp_path, family, model):
        random_checkpoint(tmp_path, family, model=model)
        pretrained = regard.load(tmp_path)
        assert pretrained.ignored_weights == ["pooler.dense.bias", "pooler.dense.weight"]
        with pytest.raises(ValueError, match="no masked-language-model head"):
            pretrained.model.logits(pretrained.model(torch.arange(5)))
        pretrained.save(tmp_path / "back")
        assert same_weights(weights_of(tmp_path), weights_of(tmp_path / "back"))

    @pytest.mark.parametrize(
        ("family", "model", "unused"),
        [
            ("bert", "BertForPreTraining", ("cls.seq_relationship", "pooler")),
            ("gpt2", "GPT2ForSequenceClassification", "score"),
            ("bart", "BartForSequenceClassification", "classification_head"),
        ],
    )
    def test_ignored_weights_are_saved(self, tmp_path, family, model, unused):
        theirs = random_checkpoint(tmp_path, family, model=model)
        pretrained = regard.load(tmp_path)
        assert pretrained.ignored_weights
        assert all(name.startswith(unused) for name in pretrained.ignored_weights)
        pretrained.save(tmp_path / "back")
        assert same_weights(type(theirs).from_pretrained(tmp_path / "back").state_dict(), theirs.state_dict())

    @pytest.mark.parametrize(
        ("family", "model"), [("gpt2", "GPT2Model"), ("bart", "BartModel"), ("marian", "MarianModel")]
    )
    @torch.inference_mode()
    def test_without_a_wrapper_names_have_no_prefix(self, tmp_path, family, model):
        theirs, ids = random_checkpoint(tmp_path, family, model=model), torch.arange(4, 11)[None]
        inputs = [ids] if family == "gpt2" else [ids, None, ids]  # the second is their mask
        logits = theirs(*inputs).last_hidden_state @ theirs.get_input_embeddings().weight.T
        torch.testing.assert_close(regard.load(tmp_path).model(*inputs[::2]), logits, atol=1e-5, rtol=0)


CAUSAL, POSITIONS = torch.ones(1, 1, 64, 64).tril().bool(), torch.arange(66)[None]
ANGLES = torch.arange(64)[:, None] / 1e4 ** (torch.arange(16) / 16)
SINUSOIDS = torch.cat([ANGLES.sin(), ANGLES.cos()], 1)


class TestConstants:
    """Tensors that older files store and nobody learns."""

    @pytest.mark.parametrize(
        ("family", "name", "right", "wrong"),
        [
            ("gpt2", "transformer.h.0.attn.bias", CAUSAL, torch.ones(1, 1, 64, 64)),
            ("gpt2", "transformer.h.1.attn.masked_bias", torch.tensor(-1e4), torch.tensor(0.0)),
            ("llama", "model.layers.2.self_attn.rotary_emb.inv_freq", 1e4 ** -(torch.arange(3) / 3), torch.ones(3)),
            ("roberta", "roberta.embeddings.position_ids", POSITIONS, POSITIONS + 2),
            ("marian", "model.encoder.embed_positions.weight", SINUSOIDS, SINUSOIDS.flip(1)),
        ],
    )
    def test_constants_are_checked_and_saved(self, tmp_path, family, name, right, wrong):
        random_checkpoint(tmp_path, family)
        expected = regard.load(tmp_path)
        change_weights(tmp_path, lambda tensors: {name: right})
        pretrained = regard.load(tmp_path)
        assert same_weights(pretrained, expected)
        pretrained.save(tmp_path / "back")
        assert torch.equal(weights_of(tmp_path / "back")[name], right)
        change_weights(tmp_path, lambda tensors: {name: wrong})
        refused(tmp_path, f"{name.split('.', 1)[1]} is not ")


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ORIGINAL = {"original_max_position_embeddings": 32}


class TestSpellings:
    """transformers 4 and 5 write the same settings in different words."""

    @pytest.mark.parametrize(
        ("scaling", "expected", "positions"),
        [
            (None, None, 64),
            ({"type": "linear", "factor": 2.0}, Linear(2.0), 128),
            ({"type": "dynamic", "factor": 2.0}, DynamicNTK(2.0, 64), 128),
            ({**LLAMA3, **ORIGINAL}, Llama3(8.0, 1.0, 4.0, 32), 64),
            ({"type": "yarn", "factor": 4.0, **ORIGINAL}, YaRN(4.0, 32), 128),
        ],
    )
    @torch.inference_mode()
    def test_rotary_positions_of_version_4(self, tmp_path, scaling, expected, positions):
        random_checkpoint(tmp_path, "llama")
        old = {"rope_theta": 500.0, "rope_scaling": scaling, "torch_dtype": "float32"}
        change_json(tmp_path, rope_parameters=..., dtype=..., **old)
        pretrained = regard.load(tmp_path)
        config = pretrained.config
        assert (config.rotary_base, config.rotary_scaling, config.max_positions) == (500.0, expected, positions)
        theirs, ids = transformers.LlamaForCausalLM.from_pretrained(tmp_path), torch.arange(4, 40)[None]
        torch.testing.assert_close(pretrained.model(ids), theirs(ids).logits, atol=1e-4, rtol=0)

    @pytest.mark.parametrize(
        ("family", "changes", "message"),
        [
            *(
                ("llama", {"rope_parameters": rope}, message)
                for rope, message in (
                    ({"rope_type": "longrope"}, "of these scalings regard has default, linear, dynamic"),
                    ({"rope_type": "linear"}, "'factor' is missing"),
                    ({"rope_type": "linear", "factor": 0.5}, "factor=0.5 must be a number from 1 to"),
                    ({"rope_type": "yarn", "factor": 2.0, "spin": 1}, "does not know its 'spin'"),
                    ({"rope_type": {}}, "rope_parameters is .*of these scalings regard has"),
                    ({"rope_theta": 10**30}, "rope_theta is 10+; it must be a number above 1 and at most"),
                    ({"rope_theta": 1}, "rope_theta is 1; it must be a number above 1"),
                )
            ),
            ("bert", {"bert.gamma": 3}, "does not know the setting 'bert.gamma'"),
            ("bert", {"hidden_size": ...}, "lacks the setting 'hidden_size'"),
            ("bert", {"hidden_size": "36"}, "d_model='36' must be a whole number"),
            ("bert", {"hidden_size": 37}, "d_model is hidden_size there"),
            ("bert", {"num_attention_heads": 5}, "d_model=36 does not divide into num_heads=5"),
            ("bert", {"hidden_act": "mish"}, "hidden_act is 'mish'; supported are gelu, gelu_new"),
            ("bert", {"position_embedding_type": "relative_key"}, "_type is 'relative_key'; .* 'absolute'"),
            ("roberta", {"position_embedding_type": "relative_key"}, "_type is 'relative_key'; .* 'absolute'"),
            ("bert", {"model_type": "xlnet"}, "model_type is 'xlnet'; regard supports bert, roberta, gpt2"),
            ("bert", {"model_type": ["bert"]}, r"model_type is \['bert'\]"),
            ("bert", {"model_type": "gpt2"}, "does not know the setting 'attention_probs_dropout_prob'"),
            ("bert", {"layer_norm_eps": None}, "norm_eps=None"),
            ("bert", {"num_hidden_layers": 4}, "lacks encoder.layer.3.output.dense.weight"),
            ("bert", {"num_hidden_layers": 2}, "no place for: encoder.layer.2"),
            ("bert", {"num_hidden_layers": 10**9}, "lacks encoder.layer.999999999.output.dense.weight"),
            ("bert", {"hidden_size": 39}, r"has shape \(61, 36\), the config wants \(61, 39\)"),
            ("bert", {"type_vocab_size": 0}, "type_vocab_size is 0; it must be a whole number from 1"),
            ("roberta", {"type_vocab_size": 0}, "type_vocab_size is 0; it must be a whole number from 1"),
            ("bert", {"vocab_size": 10**30}, "must be a whole number, at least 1 and below"),
            ("bert", {"hidden_size": 24 * 2**26, "intermediate_size": 2**31 - 1, "vocab_size": 2**31 - 1}, "make no"),
            ("bert", {"vocab_size": 50}, "tokenizer.json has tokens up to id .*, the model has 50 of them"),
            ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "is .* rope_parameters say something"),
            ("llama", {"partial_rotary_factor": 0.5}, "regard turns whole heads only"),
            ("llama", {"max_position_embeddings": "64"}, "must be a whole number"),
            ("llama", {"num_key_value_heads": 4}, "num_heads=6 cannot share num_kv_heads=4"),
            ("llama", {"attention_bias": "yes"}, "attention_bias is 'yes'; it must be true or false"),
            ("llama", {"num_hidden_layers": 10**9}, "lacks layers.999999999.mlp.down_proj.weight"),
            ("roberta", {"hidden_act": "relu"}, "hidden_act is 'relu', and RoBERTa's head is always gelu"),
            ("gpt2", {"scale_attn_by_inverse_layer_idx": 1}, "by_inverse_layer_idx is 1; it must be true or false"),
            ("gpt2", {"activation_function": "gelu_fast"}, "activation_function is 'gelu_fast'; supported are"),
            ("gpt2", {"pruned_heads": {"1": [0]}}, "pruned_heads is .*; for GPT-2, regard supports"),
            ("t5", {"quantization_config": {"bits": 4}}, "quantization_config is .*; for T5, regard supports"),
            ("llama", {"moe_layers": 3}, "does not know the setting 'moe_layers'"),
            ("gpt2", {"n_embd": ...}, "lacks the setting 'n_embd'"),
            ("mistral", {"sliding_window": 0}, "sliding_window is 0; it must be a whole number from 1"),
            ("mistral", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; it must be"),
            ("qwen2", {"layer_types": ["full_attention"]}, "layer_types is .*; there are 3 layers"),
            ("qwen2", {"layer_types": ["chunked_attention"] * 3}, "regard has sliding_attention and full_attention"),
            ("qwen2", {"layer_types": 3, "use_sliding_window": False}, "layer_types is 3; use_sliding_window says"),
            ("qwen2", {"use_sliding_window": False}, "use_sliding_window says that no layer has a window"),
            ("qwen2", {"use_mrope": True}, "use_mrope is True"),
            ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
            ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
            ("gemma2", {"query_pre_attn_scalar": float("nan")}, "query_pre_attn_scalar is nan"),
            ("roberta", {"pad_token_id": None}, "RoBERTa's positions are counted from it"),
            ("roberta", {"pad_token_id": 60, "max_position_embeddings": 61}, "the first 61 are not used"),
            ("bart", {"normalize_before": True}, "normalize_before is True; for BART, regard supports False"),
            ("bart", {"tie_word_embeddings": False}, "tie_word_embeddings is False"),
            ("marian", {"static_position_embeddings": False}, "static_position_embeddings is False"),
            ("marian", {"decoder_layers": 3}, "lacks decoder.layers.2.fc2.weight"),
            ("t5", {"feed_forward_proj": "gated-mish"}, "feed_forward_proj is 'gated-mish'; supported are"),
            ("t5", {"feed_forward_proj": "fast-relu"}, "feed_forward_proj is 'fast-relu'"),
            ("t5", {"dense_act_fn": "silu"}, "dense_act_fn is 'silu'; feed_forward_proj says 'relu'"),
        ],
    )
    @pytest.mark.usefixtures("as_a_user_runs_it")
    def test_unsupported_values_are_named(self, tmp_path, family, changes, message):
        random_checkpoint(tmp_path, family)
        change_json(tmp_path, **changes)
        refused(tmp_path, message)

    @pytest.mark.parametrize("family", ["bert", "roberta"])
    def test_settings_that_nothing_reads_change_nothing(self, tmp_path, family):
        random_checkpoint(tmp_path, family)
        expected = regard.load(tmp_path).config
        change_json(tmp_path, directionality="bidi", pooler_type="first_token_transform", pooler_fc_size=768)
        assert regard.load(tmp_path).config == expected

    @pytest.mark.parametrize("family", ["qwen2", "gemma2"])
    def test_windows_of_version_4(self, tmp_path, family):
        random_checkpoint(tmp_path, family)
        expected = regard.load(tmp_path).config
        change_json(tmp_path, layer_types=...)
        assert regard.load(tmp_path).config == expected
        assert expected.windows is not None


class TestSpecial:
    def test_both_files_are_read_and_the_second_wins(self, tmp_path):
        random_checkpoint(tmp_path, "bart")
        change_json(tmp_path, forced_bos_token_id=0, bad_words_ids=[[5]], num_beams=4)
        expected = SpecialTokens(decoder_start=2, eos=(2,), pad=1, forced_bos=0, forced_eos=2)
        assert regard.load(tmp_path).config.special_tokens == expected
        change_json(tmp_path, "generation_config.json", eos_token_id=[2, 7], forced_bos_token_id=5, suppress_tokens=[3])
        config = regard.load(tmp_path).config
        assert config.special_tokens == config.decoder.special_tokens == replace(expected, eos=(2, 7), forced_bos=5)

    @pytest.mark.parametrize(
        ("file", "changes", "message"),
        [
            ("config.json", {"pad_token_id": 61}, "config.json: pad_token_id is 61; the model's tokens are 0 to 60"),
            ("generation_config.json", {"eos_token_id": [1, "2"]}, r"_config.json: eos_token_id is \[1, '2'\]"),
            ("generation_config.json", {"forced_eos_token_id": [1, 2]}, "regard supports one token there"),
            ("generation_config.json", {"eos_token_id": [-1]}, r"eos_token_id is \[-1\]; the model's tokens are 0 to"),
            ("generation_config.json", {"bos_token_id": 1.5}, "bos_token_id is 1.5; the model's tokens are 0 to 60"),
        ],
    )
    def test_an_id_that_is_no_token_is_named(self, tmp_path, file, changes, message):
        random_checkpoint(tmp_path, "gpt2")
        change_json(tmp_path, file, **changes)
        refused(tmp_path, message)

    @pytest.mark.parametrize(
        ("changes", "left_out", "expected"),
        [
            ({"eos_token_id": [1, 61, 99]}, "61, 99", SpecialTokens(eos=(1,))),
            ({"eos_token_id": 50256}, "50256", SpecialTokens()),
            ({"pad_token_id": 61}, "61", SpecialTokens(eos=(1,))),
            ({"bos_token_id": 61}, "61", SpecialTokens(eos=(1,))),
        ],
    )
    def test_ids_beyond_the_vocabulary_of_a_generation_config_are_left_out_with_a_warning(
        self, tmp_path, changes, left_out, expected
    ):
        random_checkpoint(tmp_path, "gpt2")
        change_json(tmp_path, "generation_config.json", **changes)
        message = rf"generation_config\.json: {next(iter(changes))} is .* tokens are 0 to 60; left out: {left_out}"
        with pytest.warns(UserWarning, match=message):
            pretrained = regard.load(tmp_path)
        assert pretrained.config.special_tokens == expected

    def test_minus_one_is_none(self, tmp_path):
        random_checkpoint(tmp_path, "llama")
        change_json(tmp_path, pad_token_id=-1)
        change_json(tmp_path, "generation_config.json", pad_token_id=...)
        assert regard.load(tmp_path).config.special_tokens == SpecialTokens(eos=(1,))


def test_an_unknown_dtype(tmp_path):
    random_checkpoint(tmp_path, "gpt2")
    with pytest.raises(ValueError, match=r"dtype=torch\.int8: weights are one of torch\.float32"):
        regard.load(tmp_path, dtype=torch.int8)
    change_weights(tmp_path, lambda tensors: {"transformer.ln_f.weight": tensors["transformer.ln_f.weight"] * 1e6})
    with pytest.raises(InputError, match=r"ln_f\.weight holds numbers beyond torch\.float16; load it in"):
        regard.load(tmp_path, dtype=torch.float16)
