"""Where training happens: the CPU, a local GPU, or W&B Serverless RL, each a ``TrainingBackend`` (``trainer.types``).

``choose`` picks one by what there is: a key, a GPU. All prepare a batch in the same way (``prepare``: verdicts become
ART groups with rewards, and whatever teaches nothing gets a reason). Then each trains it once, to a durable checkpoint:

- ``cpu`` by itself: ``cpu_step`` packs the groups and makes the step on the policy of ``trainer.inference.policy``;
- ``local`` has ART train on the GPU, and knows by ``adapter_files`` which of ART's checkpoints are whole;
- ``serverless`` sends it to W&B and follows the job (``remote_job``), so that no job is lost and none is sent twice.

``art_interface`` is how all of them speak with ART. Choosing imports neither torch nor art.
"""
