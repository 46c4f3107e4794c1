"""Engine profiles: the default behaviour of each serving engine, read from YAML files."""
