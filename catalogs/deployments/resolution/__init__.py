"""The parts of the resolution of a deployment: layouts, stages, drafters, optional blocks and compatible features."""
