"""Is this judge with this rubric fit to train on?

``probes`` change a group in ways that must not change its scores, ``attacks`` are texts that try to,
``measures`` turn scores into lines of the certificate, ``examine`` asks the judge, ``certificates`` keeps the result.
"""
