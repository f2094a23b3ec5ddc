"""Stages: each reads files, calls algorithms, and writes files into its folder of the run."""
