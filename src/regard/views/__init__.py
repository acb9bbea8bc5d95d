"""Views of recordings, explanations and training runs.

- `terminal/`: tables, bars and heatmaps in the terminal
- `figures/`: matplotlib figures
- `html/`: the page: one HTML file
"""
