"""The operations page in a real browser: `make page`. Needs Chromium; says so aloud where there is none."""
