"""A calibration as readable files: reading, writing, archives, and borrowing from a neighbouring accelerator."""
