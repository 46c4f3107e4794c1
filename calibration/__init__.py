"""What an operator costs on given hardware: vocabulary, importers, fits, bundles. Imports catalogs only."""
