"""The door for reading a run: what reports show, as plain frozen types and in one snapshot.

``run_facts`` gathers everything about one run into the classes of ``types``; ``judging``, ``windows``, ``trained_pnl``
and ``agreement`` are its parts: what the judge did, what became of each window, what was earned beside what was scored,
and whether the judge agrees with itself in another order. Nothing here writes.
"""
