"""Hand over an attention; learn which step is wrong, and why."""
