"""The health of a worker's GPUs: read from the driver, judged, acted upon."""
