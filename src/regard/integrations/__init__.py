"""regard's attention inside models of other libraries. Import the module of the library: none is imported here.

- ``transformers``: ``attn_implementation="regard"`` for the models of Hugging Face transformers
- ``pytorch``: in place of ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` (`regard.replace`)
"""
