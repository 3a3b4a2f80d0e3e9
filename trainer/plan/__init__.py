"""Who is compared with whom, and who is left out before the judge is paid.

In come the numbers of ``data_bridge.survey``, one entry a usable trajectory; out comes a ``RunPlan``: windows with
their groups, and an exclusion for everybody else. ``grouping`` forms the groups and thins them; ``plan`` looks ahead
over the log and the ledger, says whether there is enough, and later puts the rows that were read into the groups as
planned.

Nothing is written and nothing is paid here. The same log, settings and seed give the same plan, on every host and after
every restart; no agent is twice in a group, no group is smaller than two, and dropout takes from every agent its share.
"""
