"""Classifier calibration for federated learning on non-IID data (CCVR; Luo et al., NeurIPS 2021)."""

__version__ = "0.1.0"
