"""What people's commands print, the local ones and ``kubectl retuned``: one way to say each thing.

``output`` makes strangers' text harmless and prints answers and messages, ``layout`` tables and
fields, ``moments`` spans and ids; ``freezes``, ``policies`` and ``proposals`` show what they name.
"""
