"""Modules around attentions: residuals, norms, feed-forward networks, parameters, and what a call leaves behind."""
