"""Periods that are trained once: when they are due, who claims them, whether there is enough, who is told."""
