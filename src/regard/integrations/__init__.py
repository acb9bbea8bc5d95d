"""regard's attention inside models of other libraries.

- ``pytorch``: in place of ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` (`regard.replace`)
"""
