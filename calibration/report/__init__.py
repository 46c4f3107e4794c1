"""The page of a calibration: what was measured, how wrong the models are on unseen shapes, what is missing."""
