"""Fitting a transformer: data, a loop on Lightning Fabric, and what a run leaves behind."""
