"""Which trajectories are compared with each other, and which are left out before the judge is paid.

The input is the summary of ``data_bridge.survey``, one entry per usable trajectory; the output is a ``RunPlan``:
windows with their groups, and an exclusion for every other trajectory, those of the windows kept for the gate among
them. ``grouping`` forms the groups and ``dropout`` thins them; ``remaining`` leaves out what the ledger is done with;
``plan`` puts these together, decides whether there is enough data (``difficulty`` says how hard its windows are, for a
curriculum), and later puts the rows that were read into the planned groups.

Nothing is written and nothing is paid here. The same log, settings and seed give the same plan, on every host and after
every restart; no agent is in a group twice, no group is smaller than two, and dropout takes its share from every agent.
"""
