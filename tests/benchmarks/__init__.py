"""Compares Bunch with other serving systems, on one machine, side by side."""
