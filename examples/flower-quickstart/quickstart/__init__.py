"""Flower's PyTorch quickstart with a calibration at its end."""
