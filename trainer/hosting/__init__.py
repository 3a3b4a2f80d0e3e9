"""What our two servers, the console and ``serve.py``, have in common.

``names`` says by which names they may be called, ``connections`` keeps clients from holding them up.
"""
