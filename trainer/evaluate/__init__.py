"""Is the candidate better than what the agents use? Asked on windows that were never trained on.

In come held-out windows and chat models; out comes an ``Evaluation`` (``trainer.evidence``), kept in the ledger.
``evaluation`` reads the windows and keeps the result, ``decision_points`` takes single decisions out of them,
``blind_trial`` has candidate, incumbent, base model and a baseline answer each one and a judge score the answers
without names, ``comparison`` turns scores into differences with intervals. On the simulated market ``simulated_replay``
also knows what an answer would have earned. A window is one piece of evidence, however many decisions it has, and a
judge that fails costs all policies the same point.
"""
