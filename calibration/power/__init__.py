"""The power model: watts of an accelerator as a function of what it executes."""
