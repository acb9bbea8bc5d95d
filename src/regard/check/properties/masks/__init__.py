"""Masks: who may attend to whom, by the code itself and by every form of argument that hands a mask over."""
