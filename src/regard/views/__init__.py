"""Drawing what the lens and the steps hand over."""
