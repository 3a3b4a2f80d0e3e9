"""The typed interface for reading a run: what reports show, as frozen types from one snapshot.

``run_facts`` gathers everything about one run into the classes of ``types``; ``judging``, ``windows``, ``trained_pnl``
and ``agreement`` are its parts: what the judge did, how each window was used, P&L against score, and whether the judge
agrees with itself in another order. For the console, ``now`` is one model's run in hand, ``listings`` are pages of
runs, windows, patterns and deeds, ``boards`` the judge and the machines, ``reward_history`` who got which reward,
``advice`` what proposals were worth, ``lessons`` what verdicts taught; ``word_diff`` what changed in a text. Nothing
here writes.
"""
