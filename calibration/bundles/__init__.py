"""A calibration as readable files: reading, writing, archives, and tables borrowed from another accelerator."""
