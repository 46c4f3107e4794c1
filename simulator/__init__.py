"""Lets time pass: requests through schedulers on operator costs. Imports catalogs and calibration."""
