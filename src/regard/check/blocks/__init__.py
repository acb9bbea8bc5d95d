"""Whole blocks and decoders: the attentions inside, what is around them, what becomes of masks, time and the batch.

`attentions` finds the attentions; each is judged by itself (`inner`). What is around them is shown by running the block
(`call`): how it is wired (`surroundings`; `wiring`, by a `recording`), whether its masks reach the attention (`masks`),
whether a later token or another sample moves an output (`leaks`). `judgement` asks them all.
"""
