"""What checks the types of annotated calls in `make test-more`; enforced_shapes.txt lists the packages."""

from beartype import BeartypeConf, beartype

enforced = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""A whole number is a float, as it is for mypy. Of a list one item is looked at, drawn by chance."""
