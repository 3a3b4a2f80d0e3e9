"""Is this judge with this rubric fit to train on?

``material`` is what a judge is examined on, ``probes`` change a group in ways that must not change its scores (or, as
attacks, try to), ``examine`` asks the judge about all of it, and ``measures`` turns the answers into the lines of a
certificate, which the ledger keeps.
"""
