"""Where training happens: the CPU, a local GPU, or W&B Serverless RL, behind one small interface.

``base`` has the interface, ``prepare`` turns a batch into what ART trains, ``choose`` picks the backend.
Importing this package imports neither torch nor art.
"""
