"""Runs: an experiment in a folder that can be interrupted, resumed, reported and repeated."""
