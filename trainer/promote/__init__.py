"""What the agents use: decided by the gate, changed in one transaction, taken back in one command.

``gate`` turns an ``Evaluation`` into promote, refuse or undecided, with the reasons; it is pure, and nobody else
decides. ``publish`` gives a release to all agents or to a canary's share, and rolls back. ``canary`` compares a
canary's agents with everybody else in the windows since, and finishes or ends it. ``retention`` says which old
checkpoints may leave the disk. Whoever looks, whenever a process dies, sees the promotion before or the one after,
never two and never none; a ruling about an incumbent that changed meanwhile is not carried out.
"""
