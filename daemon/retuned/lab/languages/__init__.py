"""One file per language a candidate may be written in: its contract, its compiler, its audit."""
