"""Bunch against the serving systems that people would otherwise use, on one machine, side by side."""
