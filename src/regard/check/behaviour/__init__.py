"""What is shown by how an implementation behaves: in a second call, in train(), in its gradients, in a batch.

None of it needs a recipe of the mistake: inputs are compared before and after, calls with one another, gradients with
the output's own slope. Nothing random is taken for a mistake of another kind. `questions` puts them to an
`examination`, a file a subject: `dropout` and other chance, `inputs` that are overwritten, `state` that is kept, the
`axes` of a batch, `causality`, `gradients`, `masked_rows`, `large_scores` and `precision`. `calls` is what they share.
"""
