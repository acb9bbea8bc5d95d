"""The server of `regard live`: a page whose model runs on this machine."""
