"""A calibration as readable files: reading, writing, archives, and transfer to another accelerator."""
