"""Tables, bars and heatmaps in the terminal.

- `console`: the console, and the parts that all views share
- `console_text`: what a view draws on a console, as a text and as HTML
- `table`: tables that break no number
- `explanation`: `regard explain`: tokens, weights, arithmetic, context, proof
- `explained_tokens`: which tokens of a long text are listed
- `formula`: the arithmetic of an explanation as a formula and in words
- `effects_table`: `regard effect`: what was looked at beside what mattered
- `heads_table`: `regard watch`: layers, heads and the most attended words
- `head`: `regard see --terminal`: the strongest keys of each query of one head
- `head_facts`: the same as facts
- `heatmap`: the weights of one head as characters or colours
"""
