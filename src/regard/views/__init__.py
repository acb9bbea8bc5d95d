"""Views of recordings, explanations and training runs.

- `terminal/`: tables, bars and heatmaps in the terminal
- `figures/`: matplotlib figures
- `html/`: the page: one HTML file
- `source`: what `regard see` shows of a text or a recording, and what comes first
- `see`: `regard.see`
"""
