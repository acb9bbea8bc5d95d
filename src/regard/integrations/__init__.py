"""Other libraries that run their attention by regard. Import the module of the library: none is imported here.

- ``transformers``: ``attn_implementation="regard"`` for the models of Hugging Face transformers
"""
