"""Candidate against incumbent: decision points, the blind trial, the arithmetic of evidence, and the gate."""
