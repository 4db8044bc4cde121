"""Tests of the pages in a real browser: `make page`. They need Chromium, and report when there is none."""
