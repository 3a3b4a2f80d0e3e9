"""What the agents use: decided by the gate, changed in one transaction, taken back in one command.

``gate`` turns evidence into promote, refuse or undecided, with the reasons; it is pure, and nothing else decides.
``ruling`` asks it once per evaluation and remembers the looks. ``publish`` gives a release to all agents or to a
canary's share, and rolls back. ``canary`` compares how a canary's agents changed since it started with how all others
did, by our own verdicts, and finishes or ends it. ``retention`` says which old checkpoints may be deleted. Even if a
process dies, a reader sees either the old promotion or the new one, never two and never none; a ruling about an
incumbent that has changed since is not carried out.
"""
