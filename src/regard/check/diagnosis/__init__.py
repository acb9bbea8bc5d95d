"""From an implementation to findings by its output: `judge` says who is asked, `verdict` what was found, in words."""
