"""What is released, built and tried out before it is: `make release-check`.

- `__main__`: the steps in their order, the table at the end, the exit code
- `distributions`: what must be in a wheel and in an sdist, and what must not
- `environments`: interpreters, and empty environments into which the wheel is installed
- `processes`: commands that are ended, and a folder that is removed, however the check ends
- `smoke`: what runs in such an environment
"""
