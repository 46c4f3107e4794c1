"""The power model: watts of an accelerator as a function of the operator that it runs."""
