"""`python -m attnscope`."""

from attnscope.cli.app import main

main()
