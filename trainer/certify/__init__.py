"""Is this judge with this rubric fit to train on?

Any ``Judge`` is the input; the output is a certificate, which the ledger stores for the exact judge, rubric and prompt.
``material`` is what a judge is examined on: hours designed so that nothing but soundness tells decisions apart.
``probes`` change a group in ways that should not change its scores (including attacks that try to), ``turned_facts``
gives a real window that is no market the opposite outcome, ``examine`` asks
the judge about all of it, and ``measures`` turns the answers into the lines of the certificate, each with its interval.
Shifts are measured relative to the judge's own contrast, so a timid judge has no advantage; stored answers are not paid
for again.
"""
