"""A text in one of regard's models: the only part of the lens that loads models.

- `words`: the words of a text and their tokens.
- `word_selection`: the word that is explained or shown first.
- `streams`: which words are the queries of an attention, and which are its keys.
- `hidden_states`: hidden states of a text and of a word.
- `activations`: one forward pass under `regard.watch`, with the attention map of every layer.
- `head_survey`: all heads on one word: its top keys, the most informative head.
- `explanation`: `Explanation` and its JSON.
- `explanation_schema`: what a file must hold to become one.
- `explain`: `regard.explain`.
- `overview`: the facts of every head on a text, and their JSON.
- `overview_statistics`: how they are computed.
- `run`: a model run on a text under `regard.watch`, and its overview.
- `generation`: a decoder recorded while it writes.
- `contextual`: the hidden states of a word in several sentences.
"""
