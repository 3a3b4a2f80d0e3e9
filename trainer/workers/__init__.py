"""Where units of work run: in this process, or in worker processes that Ray places on this machine or on a cluster.

``units`` cuts planned windows into slices; ``judging`` reads, checks and judges one of them, whoever does it, and puts
its result together with its rows again. ``sections`` is what a worker is told about its job, and where it finds its
secrets. ``worker`` is the process that claims units in the ledger, works and commits; ``ray_cluster`` places such
processes with Ray, from a process of its own so that nothing that happens to Ray can end a run. ``elsewhere`` is the
driver's side: it hands units out, waits for them with a deadline, and replaces what dies. The ledger
(``trainer/ledger/units.py``) decides what counts. Nothing here imports torch or art.
"""
