"""Candidate and others at the same decision points of held-out windows, judged blind."""
