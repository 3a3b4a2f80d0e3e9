"""Intervals and tests that the stages share."""
