"""The HTML page of a calibration."""
