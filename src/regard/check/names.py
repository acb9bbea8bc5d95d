"""What the names of arguments and parameters mean."""

from __future__ import annotations

import inspect
import re

__all__ = ["INPUTS", "SIZES", "inverted", "is_plain", "meaning", "role"]

_INPUTS = {
    "q": "q query queries query_states xq q_in x_q q_input q_encodings_matrix encodings_for_q query_layer qs "
    "query_input inputs_q",
    "k": "k key keys key_states xk k_in x_k k_input k_encodings_matrix encodings_for_k key_layer ks key_input",
    "v": "v value values value_states xv v_in x_v v_input v_encodings_matrix encodings_for_v value_layer vs val "
    "value_input",
    "x": "x hidden_states hidden input inputs src tgt token_encodings tokens embeddings embedding h embedded "
    "in_features inp seq x_in feats feat node_feats "
    "input_tensor emb data token_embeddings sequence z u xs decoder_input",
    "ids": "idx ids input_ids token_ids indices",
    "context": "context memory encoder_output encoder_outputs enc_out enc_output encoder_hidden_states enc y kv ctx "
    "encoder_out cross_attention_states key_value_states key_value key_values kv_input x_kv xkv inputs_kv enc_outputs "
    "mem encoded other source",
    "mask": "mask attn_mask attention_mask src_mask tgt_mask m attn_bias_mask may allowed keep causal_mask "
    "look_ahead_mask "
    "x_mask self_mask self_attn_mask decoder_mask target_mask trg_mask additive_mask valid visible permitted "
    "blocked masked_positions adj adjacency adj_mat adj_matrix adjacency_matrix",
    "padding": "key_padding_mask padding_mask pad_mask key_mask src_key_padding_mask pad valid_mask context_mask "
    "memory_mask padding present presence exists token_exists is_valid valid_tokens is_pad is_padding padded "
    "encoder_attention_mask memory_key_padding_mask kpm enc_mask cross_mask src_padding_mask encoder_mask",
    "causal": "causal is_causal use_causal_mask masked causal_flag autoregressive use_mask apply_causal_mask "
    "apply_mask do_mask do_masking",
    "bias": "bias attn_bias position_bias pos_bias rel_bias relative_bias alibi attention_bias score_bias "
    "additive_bias",
    "w_q": "wq w_q weight_q q_weight query_weight w_query wquery",
    "w_k": "wk w_k weight_k k_weight key_weight w_key wkey",
    "w_v": "wv w_v weight_v v_weight value_weight w_value wvalue",
    "w_o": "wo w_o weight_o o_weight out_weight w_out wout",
    "rope": "position_embeddings",
    "cos": "cos",
    "sin": "sin",
}
_SIZES = {
    "d_model": "d_model embed_dim dim hidden_size n_embd emb_size embed_size d hidden_dim n_state embedding_dim "
    "model_dim emb_dim d_in "
    "input_dim n_embed features d_emb width emb channels dim_model hidden d_hidden num_hiddens model_size "
    "query_dim query_size "
    "embedding_size in_features embed d_embed key_size value_size q_dim k_dim v_dim in_dim c dmodel n_units size "
    "dim_in "
    "n_dim units model_width n_channels channels_in input_size dimensions dimension num_channels hidden_units ch "
    "num_feat n_feat num_feats n_feats feat_dim feature_dim in_planes inplanes in_chans in_channel channel hid_size "
    "input_channels hidden_channels "
    "in_channels embed_dims emsize hid_dim n_hid nhid dim_q d_q c_s c_z c_m c_in c_q c_k c_v",
    "d_out": "d_out out_dim output_dim dim_out out_features out_channels",
    "d_context": "d_context context_dim kv_dim cross_dim d_memory kdim vdim d_ctx dim_context encoder_dim d_enc",
    "heads": "num_heads n_heads heads h nhead n_head num_attention_heads nheads n_h head_count attn_heads "
    "number_of_heads num_head "
    "head_num n_attn_heads nb_heads no_heads heads_num num_query_heads num_q_heads n_q_heads",
    "kv_heads": "num_kv_heads n_kv_heads kv_heads num_key_value_heads n_kv_head num_key_value_head n_groups "
    "num_kv_head",
    "groups": "num_groups groups num_kv_groups",
    "d_head": "head_dim dim_head head_size d_k d_v d_head dk dv dim_per_head per_head_dim attention_head_size "
    "head_width size_per_head "
    "dim_key dim_value dim_k dim_v d_key d_value key_dim value_dim dim_heads c_hidden kv_channels",
    "length": "block_size context_length max_len seq_len max_seq_len max_length n_ctx max_position_embeddings "
    "max_positions "
    "sequence_length n_positions ctx_len max_seq_length seq_length max_tokens t l n num_tokens maximum_length",
    "vocab": "vocab_size n_vocab vocab num_tokens_vocab voc_size vocabulary_size ntoken ntokens vocabulary "
    "num_embeddings",
    "layers": "num_layers n_layers n_layer depth num_hidden_layers layers n_blocks num_blocks blocks",
    "d_ff": "d_ff ffn_embed_dim ff_dim ffn_dim mlp_dim intermediate_size dim_feedforward hidden_ff n_inner "
    "ffn_hidden d_ffn ff_hidden_dim "
    "dim_ff mlp_hidden ff_size feedforward_dim ffn_hidden_size ff_hidden",
    "dropout": "dropout p drop dropout_p attn_pdrop resid_pdrop attn_drop proj_drop drop_rate dropout_rate "
    "attention_dropout embd_pdrop "
    "attention_probs_dropout_prob hidden_dropout_prob drop_prob pdrop attn_dropout ff_dropout resid_dropout "
    "emb_dropout "
    "dropout_prob p_drop att_drop dropatt",
    "flag": "bias qkv_bias use_bias attention_bias causal is_causal is_decoder batch_first masked "
    "use_causal_mask out_bias",
    "config": "config cfg args conf hparams params",
    "eps": "eps layer_norm_eps layer_norm_epsilon rms_norm_eps norm_eps epsilon",
    "row_dim": "row_dim",
    "col_dim": "col_dim",
}


def inverted(table: dict[str, str]) -> dict[str, str]:
    """What each name means, from the names of each meaning."""
    return {name: meaning for meaning, names in table.items() for name in names.split()}


INPUTS, SIZES = inverted(_INPUTS), inverted(_SIZES)


def meaning(name: str, table: dict[str, str]) -> str | None:
    """What an argument of a call (`INPUTS`) or a constructor (`SIZES`) stands for; None where no name tells."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_")
    return table.get(snake) or table.get(snake.replace("_", ""))


_AROUND = (
    ""
    "w|to|c|fc|linear|lin|proj|projection|self|attn|attention|dense|weights|weight|matrix|net|map|transform|mat|layer|conv|"
    "kernel|param|bias|b|the|head|heads|embed|mha|make|for|multi|multihead"
)
_WORDS = {
    "qkv": "qkv|kqv|inproj|cattn|querykeyvalue|vqk|qvk|vkq|kvq|packed|inprojection|fused|qkvs|in",
    "kv": "kv|keyvalue|kvs",
    "q": "q|query|queries|qs|que|ask|asks|wanted",
    "k": "k|key|keys|ks",
    "v": "v|value|values|vs|val|vals",
    "out": "o|out|output|unify|unifyheads|merge|combine|final|proj|cproj|dense|fcout|outputs|mix|post|head|back|join",
}
_ROLES = {role: re.compile(rf"(?:{_AROUND})*?(?:{words})s?(?:{_AROUND}|s)*") for role, words in _WORDS.items()}


def role(path: str) -> str | None:
    """The role of a parameter by its path: q, k, v, qkv, kv, out; None where no name tells."""
    parts = [part for part in path.split(".") if not part.isdigit() and part not in ("weight", "bias")]
    for part in reversed(parts):
        cleaned = re.sub(r"[^a-z]", "", re.sub(r"(_weight|_bias)$", "", part.lower()))
        found = next((role for role, words in _ROLES.items() if words.fullmatch(cleaned)), None)
        if found is not None:
            return found
    return None


def is_plain(parameter: inspect.Parameter) -> bool:
    """Whether an argument is a number or a text, by its annotation or its default: an id, or the name of a mask."""
    is_number = type(parameter.default) in (int, float) or parameter.annotation in (int, float, "int", "float")
    return is_number or re.search(r"\bstr\b", inspect.formatannotation(parameter.annotation)) is not None
