"""The softmax: what weights sum to, in whichever way it is written."""
