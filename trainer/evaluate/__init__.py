"""Is the candidate better than what the agents use? Measured on windows that were never trained on.

The input is held-out windows and chat models; the output is an ``Evaluation`` (``trainer.evidence``), stored in the
ledger. ``evaluation`` reads the windows and stores the result, ``decision_points`` extracts single decisions,
``blind_trial`` lets candidate, incumbent, base model and a baseline answer each one and a judge score the replies
anonymously, ``lessoned`` adds the candidate with lessons and with random ones, ``prompted`` those with prompts of ours
and with random mutations, ``comparison`` turns scores into differences with intervals. ``adapter_replay`` reads replies
as the world does; in simulated worlds ``simulated_replay`` also computes what a reply would have earned, and
``reading`` asks questions whose answer is known; ``rare_states`` looks for narrowing where nobody knows the answer. A
window is one piece of evidence, however many decisions it has, and when the judge fails, all policies lose the same
decision point.
"""
