"""Tests of the operations page in a real browser: `make page`. They need Chromium, and report when there is none."""
