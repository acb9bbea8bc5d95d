"""Tables, bars and heatmaps in the terminal.

- `console`: the console, and the parts that all views share
- `explanation`: `regard explain`: tokens, weights, arithmetic, context, proof
- `formula`: the arithmetic of an explanation as a formula and in words
- `heads_table`: `regard watch`: layers, heads and the most attended words
- `head`: `regard see --terminal`: the strongest keys of each query of one head
- `heatmap`: the weights of one head as characters or colours
"""
