"""Is this judge with this rubric fit to train on?

In comes any ``Judge``; out comes a certificate, which the ledger keeps under the exact judge, rubric and prompt.
``material`` is what a judge is examined on, ``probes`` change a group in ways that must not change its scores (or, as
attacks, try to), ``examine`` asks the judge about all of it, and ``measures`` turns the answers into the lines of the
certificate. Shifts are measured in the judge's own contrast, so a timid judge has no discount; what was asked before is
not paid for again.
"""
