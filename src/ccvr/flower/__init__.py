"""Calibration over Flower: a stage for any app, and the engine of our own runs. The only folder that imports flwr.

``register`` lets a ClientApp answer, ``calibrate`` asks from a ServerApp; docs/flower.md has both.
"""

from ccvr.flower.client import register
from ccvr.flower.stage import Calibrated, calibrate

__all__ = ["Calibrated", "calibrate", "register"]
