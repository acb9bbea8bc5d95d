"""What the names of arguments mean, of calls and of constructors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from functools import cache

from regard.check.names import INPUTS, SIZES, inverted, meaning

__all__ = [
    "call_meaning",
    "constructor_meaning",
    "first_word",
    "is_bias",
    "is_encoded",
    "is_of_pairs",
    "is_state",
    "last_words",
    "side_names",
]

_CALL = {
    "x": "latents queries_input features trg target_sequence queries_in sequences xs_in "
    "video videos node_features "
    "dec dec_out dec_output dec_outputs decoder_output decoder_outputs dec_states decoder_states dec_hidden",
    "ids": "src_seq trg_seq tgt_seq tokens_ids token_ids input_tokens src_ids tgt_ids decoder_input_ids",
    "image": "image images img imgs pixel_values pixels x_img",
    "rope": "position_embeddings pos_emb cos_sin rope rope_cache rotary freqs freqs_cis freq_cis rotary_freqs "
    "rope_freqs pos_enc pos_encoding pos_encodings positional_encoding rel_pos_enc "
    "rel_pos_embedding pos_embedding pos_embeddings freqs_complex rotary_emb "
    "rotary_pos_emb rotary_embedding rotary_embeddings pos_embed rotary_cos_sin freqs_complex_form "
    "freqs_complex_k rotary_position_embeddings rel_pos_emb pos_embs complex_freqs pe rope_emb rope_freq "
    "freq_complex",
    "cos": "cos freqs_cos cosine rope_cos cos_q",
    "sin": "sin freqs_sin sine rope_sin sin_q",
    "positions": "position_ids positions pos input_pos pos_ids cache_position token_positions position "
    "kv_write_indices write_indices times timestamps time_stamps event_times",
    "coordinates": "coords coord coordinates coors xyz coords_xyz pos_xyz xyz_pos",
    "edge index": "edge_index edge_indices edge_idx",
    "start": "start_pos offset start past_len past_length position_offset cache_len seq_offset step start_position "
    "past_key_values_length",
    "absent": "past_key_value past_key_values layer_past past kv_cache cache past_kv head_mask layer_head_mask mems "
    "static_kv block_table inference_params rel_pos prev cross_attn_past layer_cache past_states cache_params "
    "prefix incremental_state",
    "off": "use_cache output_attentions need_weights return_weights return_attention return_attn output_hidden_states "
    "return_dict debug verbose training train is_training is_train istrain "
    "return_attention_weights return_scores average_attn_weights store_attention "
    "return_kv return_intermediates output_attention need_head_weights return_logits",
    "targets": "targets labels target_ids",
    "token types": "token_type_ids token_types token_type type_ids segment segments segment_ids segment_label "
    "segment_labels segment_info segment_tokens seg seg_ids",
    "layer": "layer_idx layer_id layer_number layer",
    "lengths": "lengths seq_lens seq_lengths seqlens lens valid_lens valid_len valid_lengths valid_length src_lengths "
    "src_lens key_lengths key_lens kv_lens kv_lengths num_valid n_valid context_lengths input_lengths memory_lengths "
    "enc_lens enc_valid_lens sequence_lengths pad_idxs pad_starts pad_start",
    "documents": "doc docs doc_ids doc_id document_ids document_id documents",
    "prefix": "prefix_len prefix_lens prefix_length prefix_lengths prefix_size prefix_sizes n_prefix num_prefix",
    "boundaries": "cu_seqlens cu_seqlens_q cu_seqlens_k cu_seqlens_kv cu_seqlen cu_seq_lens cu_lens cu_lengths",
    "size length": "max_seqlen max_seqlen_q max_seqlen_k max_seqlen_kv",
    "scale": "scale scaling softmax_scale sm_scale scale_factor attn_scale scaling_factor",
    "temperature": "temperature temp tau",
    "dropout": "dropout dropout_p p_drop attn_dropout",
    "context": "annotations cond ref refs xa",
    "qkv": "qkv packed_qkv qkv_packed mixed_qkv fused_qkv qkvs",
    "w_q": "query_dense query_kernel q_kernel",
    "w_k": "key_dense key_kernel k_kernel",
    "w_v": "value_dense value_kernel v_kernel",
    "w_o": "output_dense out_dense output_kernel out_kernel o_kernel "
    "out_proj_weight proj_weight output_weight w_proj o_proj_weight c_proj_weight c_proj_w "
    "out_proj_w proj_w o_proj_w",
    "w_qkv": "w_in in_proj_weight qkv_proj_weight in_proj_w w_qkv wqkv qkv_weight weight_qkv w_attn c_attn_w qkv_w",
    "window": "window_size window win_size window_len sliding_window local_window attention_window",
    "height": "height hh rows n_rows",
    "width": "width ww cols columns n_cols",
    "grid": "grid_size hw_size spatial_shape hw shape feat_size feature_size x_size hw_shape spatial_size",
    "device": "device dev",
}
_CONSTRUCTOR = {
    "d_model": "attention_hidden_size in_size d_input hid",
    "d_out": "out_size",
    "heads": "index_n_heads index_num_heads nh",
    "d_head": "v_head_dim qk_nope_head_dim nope_head_dim index_head_dim d_kv num_head_channels head_channels",
    "rank": "q_lora_rank kv_lora_rank o_lora_rank lora_rank",
    "kv_heads": "n_query_groups num_query_groups num_key_value n_kv num_kv kv_head num_key_value_groups_ "
    "group_num num_group n_group kv_head_num kv_group_num kv_group_count kv_n_heads kv_num_heads",
    "length": "segment_means_seq_len padded_length max_source_positions "
    "max_target_positions max_position max_sequence_length n_tokens "
    "num_patches tokens max_num_tokens max_seqlen maxlen max_sequence_len max_context max_seq ctx_size context_size "
    "context_len max_context_length sequence_len num_tokens max_seq_len_cached context_window max_pos_emb "
    "num_nodes n_nodes node_num nodes_num num_vertices n_vertices num_token number_of_tokens",
    "window": "window_size window win_size window_len sliding_window local_window attention_window",
    "image": "image_size img_size resolution resolution_in resolution_out image_height image_width feature_size "
    "fmap_size img image im_size img_dim image_dim",
    "patch": "patch_size patch patch_height patch_width",
    "frames": "num_frames n_frames nframes num_frame",
    "grid": "input_resolution grid_size feat_size spatial_size",
    "classes": "num_classes n_classes num_labels",
    "scale": "scale scaling softmax_scale scale_factor scaling_factor",
    "temperature": "temperature temp tau",
    "layer": "layer_idx layer_id layer_number layer layer_index block_idx block_index",
    "device": "device",
    "dtype": "dtype torch_dtype",
    "activation": "activation hidden_act act act_fn activation_function activation_layer act_layer",
    "ratio": "mlp_ratio ff_mult mlp_mult ff_ratio ffn_ratio expansion_ratio expansion_factor widening_factor",
    "shift": "shift_size",
    "base": "base theta rope_theta rope_base rotary_emb_base",
    "batch": "max_batch_size batch_size",
    "d_context": "d_encoder cross_attention_dim context_size dim_kv kv_input_dim y_dim memory_dim kv_in_dim "
    "cross_attention_hidden_size d_cond cond_dim dim_cond",
    "landmarks": "num_landmarks n_landmarks landmarks",
    "latents": "num_latents n_latents num_latent n_latent num_latent_tokens num_latent_vectors num_inducing_points "
    "num_inducing n_inducing num_inds num_slices n_slices slice_num num_slots n_slots",
    "d_latent": "latent_dim dim_latent latent_width d_latent",
    "buckets": "relative_attention_num_buckets num_buckets",
    "distance": "relative_attention_max_distance max_distance",
    "kernel": "kernel_size",
    "stride": "stride sr_ratio sequence_reduction_ratio spatial_reduction_ratio",
    "off": "verbose debug use_cache return_attention output_attentions use_rope flash use_flash use_flash_attn "
    "flash_attention checkpoint training train is_training is_train",
    "edges": "adj adjacency adj_mat adj_matrix adjacency_matrix",
    "vocab": "src_vocab_size tgt_vocab_size src_vocab tgt_vocab trg_vocab_size padded_vocab_size input_vocab_size "
    "target_vocab_size num_embeddings_ n_words src_vocab_len tgt_vocab_len enc_voc_size dec_voc_size vocab_len "
    "num_users num_items n_users n_items user_num item_num usernum itemnum num_user num_item n_user n_item",
    "layers": "n decoder_layers encoder_layers num_encoder_layers num_decoder_layers n_blocks num_block nlayers "
    "nlayer block_num n_enc_layers n_dec_layers",
    "rotary": "rotary_dim rope_dim rotary_ndims rot_dim rotary_embedding_dim qk_rope_head_dim rope_head_dim",
    "pad": "pad_idx pad_token_id padding_idx src_pad_idx trg_pad_idx tgt_pad_idx pad_id",
}


_CALL_NAMES = INPUTS | inverted(_CALL)
_CONSTRUCTOR_NAMES = inverted(_CONSTRUCTOR) | SIZES
_MASK = re.compile(
    r"^(?!(?:pos(?:ition)?|conv)_masks?$)(?:.*_)?(?:masks?|masken?|masques?|m[aá]scaras?|mascher[ae])(?:_.*)?|(?!(?:use|is|with|do|apply|no|enable)_)\w+_masking"
)
"""A mask of positions chooses which tokens of a picture there are, and one of a convolution what that reads: they hide
nothing. Code is written with words of other languages as well: of German, French, Spanish, Portuguese and Italian."""
_LOSS_MASK = re.compile(r"(?:.*_)?loss(?:es)?_(?:.*_)?masks?|masks?_(?:.*_)?loss(?:es)?")
"""Which tokens count in the loss: it hides no key."""
_CONTEXT = re.compile(
    r"(?:enc(?:oder|oded)?|memory|context|cond)_(?:src|source|x|h|outs?|output|hidden|states?|feats?|features?|emb\w*"
    r"|banks?|inputs?|seqs?|sequences?|tokens?|data|vectors?|representations?)|(?:processed|projected)_(?:memory|enc\w*)"
)
"""What another module made, as in enc_src, encoder_features or memory_bank."""
_STATE = re.compile(
    r"(?:(?:dec(?:oder)?|prev(?:ious)?|last|current|query)_)+(?:h|s|hidden|(?:hidden_|cell_)?states?|hiddens|outs?"
    r"|outputs?|inputs?|vectors?)|s_(?:prev|t_?(?:minus_?1|m1|1)?)|[hx]_t|x_new|att(?:entio)?n_(?:rnn_)?hidden(?:_state)?"
)
"""What a decoder asks with, as decoder_hidden or prev_state."""
_BARE_STATE = re.compile(r"(?:h|s|hidden|(?:hidden_|cell_)?states?)(?:_(?:prev|t))?")
_ENCODED = re.compile(r"(?:^|_)(?:enc|src|source|mem(?:ory)?(?:_|$))")
_PAST_WEIGHTS = re.compile(
    r"(?:prev(?:ious)?|last|cum(?:ulative)?)_(?:att(?:entio)?n_)?(?:weights?|alignments?)(?:_\w+)?"
    r"|att(?:entio)?n_weights?_(?:cat|cum(?:ulative)?)|(?:prev_)?coverage(?:_vector)?"
)
"""What the steps before gave each key (location-sensitive attention, Chorowski et al. 2015; See et al. 2017)."""
_LENGTHS = re.compile(r"(?!max|min|num|n_)\w+_(?:lengths|lens|seqlens|seq_lens)|[a-z]s?lens")
"""How many tokens each sample of some sequence has, as in mem_lengths, or ESPnet's ilens; a number of tokens is none of
these."""
_CONDITION = re.compile(
    r"(?:t|time|timesteps?|step|noise|sigma|class|label|style|cond)_?emb(?:s|ed|eds|edding|eddings)?|temb|vec", re.I
)
"""A vector of each sample that tells a diffusion model how far it is, or of what its pictures are, as in t_emb."""
_PADDING = re.compile(
    r"(?:src|source|tgt|target|trg|enc|encoder|dec|decoder|keys?|kv?|q|query|queries|mem|memory|ctx|context|x|inputs?"
    r"|tokens?|text|seq)_(?:pads?|padding|padded)"
    r"|(?:presence|exists|valid)_(?:keys?|kv?|mem|memory|ctx|context)"
)
"""Which tokens of some sequence are padding, as in src_pad, or which are none, as in presence_k."""
_ASKED = re.compile(
    r"(?:inputs?|in|x|tokens?|feats?|features?|embed|emb|hidden)_(?P<of>q|quer(?:y|ies)|k(?:eys?)?|v(?:alues?)?)"
)
"""What queries, keys or values are made of, as input_q."""
_WIDTH = re.compile(r"(?:\w+_)?(?:hidden|embed|embedding|lstm|gru|rnn)_(?:layer_|state_)?(?:size|dim|width|units)")
"""Of the vectors between layers, as in hidden_layer_size or lstm_units."""
_ADDED = re.compile(
    r"object_queries|(?:query|queries|keys?|object|spatial|encoder|decoder|src|source|tgt|target|memory|mem)_"
    r"(?:sine|pos|point|level)(?!\w*(?:_ids|bias|mask))\w*"
)
"""Vectors of positions that are added to the tokens of some sequence, as query_pos or key_position_embeddings."""
_ROPE = re.compile(
    r"(?!(?:use|with|apply|is|has|no|do)_)(?:\w+_)?(?:rope|rotary)_(?:pos|emb|freq)\w*|(?:query|queries|q|keys?|k|context|memory|x)_(?:rope|rotary)(?:_\w+)?"
)
_COS = re.compile(r"(?!.*sin)(?:\w+_)?cos(?:_\w+)?")
_SIN = re.compile(r"(?!.*cos)(?:\w+_)?sin(?:_\w+)?")
"""One of several tables of rotary positions, as in cos_local."""
_SHAPE_SUFFIX = re.compile(r"(?P<name>\w*[a-z])_(?P<axes>(?:[A-Z][a-z]?|\d){2,})")
"""A name that ends in one letter for each axis, as x_BTD: the shape suffixes of Noam Shazeer."""
_SIDE = re.compile(
    r"(?P<before>(?:\w+_)?)(?P<side>height|width|h|w|n?lat|n?lon)(?P<after>(?:_(?:s|size|len|tokens|patches))?)", re.I
)
_SIDES = ({"height", "width"}, {"h", "w"}, {"lat", "lon"}, {"nlat", "nlon"})
"""The height and the width of a map, as they are called together: of a sphere its latitudes and longitudes."""
_PREFIX = re.compile(
    r"^(?:(?:encoder|decoder|enc|dec|attn|attention|text|speech|audio|vision|model|default|self|block|transformer"
    r"|cross|swa|memory_attention)_)+"
)

_OF_A_SIDE = re.compile(
    r"(?P<count>n|num|d|dim)_(?:audio|text|vision|visual|image|speech|enc|encoder|dec|decoder)_(?P<what>\w+)"
)
"""A size of one side of a model, as n_audio_head is n_head."""

_WHOLE_WORDS = frozenset(
    ("dim", "dims", "heads", "nhead", "nheads", "channels", "dropout", "depth", "layers", "bias", "eps")
)


@cache
def call_meaning(name: str) -> str | None:
    """What an argument of a call stands for; "size heads" and the like of sizes; None where no name tells."""
    found = meaning(name, _CALL_NAMES)
    if found is None and (size := meaning(name, SIZES)) is not None and size != "config":
        return f"size {size}"
    if found is not None:
        return found
    patterns = {
        "condition": _CONDITION,
        "loss mask": _LOSS_MASK,
        "past weights": _PAST_WEIGHTS,
        "mask": _MASK,
        "padding": _PADDING,
        "context": _CONTEXT,
        "x": _STATE,
        "lengths": _LENGTHS,
        "cos": _COS,
        "sin": _SIN,
    }
    patterns |= {"rope": _ROPE, "added": _ADDED}
    if (suffixed := _SHAPE_SUFFIX.fullmatch(name)) is not None:
        return call_meaning(suffixed["name"])
    if (asked := _ASKED.fullmatch(name.lower())) is not None:
        return asked["of"][0]
    return next((means for means, pattern in patterns.items() if pattern.fullmatch(name.lower())), None)


def is_of_pairs(name: str) -> bool:
    """Whether an argument is what two tokens have in common, as the edge between two nodes."""
    return re.search("edge|pair|relation", name.lower()) is not None


def is_bias(name: str) -> bool:
    """Whether the name says that it is added to something, as r_w_bias to queries: it is no sequence."""
    return "bias" in name.lower().split("_")


def is_encoded(name: str) -> bool:
    """Whether it names what an encoder reads or returns, as src, memory or encoder_outputs."""
    return _ENCODED.search(name.lower()) is not None


def is_state(name: str) -> bool:
    """Whether it names a recurrent state, as hidden or prev_state."""
    return any(pattern.fullmatch(name.lower()) for pattern in (_STATE, _BARE_STATE))


@cache
def constructor_meaning(name: str) -> str | None:
    """What an argument of a constructor, or a field of a config, stands for; None where no name tells."""
    found = meaning(name, _CONSTRUCTOR_NAMES)
    if found is None and (short := _PREFIX.sub("", name)) != name:
        found = meaning(short, _CONSTRUCTOR_NAMES)
    if found is None and (of_side := _OF_A_SIDE.fullmatch(name.lower())) is not None:
        found = meaning(f"{of_side['count']}_{of_side['what']}", _CONSTRUCTOR_NAMES)
    return "d_model" if found is None and _WIDTH.fullmatch(name.lower()) else found


def last_words(name: str) -> tuple[str, str] | None:
    """The first words of a longer name and what its last words mean in a constructor, as d_model of enc_d_model.

    One last word alone has to say all, as in query_dim; a size, or a letter, may be of anything.
    """
    words = name.lower().strip("_").split("_")
    for first in range(1, len(words)):
        short = "_".join(words[first:])
        means = meaning(short, _CONSTRUCTOR_NAMES)
        if means is not None and (len(words) - first > 1 or short in _WHOLE_WORDS):
            return "_".join(words[:first]), means
    return None


def first_word(name: str) -> str | None:
    """The sequence that the first word of a longer name says, as memory_antecedent says a context; else None."""
    means = meaning(name.lower().strip("_").partition("_")[0], _CALL_NAMES) if "_" in name else None
    return means if means in ("q", "k", "v", "context") else None


def is_of_a_picture(name: str, others: Iterable[str]) -> bool:
    """Whether a size of a constructor is that of a picture: it is told how large a patch is, and a width as well."""
    meanings = {constructor_meaning(each) for each in others if each != name}
    return name.lower() in ("size", "side") and meanings >= {"patch", "d_model"}


def side_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names of the height and the width of a map of features, in the order in which they stand; none of others.

    Neither is told by itself: h may count heads, and width be that of the tokens.
    """
    several = list(names)
    found = [(name, match) for name in several if (match := _SIDE.fullmatch(name))]
    for (one, first), (other, second) in itertools.pairwise(found):
        is_pair = {first["side"].lower(), second["side"].lower()} in _SIDES
        is_pair = is_pair and all(first[around] == second[around] for around in ("before", "after"))
        if is_pair and abs(several.index(one) - several.index(other)) == 1:
            return (one, other)
    return ()
