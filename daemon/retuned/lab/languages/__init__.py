"""Candidate languages, each with its contract, its compiler and its audit."""
