"""Heads and losses as matplotlib figures.

- `maps`: one head, or all heads as thumbnails
- `effects`: what was looked at beside what mattered
- `losses`: the losses of a training run
- `cells`: the cells of a picture of a head: exact or pooled weights
- `fonts`: a font for each character of a text
"""
