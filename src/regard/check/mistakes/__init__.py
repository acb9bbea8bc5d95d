"""The bank of known mistakes: one record a mistake, in one file for each group of steps.

`mistake` has the records, `catalog` all mistakes, `conventions` what is right in another way. `worked_example` is the
record of an example, `course_numbers` what examples compute with, `recipe_examples` those that recipes compute,
`behaviour_examples`, `block_examples` and `sinusoids` the others.
"""
