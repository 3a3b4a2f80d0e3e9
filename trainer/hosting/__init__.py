"""What our two servers, the console and ``serve.py``, have in common: whom they answer to, and connections that cannot
be held for nothing."""
